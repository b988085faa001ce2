"""Figures of the page beside those of the commands: the same, in the same order, out of the same whole."""

from __future__ import annotations

import re

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.page import find_page
from gpumem.render.diff_words import device_figures
from gpumem.render.html.page import render_page
from gpumem.render.terminal.diff import render_diff
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.render.text import FIGURE_AND_UNIT
from gpumem.trace.model import Trace
from trace_builder import GiB, MiB, TraceBuilder
from training_trace import training_trace

PAGE = Page(120, UNICODE)


def shown_texts(*traces: Trace) -> list[str]:
    """The texts of a page, each piece between two tags, in order; a figure held together with its unit is no piece."""
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", render_page(find_page(traces)))
    page = re.sub(r'<span class="whole">([^<>]+)</span>', r"\1", page)
    return re.findall(r">([^<>]+)<", page)


def test_refused_requests_are_counted_among_all_requests() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 10).alloc("b", 10)
    assert "never in 2 requests" in " ".join(shown_texts(builder.build()))
    builder.oom(GiB, free=MiB, total=GiB)
    assert "1 time in 3 requests" in " ".join(shown_texts(builder.build()))


def test_a_comparison_has_the_figures_of_the_terminal_in_its_order() -> None:
    before, after = (TraceBuilder(block_bytes_known=True).segment(9 * MiB).alloc("a", n).build() for n in (10, 2000))
    diff = compare_traces(before, after)
    names = [name for name, _ in device_figures(diff, diff.devices[0])]
    assert names == ["requested", "allocated", "reserved", "peak of reserved"]
    assert [text for text in shown_texts(before, after) if text in names][: len(names)] == names


def test_no_single_device_is_said_to_have_reserved_the_most_where_several_did() -> None:
    traces = [TraceBuilder(rank=rank).segment(20 * MiB).alloc("a", MiB).build() for rank in (0, 1)]
    texts = shown_texts(*traces, TraceBuilder(rank=2).segment(2 * MiB).build())
    (said,) = [text for text in texts if "the most" in text]
    assert said.startswith("2 of 3 reserved the most, 20.00 MiB each: rank 0, train.4711.gpumem, device 0, ")


def test_page_says_that_no_block_has_a_stack_where_none_has() -> None:
    builder = TraceBuilder().segment(20 * MiB).alloc("a", MiB)
    assert "none of the blocks at the peak has one" in shown_texts(builder.build())
    builder.alloc("b", MiB, stack=[("/w/train.py", 3, "load")])
    texts = shown_texts(builder.build())
    assert texts[texts.index("Call stacks") + 1] == "recorded"


def test_a_comparison_without_any_stack_lays_nothing_at_autograd_s_door() -> None:
    before, after = (TraceBuilder().segment(9 * MiB).alloc("a", byte_count).build() for byte_count in (10, 2000))
    assert "(no Python stack: not recorded, or C++ alone)" in render_diff(compare_traces(before, after), PAGE).plain


def test_no_paragraph_may_part_a_figure_from_its_unit() -> None:
    traces = [training_trace(block_bytes_known=True, oom=oom) for oom in (False, True)]
    for shown in (traces, traces[1:]):
        page = re.sub(r'<span class="whole">[^<>]+</span>', "", render_page(find_page(shown)))
        paragraphs = re.findall(r"<p\b[^>]*>(.*?)</p>", page, re.DOTALL)
        assert len(paragraphs) > 10
        assert [text for text in paragraphs if FIGURE_AND_UNIT.search(text)] == []
