"""Foreign text, and points in a trace, as every report writes them."""

from __future__ import annotations

from gpumem.analyses.snapshot import find_snapshot
from gpumem.heap.instants import find_instant
from gpumem.render.html.markup import sentence
from gpumem.render.terminal.snapshot import render_snapshot
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.render.text import device_phrase, instant_text
from gpumem.trace.moments import parse_moment
from gpumem.units import GIB, MIB
from tests.trace_builder import TraceBuilder

PAGE = Page(80, UNICODE)
SECOND = 1_000_000_000


def test_figures_of_a_sentence_stay_with_their_units_on_the_page() -> None:
    assert sentence("<b> 1,024.50 MiB (7.5 %) in 3 blocks") == (
        '&lt;b&gt; <span class="whole">1,024.50 MiB</span> (<span class="whole">7.5 %</span>) in 3 blocks'
    )


def test_device_in_a_sentence_has_its_article() -> None:
    assert f"of {device_phrase('NVIDIA H200', 0)}'s 24.00 GiB" == "of the NVIDIA H200's 24.00 GiB"
    assert f"of {device_phrase('simulated device', 0)}'s 24.00 GiB" == "of the simulated device's 24.00 GiB"
    assert device_phrase("a\nname", 0) == "the a\\nname"
    assert device_phrase(None, 2) == device_phrase("", 2) == "device 2"


def test_point_in_a_trace_says_what_came_before_it() -> None:
    assert instant_text(0, -1) == "the start"
    assert instant_text(SECOND, -1) == "1.00 s (before the first event)"
    assert instant_text(9_850_000_000, 8212) == "9.85 s (after event 8,212)"


def test_snapshot_of_a_time_before_the_first_event_is_not_of_the_start() -> None:
    trace = TraceBuilder().wait(3 * SECOND).segment(2 * MIB).build()
    shown = render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("1s"))), PAGE).plain
    assert shown.startswith("At 1.00 s (before the first event): ")


def test_free_bytes_stand_beside_the_card_as_cuda_counts_it() -> None:
    builder = TraceBuilder().device_facts(capacity_bytes=8 * GIB).segment(2 * MIB)
    builder.reading(free_bytes=7 * GIB, total_bytes=9 * GIB, reserved_bytes=1 * GIB)
    trace = builder.build()
    shown = render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("end"))), PAGE).plain
    assert "free 7.00 GiB of 8.00 GiB" in " ".join(shown.split())


def test_one_block_outside_every_segment_is_counted_as_one() -> None:
    builder = TraceBuilder().segment(2 * MIB).alloc("a", 100)
    builder.rows[0]["kind"] = 5  # the segment's own event is missing
    trace = builder.build()
    shown = render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("end"))), PAGE).plain
    assert "1 block lies in segments that the recording does not know." in shown
