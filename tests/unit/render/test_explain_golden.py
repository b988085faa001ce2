"""What a ledger looks like, at 80 and 120 columns, in plain text, and as JSON."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from explained_traces import explained_trace, lay, read, unrecorded_trace
from gpumem.analyses.explain import find_explanation
from gpumem.heap.instants import find_instant
from gpumem.render.json_explain import render_explanation as render_json
from gpumem.render.terminal.explain import render_explanation
from gpumem.simulate.opening import open_trace
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import TraceSource
from narrow_page import NARROW, NARROWEST, PAGES, check_narrow, checked
from shown_traces import HOSTILE
from trace_builder import GiB, MiB, TraceBuilder

SAMPLES = Path(__file__).parents[3] / "sample_traces"


def hostile() -> Trace:
    """Names that would act on a terminal or break a line, of a mark, a site, a device and a reason."""
    builder = TraceBuilder(block_bytes_known=True).device_facts(name="[red]H\x1b200\u202e", capacity_bytes=1 * GiB)
    builder.mark("start")
    lay(builder, 518, 0).segment(20 * MiB).alloc("a", 15 * MiB, stack=HOSTILE)
    builder.mark("[blink]" + "x" * 90 + "\x07\n\u202e\udcfe")
    return lay(builder, 600, 20).build()


def many_steps() -> Trace:
    """A process that grows in every step, and shrinks in one."""
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).segment(2 * GiB)
    for step in range(12):
        builder.alloc(f"b{step}", 100 * MiB).step()
        lay(builder, 600 + 10 * step - (150 if step == 7 else 0), 2048)
    return builder.build()


def shared_card() -> Trace:
    """Another process on the card, unlisted bytes, a second device with a context alone."""
    builder = TraceBuilder(block_bytes_known=True).on(device=1).on(device=0).segment(2 * MiB).alloc("a", 100)
    read(builder, 520 * MiB, others=70 * GiB).on(device=1)
    return read(builder, 480 * MiB, others=None, unavailable={"other_processes_bytes": "hidden"}).build()


TRACES: dict[str, Callable[[], Trace]] = {
    "parts": explained_trace,
    "unknown": lambda: explained_trace(block_bytes_known=False),
    "hostile": hostile,
    "steps": many_steps,
    "shared": shared_card,
    "snapshot": lambda: TraceBuilder(source=TraceSource.PYTORCH_SNAPSHOT).segment(2 * MiB).alloc("a", 100).build(),
    "not_recorded": unrecorded_trace,
    "nine_steps": lambda: open_trace(SAMPLES / "nine_steps.gpumem"),
}


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(TRACES))
def test_ledger_looks_like_its_golden(name: str, width: str, golden: Callable[[str, str], None]) -> None:
    explanation = find_explanation(TRACES[name](), parse_moment("end") if name != "nine_steps" else None)
    named = replace(explanation, path=Path(explanation.path).name)
    golden(f"explain_{name}_{width}.txt", checked(render_explanation(named, PAGES[width]), PAGES[width]))


@pytest.mark.parametrize("name", list(TRACES))
def test_ledger_fits_narrow_pages_and_breaks_no_figure(name: str) -> None:
    explanation = find_explanation(TRACES[name](), parse_moment("end"))
    for page in (NARROW, NARROWEST):
        check_narrow(render_explanation(explanation, page), page)


def test_ledger_of_one_device_fits_one_screen() -> None:
    text = render_explanation(find_explanation(TRACES["nine_steps"]()), PAGES["80"])
    assert len(text.plain.splitlines()) <= 34


def test_json_closes_and_names_moments_as_at_takes_them() -> None:
    document = json.loads(render_json(find_explanation(explained_trace(), parse_moment("end"))))
    assert document["schema"] == "gpumem.explain/1"
    assert set(document) >= {"process_bytes", "components", "unexplained_bytes", "findings", "others", "card"}
    figures = [document[f"{name}_bytes"] for name in ("measured", "derived", "difference")]
    assert sum(figures) == document["process_bytes"] == 1838 * MiB
    assert sum(one["bytes"] for one in document["components"]) + document["unexplained_bytes"] == 1838 * MiB
    grown = next(one for one in document["components"] if one["name"] == "outside_allocator")
    assert [(one["name"], one["bytes"], one["evidence"]) for one in grown["children"]] == [
        ("mark:first kernel", 92 * MiB, "difference"),
        ("mark:first product", 66 * MiB, "difference"),
    ]
    pinned = next(one for one in document["findings"] if one["code"] == "gaps_pinned")
    assert pinned["segments"][0]["site"] == {"file": "/home/anna/train.py", "line": 31, "function": "load"}


@pytest.mark.parametrize("name", ["evaluation of the second epoch", "a\tb", "\u6a21\u578b" * 8])
def test_label_that_cannot_be_shown_whole_begins_with_its_event(name: str) -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    trace = lay(lay(builder, 518, 0).segment(2 * MiB).mark(name), 600, 2).build()
    text = render_explanation(find_explanation(trace, parse_moment("end")), PAGES["80"]).plain
    (label,) = [line.strip() for line in text.splitlines() if line.strip().startswith("by ")]
    moment = label.removeprefix("by ").split(",")[0]
    assert find_instant(trace, parse_moment(moment)).event == trace.marks[1].event


def test_json_of_a_trace_without_nvml_has_null_and_a_sentence() -> None:
    document = json.loads(render_json(find_explanation(TRACES["snapshot"]())))
    assert (document["process_bytes"], document["unexplained_bytes"], document["reading"]) == (None, None, None)
    assert document["findings"][0]["code"] == "no_process_figure"
    assert document["findings"][0]["text"].startswith("A snapshot of PyTorch's holds no NVML reading")


def test_json_of_hostile_names_is_unicode() -> None:
    render_json(find_explanation(hostile(), parse_moment("end"))).encode("utf-8")


def test_bars_of_a_card_smaller_than_what_it_holds_stay_within_their_room() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 512)
    builder.reading(total_bytes=64 * MiB, used_bytes=1 << 46, free_bytes=0, process_bytes=1 << 45)
    explanation = find_explanation(builder.build(), parse_moment("end"))
    tracemalloc.start()
    text = render_explanation(explanation, PAGES["120"])
    drawn_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(cell_len(line) for line in text.plain.splitlines()) <= 120
    assert drawn_bytes < 4 * MiB
