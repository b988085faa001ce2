"""What the reports look like, at 80 and 120 columns, in plain text: the files in tests/golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem.allocator import Allocator
from gpumem.analyses.demo import Demo, find_demo
from gpumem.analyses.holdings import GroupBy
from gpumem.analyses.oom import explain_log
from gpumem.analyses.snapshot import find_snapshot
from gpumem.analyses.summary import summarise_trace
from gpumem.analyses.timeline import find_moving_timeline, find_timeline
from gpumem.heap.instants import find_instant
from gpumem.importers.oom_log import read_oom_text
from gpumem.importers.open import open_trace
from gpumem.recorder.marks import mark
from gpumem.recorder.session import record
from gpumem.render.terminal.demo import render_steps
from gpumem.render.terminal.oom import render_oom
from gpumem.render.terminal.snapshot import render_snapshot
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import ASCII, UNICODE, Page
from gpumem.render.terminal.timeline import plot_width, render_timeline
from gpumem.samples.nine_steps import run_steps
from gpumem.trace.model import DeviceFacts
from gpumem.trace.moments import parse_moment
from narrow_page import NARROW, PAGES, check_narrow, checked
from shown_traces import OOM_LOGS, TRACES, slow_start
from trace_builder import MiB
from training_trace import training_trace

Golden = Callable[[str, str], None]
OOM_LINES_MAX = {"ranks": 46}


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(TRACES))
def test_summary_looks_like_its_golden(name: str, width: str, golden: Golden) -> None:
    text = render_summaries([summarise_trace(TRACES[name]())], PAGES[width])
    golden(f"summary_{name}_{width}.txt", checked(text, PAGES[width]))


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(TRACES))
def test_timeline_looks_like_its_golden(name: str, width: str, golden: Golden) -> None:
    page = PAGES[width]
    text = render_timeline(find_timeline(TRACES[name](), buckets=plot_width(page)), page)
    golden(f"timeline_{name}_{width}.txt", checked(text, page))


@pytest.mark.parametrize("width", list(PAGES))
def test_timeline_of_a_slow_start_looks_like_its_golden(width: str, golden: Golden) -> None:
    page = PAGES[width]
    text = render_timeline(find_moving_timeline(slow_start(), buckets=plot_width(page)), page)
    golden(f"timeline_slow_start_{width}.txt", checked(text, page))


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(TRACES))
def test_snapshot_looks_like_its_golden(name: str, width: str, golden: Golden) -> None:
    trace = TRACES[name]()
    text = render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("peak"))), PAGES[width])
    golden(f"snapshot_{name}_{width}.txt", checked(text, PAGES[width]))


@pytest.mark.parametrize("name", list(TRACES))
def test_reports_of_a_trace_fit_60_columns_and_break_no_figure(name: str) -> None:
    trace = TRACES[name]()
    check_narrow(render_summaries([summarise_trace(trace)], NARROW))
    check_narrow(render_summaries([summarise_trace(trace)] * 2, NARROW))
    check_narrow(render_timeline(find_timeline(trace, buckets=plot_width(NARROW)), NARROW))
    check_narrow(render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("peak"))), NARROW))


@pytest.mark.parametrize("by", list(GroupBy), ids=lambda by: by.value)
def test_groups_fit_60_columns(by: GroupBy) -> None:
    check_narrow(render_summaries([summarise_trace(training_trace(), by=by)], NARROW, top=3))


@pytest.mark.parametrize("name", list(OOM_LOGS))
def test_error_explained_fits_60_columns(name: str) -> None:
    check_narrow(render_oom(explain_log(read_oom_text(OOM_LOGS[name])), NARROW))


@pytest.mark.parametrize("by", list(GroupBy), ids=lambda by: by.value)
def test_grouping_looks_like_its_golden(by: GroupBy, golden: Golden) -> None:
    text = render_summaries([summarise_trace(training_trace(), by=by)], PAGES["80"], top=3)
    golden(f"summary_by_{by.value}_80.txt", checked(text, PAGES["80"]))


def test_several_traces_begin_with_a_table(golden: Golden) -> None:
    found = [summarise_trace(training_trace(rank=rank, steps=rank + 1)) for rank in (0, 1)]
    golden("summaries_80.txt", checked(render_summaries(found, PAGES["80"], top=2), PAGES["80"]))


@pytest.mark.parametrize("name", ["simulated", "gpu"])
def test_demo_s_steps_look_like_their_golden(name: str, golden: Golden, tmp_path: Path) -> None:
    demo = demo_of(tmp_path)
    if name == "gpu":
        facts = DeviceFacts(0, name="NVIDIA H200", capacity_bytes=143156 * MiB)
        steps = [replace(step, nvml_process_bytes=step.reserved_bytes + 518 * MiB) for step in demo.steps]
        demo = replace(demo, device=facts, why_simulated=None, steps=steps, context_bytes=518 * MiB)
    golden(f"demo_{name}_80.txt", checked(render_steps(demo, PAGES["80"]), PAGES["80"]))


def demo_of(folder: Path) -> Demo:
    """The demo as recorded on the simulated device."""
    with record(folder / "demo.gpumem", nvml_interval=0), Allocator("simulated") as gpu:
        run_steps(gpu, mark)
    return find_demo(open_trace(folder / "demo.gpumem"), why_simulated="there is no CUDA driver (libcuda.so.1)")


def test_command_to_paste_stands_whole_on_a_line_of_its_own_where_a_page_is_narrow() -> None:
    lines = render_summaries([summarise_trace(training_trace(oom=True))], Page(40, UNICODE)).plain.splitlines()
    place = lines.index("what to do")
    assert lines[place + 1] == "  gpumem snapshot train.4711.gpumem --at oom"


def test_window_is_named(golden: Golden) -> None:
    trace = training_trace()
    start, end = (find_instant(trace, parse_moment(text)) for text in ("step:0", "step:1"))
    text = render_summaries([summarise_trace(trace, start=start, end=end)], PAGES["80"])
    golden("summary_window_80.txt", checked(text, PAGES["80"]))


@pytest.mark.parametrize("name", list(OOM_LOGS))
def test_error_explained_looks_like_its_golden(name: str, golden: Golden) -> None:
    text = render_oom(explain_log(read_oom_text(OOM_LOGS[name])), PAGES["80"])
    golden(f"oom_{name}_80.txt", checked(text, PAGES["80"]))
    assert len(text.plain.splitlines()) <= OOM_LINES_MAX.get(name, 30)


def test_overview_of_ranks_fits_a_narrow_page() -> None:
    text = render_oom(explain_log(read_oom_text(OOM_LOGS["ranks"])), Page(64, ASCII), top=4)
    lines = checked(text, Page(64, ASCII)).splitlines()
    assert lines[3] == " rank GPU    line       asked     missing  verdict"
    assert lines[8] == "5 more errors; --top 9 shows all"


@pytest.mark.parametrize("name", ["training_oom", "near_capacity"])
def test_heap_at_an_error_looks_like_its_golden(name: str, golden: Golden) -> None:
    trace = TRACES[name]()
    text = render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("oom"))), PAGES["80"])
    golden(f"snapshot_at_oom_{name}_80.txt", checked(text, PAGES["80"]))


def test_summary_of_a_device_fits_one_screen() -> None:
    for known, lines_max in ((False, 28), (True, 34)):
        text = render_summaries([summarise_trace(training_trace(oom=True, block_bytes_known=known))], PAGES["80"])
        assert len(text.plain.splitlines()) <= lines_max
