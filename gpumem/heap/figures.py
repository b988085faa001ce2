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


def measure_heap(segments: Sequence[Segment], blocks: LiveTable, event: EventIndex, where: str) -> HeapFigures:
    """The figures of one device's segments, by address, and the blocks in use in them, whose bytes are known.

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
    holes = _find_holes(homes, offsets, block_bytes, sizes)
    is_small = _find_small(segments, blocks, homes)
    is_private = np.array([segment.pool > 0 for segment in segments], np.bool_)
    allocated = ~blocks.pending
    released = _measure_releasable(holes, segments, sizes, is_small, is_private)
    figures = HeapFigures(
        reserved_bytes=int(sizes.sum()),
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


@dataclass(frozen=True, slots=True)
class _Holes:
    """Stretches of segments without a block in use: their segment, where they begin in it, their bytes."""

    segment: npt.NDArray[np.int64]
    offset: Bytes
    hole_bytes: Bytes


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


def _find_holes(homes: npt.NDArray[np.int64], offsets: Bytes, block_bytes: Bytes, sizes: Bytes) -> _Holes:
    """Every stretch between a segment's start, its blocks and its end: before each block, and behind the last."""
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
    return _Holes(segment[chosen], offset[chosen], hole_bytes[chosen])


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


def _measure_releasable(
    holes: _Holes,
    segments: Sequence[Segment],
    sizes: Bytes,
    is_small: npt.NDArray[np.bool_],
    is_private: npt.NDArray[np.bool_],
) -> int:
    is_expandable = np.array([segment.expandable for segment in segments], np.bool_)
    whole = (holes.hole_bytes == sizes[holes.segment]) & ~is_expandable[holes.segment]
    page_bytes = np.where(is_small, SMALL_PAGE_BYTES, LARGE_PAGE_BYTES)[holes.segment]
    first_page = -(-holes.offset // page_bytes)
    end_page = (holes.offset + holes.hole_bytes) // page_bytes
    in_pages = np.maximum(0, end_page - first_page) * page_bytes
    releasable = np.where(is_expandable[holes.segment], in_pages, np.where(whole, holes.hole_bytes, 0))
    return int(releasable[~is_private[holes.segment]].sum())


def _largest(holes: _Holes, of: npt.NDArray[np.bool_]) -> int:
    chosen = holes.hole_bytes[of[holes.segment]]
    return int(chosen.max()) if len(chosen) else 0
