"""Lists that are cut say what is left out."""

from __future__ import annotations

import json
from dataclasses import replace

from gpumem.analyses.explain import find_explanation
from gpumem.analyses.page import find_page
from gpumem.analyses.summary import summarise_trace
from gpumem.analyses.timeline import find_timeline
from gpumem.heap.instants import find_instant
from gpumem.render.html.page import render_page
from gpumem.render.json import render_timeline as render_json_timeline
from gpumem.render.terminal.explain import render_explanation
from gpumem.render.terminal.run_end import render_run_end
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import UNICODE, Page, site_text
from gpumem.render.terminal.timeline import render_timeline
from gpumem.trace.moments import parse_moment
from gpumem.units import GIB, MIB
from gpumem.vocabulary import TraceSource
from trace_builder import TraceBuilder

SECOND = 1_000_000_000


def test_pinned_segments_that_are_not_listed_are_summed() -> None:
    builder = TraceBuilder(block_bytes_known=True)
    for number in range(5):
        builder.segment(20 * MIB).alloc(f"pin{number}", 12 * MIB)
    shown = render_explanation(find_explanation(builder.build()), Page(80, UNICODE)).plain
    assert "It cannot return 40.00 MiB of gaps in 5 segments" in shown
    assert "    (2 more segments, 16.00 MiB of gaps)\n" in shown


def test_function_of_cpp_stands_without_its_parameters() -> None:
    function = "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"
    assert site_text("??", 0, function, 80, "…") == "torch::autograd::generated::AddmmBackward0::apply"
    assert site_text("Blas.cpp", 0, "at::gemm(int)", 80, "…") == "Blas.cpp at::gemm"
    assert site_text("a.cpp", 3, "at::(anonymous namespace)::f(int)", 80, "…") == "a.cpp:3 at::(anonymous namespace)::f"


def test_summary_of_a_shared_card_says_what_others_hold_of_the_rest() -> None:
    builder = TraceBuilder(block_bytes_known=True).device_facts(capacity_bytes=8 * GIB).segment(1 * GIB)
    builder.alloc("a", 1 * GIB).reading(process_bytes=2 * GIB, other_processes_bytes=3 * GIB)
    shown = render_summaries([summarise_trace(builder.build())], Page(120, UNICODE)).plain
    assert "which leaves 7.00 GiB of that, 3.00 GiB of it held by other processes." in " ".join(shown.split())


def test_window_before_the_first_event_is_named_by_its_times() -> None:
    trace = TraceBuilder().wait(3 * SECOND).segment(2 * MIB).build()
    start, end = (find_instant(trace, parse_moment(text)) for text in ("0s", "1s"))
    shown = render_summaries([summarise_trace(trace, start=start, end=end)], Page(120, UNICODE)).plain
    assert "Only from the start to 1.00 s (before the first event):" in shown


def test_active_bytes_say_what_they_hold_beyond_allocated_ones() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MIB).alloc("a", 1 * MIB).free_requested("a")
    shown = render_summaries([summarise_trace(builder.build())], Page(80, UNICODE)).plain
    (row,) = (line for line in shown.splitlines() if line.startswith("active"))
    assert row.endswith("with pending blocks")


def test_recording_that_ended_for_want_of_memory_says_so() -> None:
    summary = summarise_trace(TraceBuilder(ended_by="no_memory").segment(2 * MIB).alloc("a", 512).build())
    lost = "no memory left for its events: recording stopped there, the program went on"
    assert lost in " ".join(render_summaries([summary], Page(80, UNICODE)).plain.split())
    assert f"  the process had {lost}" in render_run_end([summary], Page(120, UNICODE))


def test_trace_of_nothing_at_all_does_not_say_that_nothing_was_used() -> None:
    trace = TraceBuilder(source=TraceSource.NONE).mark("start").build()
    bare = replace(trace, meta=replace(trace.meta, devices=()))
    said = "Neither an allocator nor a reading of a device was recorded"
    page = Page(80, UNICODE)
    assert said + "." in render_summaries([summarise_trace(bare)], page).plain
    assert said in render_explanation(find_explanation(bare), page).plain.replace("\n", " ")
    assert said + "." in render_page(find_page([bare]))


def test_expandable_segments_that_never_shrank_are_not_said_to_have() -> None:
    trace = TraceBuilder().map(20 * MIB).map(20 * MIB).alloc("a", MIB).build()
    text = render_summaries([summarise_trace(trace)], Page(120, UNICODE)).plain
    assert "2 obtained (expandable ones grew 2 times), 0 returned, for 1 alloc and 0 frees" in text


def test_peak_without_any_stack_is_not_laid_to_autograd() -> None:
    text = render_summaries(
        [summarise_trace(TraceBuilder().segment(2 * MIB).alloc("a", MIB).build())], Page(120, UNICODE)
    )
    assert "(no Python stack: not recorded, or C++ alone)" in text.plain


def test_marks_of_one_name_are_told_apart_below_the_curves() -> None:
    builder = TraceBuilder().segment(2 * MIB).mark("loss").alloc("a", MIB).mark("loss").mark("loss:3").mark("loss")
    trace = builder.build()
    found = find_timeline(trace, start=find_instant(trace, parse_moment("event:2")))
    text = render_timeline(found, Page(120, UNICODE)).plain
    assert "A loss:2 (4.00 ms)   B loss:3 (5.00 ms)   C loss = event:5 (6.00 ms)" in text
    marks = json.loads(render_json_timeline(found))["devices"][0]["marks"]
    assert [(one["name"], one["moment"]) for one in marks] == [
        ("loss", "mark:loss:2"),
        ("loss:3", "mark:loss:3"),
        ("loss", "event:5"),
    ]
