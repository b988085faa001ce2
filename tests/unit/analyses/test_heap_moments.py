"""The heap at chosen moments: which moments, cells that tile segments, gaps and what pins them, bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses import heap_moments
from gpumem.analyses.heap_cells import Cells, CellState, merge_cells
from gpumem.analyses.heap_moments import CELLS_MAX, HeapMoment, find_heap_moments
from gpumem.analyses.moments_chosen import MOMENTS_MAX, choose_moments
from gpumem.heap.scan import scan_nothing, scan_trace, whole
from gpumem.heap.state import heap_at
from gpumem.heap.stops import heaps_at
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal
from random_traces import CutEvents, traces
from trace_builder import KiB, MiB, TraceBuilder

DEVICE = DeviceOrdinal(0)
LOOP = [("train.py", 7, "loop")]
KEEP = [("cache.py", 3, "keep")]


def moments_of(trace: Trace, device: DeviceOrdinal = DEVICE, *, cells_max: int = CELLS_MAX) -> heap_moments.HeapMoments:
    (scan,) = [scan for scan in scan_trace(trace) if scan.device == device] or [
        scan_nothing(trace, device, whole(trace))
    ]
    chosen = choose_moments(trace, scan)
    heaps = heaps_at(trace, [one.instant.event for one in chosen], device=device)
    return find_heap_moments(trace, device, chosen, heaps, cells_max=cells_max)


def moment_named(found: heap_moments.HeapMoments, name: str) -> HeapMoment:
    return next(one for one in found.moments if name in one.moment.names)


def gappy() -> TraceBuilder:
    """Two segments of 20 MiB: the first with a gap on each side of a kept block, the second free."""
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    builder.alloc("a", 8 * MiB, stack=LOOP).alloc("kept", 1 * MiB, stack=KEEP).alloc("b", 4 * MiB, stack=LOOP)
    builder.segment(20 * MiB).alloc("c", 12 * MiB).free("a").free("b").free("c")
    return builder


def test_moments_are_start_of_use_peaks_marks_steps_and_end() -> None:
    builder = gappy().mark("evaluated").step().oom(1 << 40)
    names = [one.moment.names for one in moments_of(builder.build(), DEVICE).moments]
    assert names == [["event:1"], ["peak:reserved"], ["peak"], ["mark:evaluated"], ["step:0"], ["oom", "end"]]


def test_many_marks_and_steps_are_chosen_evenly() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 512)
    for number in range(100):
        builder.mark(f"m{number}").step()
    found = moments_of(builder.build(), DEVICE).moments
    assert MOMENTS_MAX - 2 <= len(found) <= MOMENTS_MAX
    names = [name for one in found for name in one.moment.names]
    assert {"mark:m0", "mark:m99", "step:0", "step:99"} <= set(names)


def test_cells_say_what_is_allocated_gap_and_releasable() -> None:
    end = moment_named(moments_of(gappy().build(), DEVICE), "end")
    states = [
        (CellState(state), int(held) // MiB) for state, held in zip(end.cells.state, end.cells.cell_bytes, strict=True)
    ]
    assert states == [
        (CellState.GAP, 8),
        (CellState.ALLOCATED, 1),
        (CellState.GAP, 11),
        (CellState.RELEASABLE, 20),
    ]
    assert end.cells.is_pinning.tolist() == [False, True, False, False]
    assert end.figures is not None
    assert (end.figures.gap_bytes, end.figures.releasable_bytes) == (19 * MiB, 20 * MiB)


def test_a_pinned_segment_names_the_stack_beside_its_gaps() -> None:
    end = moment_named(moments_of(gappy().build(), DEVICE), "end")
    (pinned,) = end.pinned
    assert (pinned.segment, pinned.gap_bytes, pinned.held_bytes, pinned.block_count) == (0, 19 * MiB, 1 * MiB, 1)
    (pin,) = pinned.pins
    assert (pin.stack, pin.held_bytes, pin.block_count) == (2, 1 * MiB, 1)


def test_whole_pages_of_an_expandable_segment_are_releasable_and_the_rest_gap() -> None:
    builder = TraceBuilder(block_bytes_known=True).map(20 * MiB).map(20 * MiB).map(20 * MiB)
    builder.segments["whole"] = replace(builder.segments["segment 0"], segment_bytes=60 * MiB)
    builder.segments["segment 0"].live = builder.segments["segment 1"].live = builder.segments["segment 2"].live = False
    builder.alloc("a", 18 * MiB, stack=LOOP).alloc("b", 12 * MiB, stack=LOOP).free("b")
    end = moment_named(moments_of(builder.build(), DEVICE), "end")
    cells = [
        (CellState(state), int(held) // MiB) for state, held in zip(end.cells.state, end.cells.cell_bytes, strict=True)
    ]
    assert cells == [(CellState.ALLOCATED, 18), (CellState.GAP, 2), (CellState.RELEASABLE, 40)]


def test_without_block_bytes_cells_are_requests_and_figures_unknown() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 1000).alloc("b", 3000)
    end = moment_named(moments_of(builder.build(), DEVICE), "end")
    assert end.figures is None
    assert end.cells.cell_bytes.tolist() == [1000, 3000]
    assert end.requested_bytes == 4000


def test_small_segments_beyond_the_limit_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_moments, "SEGMENTS_MAX", 1)
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 1 * MiB)
    builder.segment(20 * MiB).alloc("b", 3 * MiB)
    end = moment_named(moments_of(builder.build(), DEVICE), "end")
    assert [one.segment_bytes for one in end.segments] == [20 * MiB]
    assert (end.left_out.segment_count, end.left_out.reserved_bytes, end.left_out.held_bytes) == (1, 2 * MiB, 1 * MiB)
    assert (end.segment_count, end.reserved_bytes) == (2, 22 * MiB)


def test_many_cells_are_merged_and_keep_their_sums() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    for number in range(200):
        builder.alloc(f"b{number}", 4 * KiB)
    for number in range(0, 200, 2):
        builder.free(f"b{number}")
    end = moment_named(moments_of(builder.build(), DEVICE, cells_max=40), "end")
    assert end.merged_count == 201
    assert len(end.cells) <= 40 // 4
    assert int(end.cells.cell_bytes.sum()) == 20 * MiB
    assert int(end.cells.allocated_bytes.sum()) == 100 * 4 * KiB
    assert int(end.cells.block_count.sum()) == 100


def test_neighbours_of_one_state_are_merged_before_any_others() -> None:
    state = np.array([0, 0, 0, 2, 0], np.int64)
    cell_bytes = np.array([512, 1024, 512, 1 << 20, 512], np.int64)
    some = np.arange(5)
    cells = Cells(
        segment=np.zeros(5, np.int64),
        offset=np.concatenate([[0], np.cumsum(cell_bytes)[:-1]]),
        cell_bytes=cell_bytes,
        state=state,
        allocated_bytes=np.where(state == 0, cell_bytes, 0),
        block_count=(state == 0).astype(np.int64),
        stack=some,
        event=some,
        is_pinning=np.zeros(5, np.bool_),
    )
    merged = merge_cells(cells, 3)
    assert merged.cell_bytes.tolist() == [2048, 1 << 20, 512]
    assert merged.state.tolist() == [0, 2, 0]
    assert merged.stack.tolist() == [1, 3, 4]
    assert merged.block_count.tolist() == [3, 0, 1]


def requests_in_turn(freed: range) -> HeapMoment:
    """200 requests of 100 bytes less than their blocks in the first of two segments, less those freed, at the end."""
    builder = TraceBuilder(block_bytes_known=False).segment(20 * MiB).segment(2 * MiB)
    for number in range(200):
        builder.alloc(f"b{number}", 4 * KiB - 100)
    for number in freed:
        builder.free(f"b{number}")
    return moment_named(moments_of(builder.build(), DEVICE, cells_max=20), "end")


def test_requests_that_rounding_alone_keeps_apart_are_merged() -> None:
    end = requests_in_turn(range(60, 180))
    assert end.merged_count == 80
    assert end.cells.state.tolist() == [CellState.ALLOCATED] * 2
    assert end.cells.block_count.tolist() == [60, 20]
    assert end.cells.cell_bytes.tolist() == [60 * (4 * KiB - 100), 20 * (4 * KiB - 100)]


def test_requests_that_do_not_touch_are_merged_with_what_lies_between() -> None:
    end = requests_in_turn(range(1, 200, 2))
    assert end.merged_count == 100
    assert end.cells.state.tolist() == [CellState.MIXED]
    assert end.cells.block_count.tolist() == [100]
    assert end.cells.allocated_bytes.tolist() == [100 * (4 * KiB - 100)]
    assert end.cells.cell_bytes.tolist() == [199 * 4 * KiB - 100]


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(1, 8))
def test_cells_tile_the_segments_of_every_moment(case: tuple[Trace, int, bool], cells_max: int) -> None:
    trace, length, known = case
    cut = replace(trace, events=CutEvents(trace, length))
    found = moments_of(cut, DeviceOrdinal(0), cells_max=cells_max * 10)
    for one in found.moments:
        heap = next((h for h in heap_at(trace, one.moment.instant.event) if h.device == 0), None)
        assert list(one.segments) == ([state.segment for state in heap.segments] if heap else [])
        if known:
            sizes = np.bincount(one.cells.segment, one.cells.cell_bytes, len(one.segments)) if len(one.cells) else []
            assert list(sizes) == [segment.segment_bytes for segment in one.segments]
            assert one.figures is not None
            assert int(one.cells.allocated_bytes.sum()) == one.figures.allocated_bytes
        else:
            assert len(one.cells) <= max(len(one.segments), cells_max * 10 // len(found.moments))
            assert one.unplaced_bytes + int(one.cells.allocated_bytes.sum()) == one.requested_bytes
