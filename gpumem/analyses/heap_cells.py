"""The heap of a moment as cells that tile its segments: blocks, holes and, where they are many, runs of small ones.

Owns: cutting segments into cells and merging small ones. Must not know: sites, JSON, pixels. numpy, no loop per block.

A run merges neighbours of one state, smaller than a threshold that is doubled until the cells are few enough; where
that does not do, neighbours of any state (MIXED), and where requests do not touch, with what lies between them. Sums
are those of what was merged: nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto

import numpy as np
import numpy.typing as npt

from gpumem.heap.figures import HeapLayout
from gpumem.heap.live import LiveTable
from gpumem.heap.segments import Segment

Integers = npt.NDArray[np.int64]
NO_EVENT = -2
ROUND_BYTES = 512
_BOUNDLESS = 1 << 62


class CellState(IntEnum):
    """What a cell holds."""

    ALLOCATED = 0
    PENDING = 1
    GAP = 2
    """Idle bytes that could not go back to the driver."""
    RELEASABLE = 3
    MIXED = 4
    """Small blocks and holes together; of a trace that does not know blocks, requests and what lies between."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Stretches of segments, by segment and offset."""

    segment: Integers
    """Row of the segment."""
    offset: Integers
    cell_bytes: Integers
    """The block's bytes; of a trace that does not know them, the request's."""
    state: Integers
    """CellState."""
    allocated_bytes: Integers
    """Of these bytes, those allocated; of a trace that does not know them, those requested."""
    block_count: Integers
    """Blocks in use in it: 1 for a block, 0 for a hole."""
    stack: Integers
    """The block's, of a run the largest block's; 0 for holes."""
    event: Integers
    """The one that made the block, of a run its largest block; NO_EVENT for holes."""
    is_pinning: npt.NDArray[np.bool_]
    """Blocks in use beside a gap: while they live, it cannot go back."""

    def __len__(self) -> int:
        return len(self.cell_bytes)

    def select(self, chosen: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Cells:
        """The cells at the chosen rows."""
        return Cells(*(getattr(self, name)[chosen] for name in Cells.__slots__))


def cut_cells(layout: HeapLayout, blocks: LiveTable) -> Cells:
    """Every block in use and every hole; a hole of which some pages are releasable makes up to three cells."""
    holes = layout.holes
    released_end = holes.releasable_offset + holes.releasable_bytes
    has_released = holes.releasable_bytes > 0
    before = np.where(has_released, holes.releasable_offset - holes.offset, holes.hole_bytes)
    behind = np.where(has_released, holes.offset + holes.hole_bytes - released_end, 0)
    cells = _join(
        [
            _block_cells(layout.segment, layout.offset, layout.block_bytes, blocks),
            _hole_cells(holes.segment, holes.offset, before, CellState.GAP),
            _hole_cells(holes.segment, holes.releasable_offset, holes.releasable_bytes, CellState.RELEASABLE),
            _hole_cells(holes.segment, released_end, behind, CellState.GAP),
        ]
    )
    cells = cells.select(cells.cell_bytes > 0)
    return _with_pinning(cells.select(np.lexsort((cells.offset, cells.segment))))


def cut_requests(segments: Sequence[Segment], blocks: LiveTable) -> Cells:
    """The requests of blocks in use, where block bytes are not known; those in no segment are left out.

    Segments and blocks are sorted by address, and so the cells are in order.
    """
    starts = np.array([segment.address for segment in segments], np.uint64)
    ends = np.array([segment.end for segment in segments], np.uint64)
    homes = np.searchsorted(starts, blocks.address, side="right") - 1
    placed = homes >= 0
    placed[placed] = blocks.address[placed] < ends[homes[placed]]
    homes, blocks = homes[placed], blocks.select(placed)
    offset = (blocks.address - starts[homes]).astype(np.int64) if len(blocks) else np.zeros(0, np.int64)
    return _block_cells(homes, offset, blocks["requested_bytes"].astype(np.int64), blocks)


def merge_cells(cells: Cells, count_max: int) -> Cells:
    """The cells with small neighbours merged into runs, as few merged as bring them to `count_max`.

    Segments bound runs: there are never fewer cells than segments with any.
    """
    if len(cells) <= count_max:
        return cells
    for reach in _Reach:
        if _runs(cells, _BOUNDLESS, reach)[-1] < count_max:
            break
    else:
        return _merged(cells, _runs(cells, _BOUNDLESS, _Reach.SEGMENT))
    bytes_max = ROUND_BYTES
    while (run := _runs(cells, bytes_max, reach))[-1] >= count_max:
        bytes_max *= 2
    return _merged(cells, run)


class _Reach(Enum):
    """Which neighbours become one run, the first that does being taken."""

    STATE = auto()
    """Those that touch, but for what rounding leaves between requests, and are of one state."""
    TOUCH = auto()
    """Those that touch like that."""
    SEGMENT = auto()
    """All in a segment: what no cell covers, as where requests alone are known, becomes part of the run."""


def _block_cells(segment: Integers, offset: Integers, block_bytes: Integers, blocks: LiveTable) -> Cells:
    return Cells(
        segment=segment.astype(np.int64),
        offset=offset,
        cell_bytes=block_bytes,
        state=np.where(blocks.pending, CellState.PENDING, CellState.ALLOCATED).astype(np.int64),
        allocated_bytes=np.where(blocks.pending, 0, block_bytes),
        block_count=np.ones(len(blocks), np.int64),
        stack=blocks["stack"].astype(np.int64),
        event=blocks.event,
        is_pinning=np.zeros(len(blocks), np.bool_),
    )


def _hole_cells(segment: Integers, offset: Integers, hole_bytes: Integers, state: CellState) -> Cells:
    count = len(segment)
    nothing = np.zeros(count, np.int64)
    return Cells(
        segment=segment,
        offset=offset,
        cell_bytes=hole_bytes,
        state=np.full(count, state, np.int64),
        allocated_bytes=nothing,
        block_count=nothing,
        stack=nothing,
        event=np.full(count, NO_EVENT, np.int64),
        is_pinning=np.zeros(count, np.bool_),
    )


def _join(parts: Sequence[Cells]) -> Cells:
    return Cells(*(np.concatenate([getattr(part, name) for part in parts]) for name in Cells.__slots__))


def _with_pinning(cells: Cells) -> Cells:
    """The cells with those blocks marked that have a gap beside them in their segment."""
    is_gap = cells.state == CellState.GAP
    same = np.diff(cells.segment) == 0
    beside = np.zeros(len(cells), np.bool_)
    beside[1:] |= is_gap[:-1] & same
    beside[:-1] |= is_gap[1:] & same
    return replace(cells, is_pinning=beside & (cells.block_count > 0))


def _runs(cells: Cells, bytes_max: int, reach: _Reach) -> npt.NDArray[np.intp]:
    """The number of each cell's run: a cell of `bytes_max` or more is one of its own, and so is a distance."""
    is_small = cells.cell_bytes < bytes_max
    is_merged = is_small[1:] & is_small[:-1] & (np.diff(cells.segment) == 0)
    between_bytes = cells.offset[1:] - (cells.offset + cells.cell_bytes)[:-1]
    is_merged &= between_bytes < (bytes_max if reach is _Reach.SEGMENT else ROUND_BYTES)
    if reach is _Reach.STATE:
        is_merged &= np.diff(cells.state) == 0
    return np.concatenate([[0], np.cumsum(~is_merged)])


def _merged(cells: Cells, run: npt.NDArray[np.intp]) -> Cells:
    first = np.flatnonzero(np.diff(run, prepend=-1))
    in_use_bytes = np.where(cells.block_count > 0, cells.cell_bytes, 0)
    is_largest = np.flatnonzero(in_use_bytes == np.maximum.reduceat(in_use_bytes, first)[run])
    largest = is_largest[np.diff(run[is_largest], prepend=-1) != 0]  # the first of them in each run
    last = np.append(first[1:], len(cells)) - 1
    ends = cells.offset + cells.cell_bytes
    state_min = np.minimum.reduceat(cells.state, first)
    is_mixed = state_min != np.maximum.reduceat(cells.state, first)
    is_apart = np.append(False, cells.offset[1:] - ends[:-1] >= ROUND_BYTES)
    is_apart[first] = False
    is_mixed |= np.logical_or.reduceat(is_apart, first)
    sum_bytes = np.add.reduceat(cells.cell_bytes, first)
    return Cells(
        segment=cells.segment[first],
        offset=cells.offset[first],
        cell_bytes=np.where(is_mixed, ends[last] - cells.offset[first], sum_bytes),
        state=np.where(is_mixed, CellState.MIXED, state_min),
        allocated_bytes=np.add.reduceat(cells.allocated_bytes, first),
        block_count=np.add.reduceat(cells.block_count, first),
        stack=cells.stack[largest],
        event=cells.event[largest],
        is_pinning=np.logical_or.reduceat(cells.is_pinning, first),
    )
