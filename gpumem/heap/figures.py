"""How a heap is used at a moment: what is pending and idle, what could go back to the driver, the largest free blocks.

Owns: measuring segments and the blocks in use in them, and the equations that hold between the sums. Must not know:
files, sites, reports. numpy only, no loop per block.

    reserved = allocated + pending + idle        idle = releasable + gap        allocated = requested + slack
Releasable: whole free segments; of expandable ones whole pages inside free blocks; nothing of a private pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.errors import TraceTruncated
from gpumem.heap.levels import Levels
from gpumem.heap.live import LiveTable
from gpumem.heap.segments import Segment
from gpumem.vocabulary import EventIndex

SMALL_SEGMENT_BYTES = 2 << 20
SMALL_REQUEST_BYTES_MAX = 1 << 20
SMALL_PAGE_BYTES = 2 << 20
LARGE_PAGE_BYTES = 20 << 20

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LargestFree:
    """Bytes of the largest free block of the small pools, the large pools, and the private pools; 0 without one."""

    small_bytes: int
    large_bytes: int
    private_bytes: int


@dataclass(frozen=True, slots=True)
class HeapFigures:
    """The sums of a device's heap at a moment."""

    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    """Requests of allocated blocks."""
    pending_bytes: int
    releasable_bytes: int
    gap_bytes: int
    largest_free: LargestFree

    @property
    def slack_bytes(self) -> int:
        return self.allocated_bytes - self.requested_bytes

    @property
    def idle_bytes(self) -> int:
        return self.releasable_bytes + self.gap_bytes


@dataclass(frozen=True, slots=True)
class Holes:
    """Stretches of segments without a block in use, and what of each is releasable: one range of it, perhaps empty."""

    segment: npt.NDArray[np.int64]
    """Row of the segment."""
    offset: Bytes
    """Where it begins in its segment."""
    hole_bytes: Bytes
    releasable_offset: Bytes
    releasable_bytes: Bytes


@dataclass(frozen=True, slots=True)
class HeapLayout:
    """Where each block in use lies (row of its segment, offset in it, its bytes) and the holes between."""

    segment: npt.NDArray[np.int64]
    offset: Bytes
    block_bytes: Bytes
    holes: Holes
    is_small: npt.NDArray[np.bool_]
    """Of each segment: whether it serves small requests."""


def lay_out_heap(segments: Sequence[Segment], blocks: LiveTable, event: EventIndex, where: str) -> HeapLayout:
    """Blocks in use, whose bytes are known, and holes of one device's segments, by address.

    Raises TraceTruncated, naming `where` and the event, when blocks overlap or lie in no segment.
    """
    starts = np.array([segment.address for segment in segments], np.uint64)
    sizes = np.array([segment.segment_bytes for segment in segments], np.int64)
    homes = np.searchsorted(starts, blocks.address, side="right") - 1
    block_bytes = blocks["block_bytes"].astype(np.int64)
    if len(blocks) and (not len(segments) or homes.min() < 0):
        raise _unsound(where, event, int(blocks.address[0]))
    offsets = (blocks.address - starts[homes]).astype(np.int64) if len(blocks) else np.zeros(0, np.int64)
    _check_tiling(blocks, homes, offsets, block_bytes, sizes, event, where)
    is_small = _find_small(segments, blocks, homes)
    holes = _find_releasable(*_find_holes(homes, offsets, block_bytes, sizes), segments, sizes, is_small)
    return HeapLayout(homes, offsets, block_bytes, holes, is_small)


def measure_heap(segments: Sequence[Segment], blocks: LiveTable, event: EventIndex, where: str) -> HeapFigures:
    """The figures of one device's segments, by address, and the blocks in use in them, whose bytes are known.

    Raises TraceTruncated, naming `where` and the event, when blocks overlap or lie in no segment.
    """
    return measure_layout(segments, blocks, lay_out_heap(segments, blocks, event, where))


def measure_layout(segments: Sequence[Segment], blocks: LiveTable, layout: HeapLayout) -> HeapFigures:
    """The figures of a heap laid out."""
    block_bytes, holes, is_small = layout.block_bytes, layout.holes, layout.is_small
    is_private = np.array([segment.pool > 0 for segment in segments], np.bool_)
    allocated = ~blocks.pending
    released = int(holes.releasable_bytes.sum())
    figures = HeapFigures(
        reserved_bytes=sum(segment.segment_bytes for segment in segments),
        allocated_bytes=int(block_bytes[allocated].sum()),
        requested_bytes=int(blocks["requested_bytes"].astype(np.int64)[allocated].sum()),
        pending_bytes=int(block_bytes[blocks.pending].sum()),
        releasable_bytes=released,
        gap_bytes=int(holes.hole_bytes.sum()) - released,
        largest_free=LargestFree(
            _largest(holes, is_small & ~is_private),
            _largest(holes, ~is_small & ~is_private),
            _largest(holes, is_private),
        ),
    )
    in_blocks = figures.allocated_bytes + figures.pending_bytes + figures.idle_bytes
    assert figures.reserved_bytes == in_blocks, "holes are what blocks leave"
    return figures


def check_levels(figures: HeapFigures, levels: Levels, event: EventIndex, where: str) -> None:
    """Raises TraceTruncated, naming the event, unless the events' sums are those of the heap they leave."""
    for name, summed, found in (
        ("reserved", levels.reserved_bytes, figures.reserved_bytes),
        ("allocated", levels.held_bytes, figures.allocated_bytes),
        ("pending", levels.pending_bytes, figures.pending_bytes),
        ("requested", levels.requested_bytes, figures.requested_bytes),
    ):
        if summed != found:
            raise TraceTruncated(
                f"{where}: after event {event} {name} bytes are {summed} by the events but {found} in the heap they "
                "leave; the recording is damaged, record again."
            )


def _check_tiling(
    blocks: LiveTable,
    homes: npt.NDArray[np.int64],
    offsets: Bytes,
    block_bytes: Bytes,
    sizes: Bytes,
    event: EventIndex,
    where: str,
) -> None:
    if not len(blocks):
        return
    ends = offsets + block_bytes
    wrong = (block_bytes <= 0) | (ends > sizes[homes])
    wrong[1:] |= (homes[1:] == homes[:-1]) & (offsets[1:] < ends[:-1])
    if wrong.any():
        raise _unsound(where, event, int(blocks.address[int(np.flatnonzero(wrong)[0])]))


def _unsound(where: str, event: EventIndex, address: int) -> TraceTruncated:
    return TraceTruncated(
        f"{where}: after event {event} the block at {address:#x} overlaps another or lies in no segment; "
        "the recording is damaged, record again."
    )


def _find_holes(
    homes: npt.NDArray[np.int64], offsets: Bytes, block_bytes: Bytes, sizes: Bytes
) -> tuple[npt.NDArray[np.int64], Bytes, Bytes]:
    """Every stretch between a segment's start, its blocks and its end, as its segment, offset and bytes."""
    count = len(sizes)
    ends = offsets + block_bytes
    is_first = np.ones(len(homes), np.bool_)
    is_first[1:] = homes[1:] != homes[:-1]
    before = np.where(is_first, 0, np.concatenate([[0], ends[:-1]]) if len(ends) else ends)
    last_end = np.zeros(count, np.int64)
    is_last = np.append(is_first[1:], True) if len(homes) else is_first
    last_end[homes[is_last]] = ends[is_last]
    segment = np.concatenate([homes, np.arange(count)])
    offset = np.concatenate([before, last_end])
    hole_bytes = np.concatenate([offsets - before, sizes - last_end])
    chosen = hole_bytes > 0
    return segment[chosen], offset[chosen], hole_bytes[chosen]


def _find_small(segments: Sequence[Segment], blocks: LiveTable, homes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which segments serve small requests: ordinary ones tell by their bytes, ranges by the requests in them."""
    request_max = np.full(len(segments), -1, np.int64)
    np.maximum.at(request_max, homes, blocks["requested_bytes"].astype(np.int64))
    return np.array(
        [
            segment.segment_bytes == SMALL_SEGMENT_BYTES
            if not segment.expandable
            else request <= SMALL_REQUEST_BYTES_MAX and (request >= 0 or segment.segment_bytes % LARGE_PAGE_BYTES != 0)
            for segment, request in zip(segments, request_max.tolist(), strict=True)
        ],
        np.bool_,
    )


def _find_releasable(
    segment: npt.NDArray[np.int64],
    offset: Bytes,
    hole_bytes: Bytes,
    segments: Sequence[Segment],
    sizes: Bytes,
    is_small: npt.NDArray[np.bool_],
) -> Holes:
    """The holes with what of each could go back: all of a free segment, whole pages of a range, nothing of a pool."""
    is_expandable = np.array([one.expandable for one in segments], np.bool_)[segment]
    is_private = np.array([one.pool > 0 for one in segments], np.bool_)[segment]
    is_whole = (hole_bytes == sizes[segment]) & ~is_expandable
    page_bytes = np.where(is_small, SMALL_PAGE_BYTES, LARGE_PAGE_BYTES)[segment]
    first_page = -(-offset // page_bytes)
    in_pages = np.maximum(0, (offset + hole_bytes) // page_bytes - first_page) * page_bytes
    releasable = np.where(is_expandable, in_pages, np.where(is_whole, hole_bytes, 0))
    releasable_offset = np.where(is_expandable, first_page * page_bytes, offset)
    return Holes(segment, offset, hole_bytes, releasable_offset, np.where(is_private, 0, releasable))


def _largest(holes: Holes, of: npt.NDArray[np.bool_]) -> int:
    chosen = holes.hole_bytes[of[holes.segment]]
    return int(chosen.max()) if len(chosen) else 0
