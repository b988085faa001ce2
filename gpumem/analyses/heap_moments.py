"""The heap of a device at the moments of a trace that are worth a picture.

Owns: segments as cells, their sums, the gaps with what pins them. Must not know: readings, JSON, pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpumem.analyses.heap_cells import Cells, CellState, cut_cells, cut_requests, merge_cells
from gpumem.analyses.moments_chosen import NamedInstant
from gpumem.analyses.sites import SiteFinder
from gpumem.heap.figures import HeapFigures, lay_out_heap, measure_layout
from gpumem.heap.levels import basis_of
from gpumem.heap.segments import Segment
from gpumem.heap.stops import HeapTable
from gpumem.trace.model import Trace
from gpumem.vocabulary import Basis, DeviceOrdinal, FrameId, StackId

CELLS_MAX = 60_000
"""Of all moments together."""
SEGMENTS_MAX = 2000
PINNED_MAX = 12
PINS_MAX = 6


@dataclass(frozen=True, slots=True)
class SegmentsLeftOut:
    """Small segments that are summed, not drawn."""

    segment_count: int
    reserved_bytes: int
    block_count: int
    """Blocks in use in them."""
    held_bytes: int
    """Bytes of those blocks."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A site's blocks beside gaps of a segment; `stack` is the one of them that holds most."""

    stack: StackId
    held_bytes: int
    block_count: int


@dataclass(frozen=True, slots=True)
class PinnedSegment:
    """A segment that cannot go back whole: its gaps, the blocks in use in it, and those beside gaps by site."""

    segment: int
    """Row of the moment's segments."""
    gap_bytes: int
    held_bytes: int
    block_count: int
    pins: Sequence[Pin]
    """Most bytes first, at most PINS_MAX."""
    pin_count: int
    """Sites that there are."""


@dataclass(frozen=True, slots=True)
class HeapMoment:
    """The heap after an event; `figures` is None where block bytes are not known."""

    moment: NamedInstant
    segments: Sequence[Segment]
    cells: Cells
    left_out: SegmentsLeftOut
    unplaced_count: int
    """Blocks in use that lie in no segment of the trace, and their requests' bytes."""
    unplaced_bytes: int
    merged_count: int
    """Cells before small ones were merged."""
    segment_count: int
    reserved_bytes: int
    requested_bytes: int
    """Requests of allocated blocks."""
    figures: HeapFigures | None
    pinned: Sequence[PinnedSegment]
    """Most gap bytes first, at most PINNED_MAX."""
    pinned_count: int


@dataclass(frozen=True, slots=True)
class HeapMoments:
    """A device's heap at its moments, in order of time."""

    device: DeviceOrdinal
    basis: Basis
    moments: Sequence[HeapMoment]


def find_heap_moments(
    trace: Trace,
    device: DeviceOrdinal,
    chosen: Sequence[NamedInstant],
    heaps: Sequence[HeapTable],
    *,
    cells_max: int = CELLS_MAX,
) -> HeapMoments:
    """The heap of one device at the chosen moments, `heaps` being those after their events, in `cells_max` cells.

    Raises TraceTruncated, naming the event, where blocks overlap or lie in no segment though their bytes are known.
    """
    share = cells_max // max(1, len(chosen))
    finder = SiteFinder(trace)
    basis = basis_of(trace, device)
    found = [_heap_moment(trace, basis, finder, one, heap, share) for one, heap in zip(chosen, heaps, strict=True)]
    return HeapMoments(device, basis, found)


def _heap_moment(
    trace: Trace,
    basis: Basis,
    finder: SiteFinder,
    moment: NamedInstant,
    table: HeapTable,
    cells_max: int,
) -> HeapMoment:
    segments, blocks = table.segments, table.blocks
    figures = None
    unplaced_count = unplaced_bytes = 0
    if basis is Basis.ALLOCATED:
        layout = lay_out_heap(segments, blocks, table.event, str(trace.path))
        figures = measure_layout(segments, blocks, layout)
        cells = cut_cells(layout, blocks)
    else:
        cells = cut_requests(segments, blocks)
        unplaced_count = len(blocks) - len(cells)
        unplaced_bytes = int(blocks["requested_bytes"].sum()) - int(cells.cell_bytes.sum())
    drawn, drawn_cells, left_out = _leave_out_small(segments, cells)
    pinned = _find_pinned(drawn_cells, finder)
    return HeapMoment(
        moment,
        drawn,
        merge_cells(drawn_cells, cells_max),
        left_out,
        unplaced_count,
        unplaced_bytes,
        merged_count=len(drawn_cells),
        segment_count=len(segments),
        reserved_bytes=sum(segment.segment_bytes for segment in segments),
        requested_bytes=int(blocks["requested_bytes"].astype(np.int64)[~blocks.pending].sum()),
        figures=figures,
        pinned=pinned[:PINNED_MAX],
        pinned_count=len(pinned),
    )


def _leave_out_small(segments: Sequence[Segment], cells: Cells) -> tuple[Sequence[Segment], Cells, SegmentsLeftOut]:
    """The SEGMENTS_MAX largest segments with their cells, and the sums of the others."""
    if len(segments) <= SEGMENTS_MAX:
        return segments, cells, SegmentsLeftOut(0, 0, 0, 0)
    sizes = np.array([segment.segment_bytes for segment in segments])
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:SEGMENTS_MAX])
    row_of = np.full(len(segments), -1)
    row_of[drawn] = np.arange(SEGMENTS_MAX)
    is_drawn = row_of[cells.segment] >= 0
    others = cells.select(~is_drawn & (cells.block_count > 0))
    left_out = SegmentsLeftOut(
        len(segments) - SEGMENTS_MAX,
        int(sizes.sum() - sizes[drawn].sum()),
        int(others.block_count.sum()),
        int(others.cell_bytes.sum()),
    )
    kept = cells.select(is_drawn)
    return [segments[row] for row in drawn.tolist()], replace(kept, segment=row_of[kept.segment]), left_out


def _find_pinned(cells: Cells, finder: SiteFinder) -> list[PinnedSegment]:
    """The segments with gaps and blocks in use, most gap bytes first, then fewest bytes in use."""
    count = int(cells.segment.max()) + 1 if len(cells) else 0
    in_use = cells.block_count > 0
    gap_bytes = _sums(cells, cells.state == CellState.GAP, count)
    held_bytes = _sums(cells, in_use, count)
    block_count = np.bincount(cells.segment[in_use], minlength=count)
    rows = np.flatnonzero((gap_bytes > 0) & (block_count > 0))
    rows = rows[np.lexsort((rows, held_bytes[rows], -gap_bytes[rows]))]
    found = []
    for position, row in enumerate(rows.tolist()):
        pins = _pins(cells, row, finder) if position < PINNED_MAX else []
        figures = (int(gap_bytes[row]), int(held_bytes[row]), int(block_count[row]))
        found.append(PinnedSegment(row, *figures, pins[:PINS_MAX], len(pins)))
    return found


def _sums(cells: Cells, chosen: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, cells.segment[chosen], cells.cell_bytes[chosen])
    return sums


def _pins(cells: Cells, segment: int, finder: SiteFinder) -> list[Pin]:
    """The blocks beside gaps of a segment by site, most bytes first."""
    chosen = cells.is_pinning & (cells.segment == segment)
    stacks, where = np.unique(cells.stack[chosen], return_inverse=True)
    held_bytes = np.zeros(len(stacks), np.int64)
    np.add.at(held_bytes, where, cells.cell_bytes[chosen])
    counts = np.bincount(where, minlength=len(stacks))
    by_site: dict[FrameId | None, Pin] = {}
    for at in np.lexsort((stacks, -held_bytes)).tolist():
        stack = StackId(int(stacks[at]))
        site = finder.site_frame(stack)
        before = by_site.get(site) or Pin(stack, 0, 0)
        by_site[site] = replace(
            before,
            held_bytes=before.held_bytes + int(held_bytes[at]),
            block_count=before.block_count + int(counts[at]),
        )
    return sorted(by_site.values(), key=lambda pin: (-pin.held_bytes, pin.stack))
