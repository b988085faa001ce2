"""What the reports look like, at 80 and 120 columns, in plain text: the files in tests/golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from explained_traces import unrecorded_trace
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
from gpumem.trace.model import DeviceFacts, Trace
from gpumem.trace.moments import parse_moment
from narrow_page import NARROW, check_narrow
from oom_messages import classic, cupy, gpumem, modern
from trace_builder import MS, GiB, MiB, TraceBuilder
from training_trace import training_trace

Golden = Callable[[str, str], None]
PAGES = {
    "80": Page(80, UNICODE),
    "120": Page(120, UNICODE),
    "ascii": Page(80, ASCII),
}
HOSTILE = [("/tmp/[bold red]\x1b[31m\udcff\u202e/" + "x" * 90 + ".py", 123456, "f" * 80 + "[/]\n")]


def several_devices() -> Trace:
    """Two devices, three streams, a private pool, expandable and pending blocks, a limit, lost events."""
    builder = TraceBuilder(records_lost=3, ended_by="signal 9", stacks_off="this Python is free-threaded.")
    builder.device_facts(0, name="NVIDIA H200", capacity_bytes=2 * GiB, memory_limit_bytes=1 * GiB)
    builder.segment(1400 * MiB).alloc("big", 1300 * MiB).mark("a" * 100)
    builder.on(stream=0x55D0C8A1F3B0, pool=(1, 0)).segment(20 * MiB).alloc("graph", 11 * MiB).free_requested("graph")
    builder.alloc("next", 3 * MiB).on(device=1).map(20 * MiB, "first").map(20 * MiB).map(40 * MiB, "last")
    for number in range(9):
        builder.wait(7 * MS).alloc(f"b{number}", (number % 3 + 1) * MiB)
    builder.free("b1").free("b4").unmap("last")
    builder.device_facts(1, name=None, capacity_bytes=None)
    return builder.build()


def hostile() -> Trace:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100, stack=HOSTILE).mark("[blink]x\x07\n\u202e")
    return builder.build()


def near_capacity() -> Trace:
    """A card that is nearly full, and many marks."""
    builder = TraceBuilder().device_facts(capacity_bytes=8 * GiB)
    for number in range(20):
        builder.segment(350 * MiB).alloc(f"b{number}", 300 * MiB).mark(f"block {number}")
    return builder.oom(1 * GiB, free=900 * MiB, total=8 * GiB).build()


def slow_start() -> Trace:
    """Nine seconds of imports, then three steps in 60 ms."""
    builder = TraceBuilder(block_bytes_known=True).wait(4000 * MS).segment(2 * MiB).alloc("small", MiB)
    builder.wait(5000 * MS).segment(60 * MiB).alloc("weights", 20 * MiB)
    for _ in range(3):
        builder.wait(4 * MS).alloc("a", 10 * MiB).wait(4 * MS).alloc("b", 20 * MiB).wait(4 * MS).free("a").free(
            "b"
        ).step()
    return builder.build()


TRACES = {
    "training": training_trace,
    "training_oom": lambda: training_trace(oom=True),
    "training_known": lambda: training_trace(block_bytes_known=True),
    "devices": several_devices,
    "hostile": hostile,
    "near_capacity": near_capacity,
    "not_recorded": unrecorded_trace,
    "empty": lambda: TraceBuilder().build(),
}


def ranks_of_one_log() -> str:
    """Seven ranks whose card is full, one whose card another program holds, a library's error, a worker's."""
    errors = [
        f"[rank{rank}]: "
        + modern(
            "1.96 GiB", of="79.15 GiB", free=f"{rank + 1}06.62 MiB", process="78.50 GiB", used=f"77.{rank}0 GiB",
            idle="312.00 MiB", gpu=rank,
        )
        for rank in range(7)
    ]  # fmt: skip
    errors.append(
        "[rank7]: "
        + modern(
            "9.00 GiB", of="79.15 GiB", free="1.10 GiB", others=[(90210, "41.00 GiB")], process="37.05 GiB",
            used="36.20 GiB", idle="200.00 MiB", gpu=7,
        )
    )  # fmt: skip
    errors.append(
        "(RayWorker pid=4711, ip=10.0.0.7) RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling f"
    )
    return "\n".join(errors)


OOM_LOGS = {
    "capacity": modern(
        "16.00 GiB", of="44.53 GiB", free="187.94 MiB", process="44.34 GiB", used="43.67 GiB", idle="335.07 MiB"
    ),
    "fragmentation": modern(
        "546.00 MiB", of="15.77 GiB", free="514.19 MiB", others=[(1, "15.26 GiB")], used="14.10 GiB",
        idle="736.86 MiB", pools="46.00 MiB",
    ),
    "limit": modern(
        "64.00 MiB", of="79.15 GiB", free="38.09 GiB", process="41.06 GiB", used="39.10 GiB", idle="427.46 MiB",
        release="2.1",
    ),
    "private_pools": modern(
        "1.00 GiB", of="39.39 GiB", free="300.00 MiB", process="39.09 GiB", used="38.10 GiB", pools="6.20 GiB",
        idle="412.00 MiB", release="2.11",
    ),
    "outside": modern(
        "5.00 GiB", of="39.39 GiB", free="1.20 GiB", others=[(7, "12.00 GiB"), (8, "9.50 GiB")], process="16.69 GiB",
        used="15.80 GiB", idle="210.00 MiB",
    ),
    "spill": classic("20.00 MiB", of="8.00 GiB", used="17.20 GiB", free="0 bytes", reserved="17.53 GiB"),
    "rounded": modern("3.00 GiB", of="23.65 GiB", free="1.00 GiB", used="18.00 GiB", idle="2.00 GiB"),
    "cublas": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "xla": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    "cupy": cupy(8 * GiB, 12 * GiB, 16 * GiB),
    "gpumem": gpumem("512.00 MiB", of="8.00 GiB", free="100.00 MiB", held="7.50 GiB", used="6.00 GiB").replace(
        "NVIDIA H200", "NVIDIA \x1b[31m[bold]\u202e H200"
    ),
    "ranks": ranks_of_one_log(),
}  # fmt: skip
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


def checked(text: Text, page: Page) -> str:
    """The plain text, once it is known to fit the page and to hold nothing a terminal would act on."""
    for line in text.plain.splitlines():
        assert len(line) <= page.width, line
        assert line.isprintable(), line
        assert line == line.rstrip(), line
        assert page.glyphs is UNICODE or line.isascii() or "\\" in line, line
    return text.plain
