"""The page as a file: what it holds, what it may load, and that nothing in it breaks out."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from busy_trace import busy_trace
from explained_traces import unrecorded_trace
from gpumem.analyses.explain import find_ledger
from gpumem.analyses.page import find_page
from gpumem.analyses.summary import summarise_trace
from gpumem.heap.instants import find_instant
from gpumem.render.html.ledger import ledger_section
from gpumem.render.html.markup import sentence
from gpumem.render.html.page import SCRIPTS, STYLES, render_page
from gpumem.render.html.peak_bar import SITE_COLOURS
from gpumem.render.oom_advice import finding_text, is_advice
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import DeviceOrdinal
from random_traces import plain_states, traces
from trace_builder import GiB, MiB, TraceBuilder
from training_trace import training_trace

HOSTILE = "</script><img src=x onerror=alert(1)> \"'&\u2028\udcff\x1b<b>" + "y" * 5000


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts and of everything else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            attributes, before = self.scripts.pop()
            self.scripts.append((attributes, before + data))
        else:
            self.text += data


@cache
def training_page() -> str:
    return render_page(find_page([training_trace(block_bytes_known=True)]))


def script(page: str, name: str) -> str:
    return next(text for attributes, text in Elements(page).scripts if attributes.get("id") == name)


def document(page: str) -> tuple[dict[str, Any], bytes]:
    """The page's document and the bytes of its columns."""
    packed = gzip.decompress(base64.b64decode(script(page, "gm-payload")))
    end = 8 + int.from_bytes(packed[:8], "little")
    return json.loads(packed[8:end]), packed[end:]


def column(ref: dict[str, Any], columns: bytes) -> list[int]:
    kind, offset, count = ref["column"]
    return np.frombuffer(columns, dtype=f"<{kind}", count=count, offset=offset).astype(np.int64).tolist()  # type: ignore[no-any-return]


def page_of(trace: Trace) -> tuple[dict[str, Any], bytes]:
    return document(render_page(find_page([trace])))


def test_document_holds_the_curves_and_the_peak() -> None:
    trace = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    trace.alloc("a", 3 * MiB, stack=[("/a.py", 1, "f")]).alloc("b", 5 * MiB).free("b").mark("middle")
    page, columns = page_of(trace.build())
    (view,) = page["views"]
    assert column(view["curves"]["held_bytes"], columns) == [0, 0, 3 * MiB, 8 * MiB, 3 * MiB, 3 * MiB]
    assert column(view["curves"]["reserved_bytes"], columns) == [0, *[20 * MiB] * 5]
    assert (view["peak"]["event"], view["peak"]["bytes"]) == (2, 8 * MiB)
    assert page["sites"] == [None, {"file": "/a.py", "line": 1, "function": "f"}]
    assert column(view["site_rows"]["peak_bytes"], columns) == [5 * MiB, 3 * MiB]
    assert page["traces"][0]["marks"] == [
        {"name": "middle", "kind": "mark", "step": None, "event": 4, "time_ns": 5000000}
    ]


def test_bytes_beyond_32_bits_travel_exactly() -> None:
    trace = TraceBuilder(block_bytes_known=True).segment(100 * GiB).alloc("a", 77 * GiB + 512).build()
    page, columns = page_of(trace)
    assert column(page["views"][0]["curves"]["held_bytes"], columns)[-1] == 77 * GiB + 512


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert render_page(find_page([training_trace(block_bytes_known=True)])) == training_page()


def test_every_script_and_style_that_is_there_is_on_the_page() -> None:
    assets = {path.name for path in (files("gpumem.render.html") / "assets").iterdir()}
    assert assets == {*SCRIPTS, *STYLES}


def test_page_loads_nothing() -> None:
    page = Elements(training_page())
    for name, attributes in page.elements:
        assert name not in ("link", "img", "iframe", "object", "embed", "base", "form", "video", "audio")
        assert not {"src", "srcset", "action", "data"} & set(attributes), (name, attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes)
    styles = re.findall(r"<style>(.*?)</style>", training_page(), re.DOTALL)
    assert styles
    assert not any("url(" in style or "@import" in style for style in styles)


def test_only_the_scripts_of_the_page_may_run_and_none_may_load() -> None:
    page = Elements(training_page())
    (policy,) = (
        attributes["content"] or ""
        for name, attributes in page.elements
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    allowed = rules["script-src"].split()
    plotly = gzip.decompress(base64.b64decode(script(training_page(), "gm-plotly")))
    running = [text.encode() for attributes, text in page.scripts if not attributes.get("type")]
    digests = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (*running, plotly)]
    assert sorted(allowed) == sorted(f"'sha256-{digest}'" for digest in digests)


def test_plotly_comes_with_its_licence() -> None:
    text = Elements(training_page()).text
    assert re.search(r"Drawn with plotly\.js \d+\.\d+\.\d+, MIT licence", text)
    assert re.search(r"Copyright \(c\) 2012-\d{4} Plotly, Inc\.", text)
    assert "The above copyright notice and this permission notice shall be included" in text


def test_a_refused_request_is_followed_by_what_to_do_numbered_and_by_remarks_apart() -> None:
    trace = training_trace(block_bytes_known=True, oom=True)
    page = render_page(find_page([trace]))
    (advice,) = re.findall(r'<div class="advice">(.*?)</div>', page, re.DOTALL)
    numbered, remarks = advice.split("</ol>")
    verdict = summarise_trace(trace).devices[0].oom_verdict
    assert verdict is not None
    texts = [sentence(finding_text(finding, verdict)) for finding in verdict.findings]
    is_to_do = [is_advice(finding.code) for finding in verdict.findings]
    assert {True, False} <= set(is_to_do)
    for text, to_do in zip(texts, is_to_do, strict=True):
        assert (text in numbered, text in remarks) == (to_do, not to_do)
    assert numbered.startswith("<h3>What to do about it</h3><ol><li>")


def test_how_the_program_ended_is_said_as_the_summary_says_it() -> None:
    page = render_page(find_page([TraceBuilder(ended_by="exit 1").segment(2 * MiB).alloc("a", 10).build()]))
    assert "<p>The program ended with exit code 1.</p>" in page
    assert "The program ended" not in training_page()


def test_a_quiet_beginning_is_left_out_at_first() -> None:
    builder = TraceBuilder(block_bytes_known=True).wait(2_000_000_000).segment(20 * MiB).alloc("a", 100)
    page, _ = page_of(builder.wait(2_000_000_000).alloc("b", MiB).free("b").build())
    view, trace = page["views"][0], page["traces"][0]
    assert 1_000_000_000 < view["beginning_ns"] < 2_000_000_000
    assert trace["duration_ns"] > 4_000_000_000
    assert document(training_page())[0]["views"][0]["beginning_ns"] == 0


def test_hostile_names_are_text() -> None:
    builder = TraceBuilder(block_bytes_known=True, settings=HOSTILE, notes=(HOSTILE,), command_line=(HOSTILE,))
    builder.device_facts(name=HOSTILE).segment(2 * MiB).alloc("a", MiB, stack=[(HOSTILE, 7, HOSTILE)]).mark(HOSTILE)
    page = render_page(find_page([builder.build()]))
    elements = Elements(page)
    assert not [attributes for name, attributes in elements.elements if name in ("img", "b")]
    assert len(elements.scripts) == len(Elements(training_page()).scripts)
    assert "</script><img src=x" in elements.text
    found, _ = document(page)
    assert len(found["sites"][0]["function"]) < 500
    assert "\\u2028\\xff\\x1b" in found["sites"][0]["function"]
    assert "\\u2028" in found["traces"][0]["marks"][0]["name"]


def test_verdict_says_peak_holder_and_bound() -> None:
    text = Elements(training_page()).text
    assert "At most" in text
    assert "of the NVIDIA H200" in text
    assert "It did not run out" in text


def test_command_line_and_notes_are_told_whole() -> None:
    words = tuple(f"--option-{number}={number * 37}" for number in range(60))
    note = "The compiler said: " + " ".join(f"line {number} is wrong;" for number in range(40))
    trace = TraceBuilder(command_line=("train.py", *words), notes=(note,)).segment(2 * MiB).alloc("a", 100).build()
    text = Elements(render_page(find_page([trace]))).text
    assert " ".join(words) in text
    assert note in text


def test_verdict_of_a_shared_card_says_what_others_hold_of_the_rest() -> None:
    builder = TraceBuilder(block_bytes_known=True).device_facts(capacity_bytes=8 * GiB).segment(1 * GiB)
    builder.alloc("a", 1 * GiB).reading(process_bytes=2 * GiB, other_processes_bytes=3 * GiB)
    text = Elements(render_page(find_page([builder.build()]))).text
    assert "which leaves 7.00 GiB of the card, 3.00 GiB of it held by other processes." in text


def test_ledger_before_the_first_event_says_its_time_as_the_terminal_does() -> None:
    builder = TraceBuilder().wait(3 * 10**9).reading(process_bytes=500 * MiB, used_bytes=600 * MiB)
    trace = builder.segment(2 * MiB).alloc("a", 100).build()
    page = find_page([trace])
    for moment, said in (("start", "At the start; NVML read"), ("1s", "At 1.00 s (before the first event); NVML read")):
        ledger = find_ledger(trace, find_instant(trace, parse_moment(moment)), DeviceOrdinal(0))
        section = ledger_section(replace(page, views=[replace(page.views[0], ledger=ledger)]))
        assert said in Elements(str(section)).text


@pytest.mark.parametrize("trace", [TraceBuilder().build(), TraceBuilder().reading(used_bytes=5 * GiB).build()])
def test_trace_without_allocations_has_a_page(trace: Trace) -> None:
    assert "Environment and recording" in Elements(render_page(find_page([trace]))).text


def test_page_of_a_process_without_a_recorded_allocator_says_so_and_shows_nvml_alone() -> None:
    text = Elements(render_page(find_page([unrecorded_trace()]))).text
    assert "was not recorded; NVML saw this process hold 8.79 GiB of it at most." in text
    assert "At the end, 2.00 s in, after event 2; NVML read then." in text
    for untrue in ("Nothing was allocated", "CUDA context (", "Reserved at most", "never", "Block sizes"):
        assert untrue not in text, untrue


def test_ledger_adds_up_to_what_nvml_says() -> None:
    builder = TraceBuilder(block_bytes_known=True).reading(process_bytes=500 * MiB, used_bytes=600 * MiB)
    builder.segment(20 * MiB).alloc("a", 5 * MiB)
    builder.reading(process_bytes=520 * MiB, used_bytes=620 * MiB, total_bytes=140 * GiB, free_bytes=139 * GiB)
    text = Elements(render_page(find_page([builder.build()]))).text
    assert "This process520.00 MiB" in text
    assert "together 520.00 MiB." in text


def cache_of(block_bytes: int, line: int) -> Trace:
    builder = TraceBuilder(block_bytes_known=True).segment(100 * MiB)
    builder.alloc("weights", 4 * MiB, stack=[("/w/train.py", 3, "load")])
    return builder.alloc("cache", block_bytes, stack=[("/w/train.py", line, "build_cache")]).build()


def test_two_traces_are_compared_and_each_can_be_shown() -> None:
    page = render_page(find_page([cache_of(10 * MiB, 40), cache_of(40 * MiB, 41)]))
    text = Elements(page).text
    assert "train.py:41 build_cache holds 30.00 MiB more (10.00 → 40.00 MiB, 1 block); no other site changed." in text
    found, _ = document(page)
    assert [view["trace"] for view in found["views"]] == [0, 1]
    assert found["first_view"] == 0
    marked = [
        int(attributes["data-mark"] or -1)
        for name, attributes in Elements(page).elements
        if name == "tr" and "data-mark" in attributes
    ]
    assert [found["sites"][number]["line"] for number in marked] == [41]


def test_ranks_begin_with_a_table_and_the_one_that_reserved_the_most() -> None:
    small = TraceBuilder(block_bytes_known=True, rank=0).segment(2 * MiB).alloc("a", MiB).build()
    large = TraceBuilder(block_bytes_known=True, rank=1).segment(20 * MiB).alloc("a", MiB).build()
    page = render_page(find_page([small, large, small]))
    assert document(page)[0]["first_view"] == 1
    text = Elements(page).text
    assert "rank 1, train.4711.gpumem, device 0 reserved the most: 20.00 MiB" in text
    assert text.index("Processes and devices") < text.index("At most")


def test_steps_that_are_too_many_are_thinned_and_named_marks_are_kept() -> None:
    builder = TraceBuilder(block_bytes_known=True)
    for number in range(1500):
        builder.step()
        if number % 100 == 0:
            builder.mark(f"mark {number}")
    (trace,) = page_of(builder.build())[0]["traces"]
    assert trace["mark_count"] == 1515
    assert [mark["name"] for mark in trace["marks"] if mark["kind"] == "mark"] == [
        f"mark {n}" for n in range(0, 1500, 100)
    ]
    assert [mark["step"] for mark in trace["marks"] if mark["kind"] == "step"] == list(range(0, 1500, 3))


def test_page_without_a_figure_carries_no_plotly() -> None:
    page = render_page(find_page([TraceBuilder().build()]))
    assert 'id="gm-plotly"' not in page
    assert "plotly.js" not in Elements(page).text


def test_page_of_a_trace_in_which_nothing_repeats_stays_below_its_bound() -> None:
    page = render_page(find_page([busy_trace(20_000)]))
    assert len(page.encode()) < 6 << 20
    found, columns = document(page)
    curves = found["views"][0]["curves"]
    assert len(column(curves["event"], columns)) < 20_000
    assert max(column(curves["held_bytes"], columns)) == found["views"][0]["peak"]["bytes"]


def test_coarser_page_is_smaller_and_has_the_same_peak() -> None:
    trace = busy_trace(5_000)
    fine, coarse = (render_page(find_page([trace], coarseness=coarseness)) for coarseness in (1, 16))
    assert len(script(coarse, "gm-payload")) < 0.6 * len(script(fine, "gm-payload"))
    assert document(coarse)[0]["views"][0]["peak"] == document(fine)[0]["views"][0]["peak"]


@settings(max_examples=15, deadline=None)
@given(traces(), traces())
def test_any_two_traces_make_a_page(one: tuple[Trace, int, bool], other: tuple[Trace, int, bool]) -> None:
    found, _ = document(render_page(find_page([one[0], other[0]])))
    devices = [sorted(view["device"] for view in found["views"] if view["trace"] == number) for number in (0, 1)]
    known = [sorted(plain_states(trace, known=known)) for trace, _, known in (one, other)]
    assert all(set(plain) <= set(drawn) for plain, drawn in zip(known, devices, strict=True))


def test_peak_is_one_bar_of_the_sites_that_held_most_named_with_bytes_and_share() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(200 * MiB)
    for number, mebibytes in enumerate((40, 20, 10, 8, 7, 6, 5, 4)):
        builder.alloc(f"b{number}", mebibytes * MiB, stack=[("/w/train.py", number + 1, f"layer_{number}")])
    text = render_page(find_page([builder.build()]))
    bar = text[text.index('class="peak-bar"') : text.index('class="figures"')]
    assert re.findall(r"width:([\d.]+)%", bar) == ["40.00", "20.00", "10.00", "8.00", "7.00", "6.00", "9.00"]
    assert re.findall(r"background:var\(--([\w-]+)\)", bar)[:7] == [*(f"site-{n}" for n in range(6)), "idle"]
    assert re.findall(r">(\w+ \(train.py:\d\))<", bar) == [f"layer_{n} (train.py:{n + 1})" for n in range(6)]
    assert "40.00 MiB (40.0 %)" in bar
    assert "2 other sites" in bar
    assert "9.00 MiB (9.0 %)" in bar


def test_site_colours_of_text_scripts_and_styles_are_as_many() -> None:
    assets = files("gpumem.render.html") / "assets"
    assert f"const SITE_COLOURS = {SITE_COLOURS};" in (assets / "gm.js").read_text(encoding="utf-8")
    colours = re.findall(r"--site-(\d+):", (assets / "page.css").read_text(encoding="utf-8"))
    assert sorted(map(int, colours)) == sorted([*range(SITE_COLOURS)] * 3)


def test_blocks_without_a_stack_begin_a_sentence_with_a_capital() -> None:
    trace = TraceBuilder(block_bytes_known=True).segment(20 * MiB).alloc("a", MiB).build()
    assert "Code without a Python stack held 1.00 MiB of them" in Elements(render_page(find_page([trace]))).text


def test_a_comparison_begins_with_what_changed_under_the_names_of_both() -> None:
    traces = [replace(training_trace(block_bytes_known=True), path=Path(name)) for name in ("a.gpumem", "b.gpumem")]
    text = render_page(find_page(traces))
    assert "<h1>a.gpumem → b.gpumem</h1>" in text
    assert re.findall(r'<section id="([\w-]+)"', text)[:4] == ["title", "diff", "ranks", "verdict"]


def test_places_that_are_not_known_are_left_out() -> None:
    stacks = [("??", 0, "at::empty(long)"), ("Blas.cpp", 0, "at::gemm"), ("/w/train.py", 3, "main")]
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    for number, frame in enumerate(stacks):
        builder.alloc(f"b{number}", (3 - number) * MiB, stack=[frame])
    text = Elements(render_page(find_page([builder.build()]))).text
    assert "at::empty(long) held 3.00 MiB of them" in text
    assert "with at::gemm (Blas.cpp) and main (train.py:3) it is 100.0 %" in text
    assert "?:0" not in text
    assert "cpp:0" not in text
