"""The heap of a live allocator, out of the columns that the native core hands over.

Owns: its shape, and reading it. Must not know: how it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumem.vocabulary import BlockState

_BLOCK_STATES = (BlockState.FREE, BlockState.ALLOCATED, BlockState.PENDING)


@dataclass(frozen=True, slots=True)
class HeapBlock:
    """A block of a live heap; `requested_bytes` of a free one is what its last owner had asked."""

    address: int
    block_bytes: int
    requested_bytes: int
    state: BlockState


@dataclass(frozen=True, slots=True)
class HeapSegment:
    """A segment, or a contiguous mapped range of an expandable one, and the blocks that tile it."""

    address: int
    segment_bytes: int
    stream: int
    pool: tuple[int, int]
    is_small: bool
    is_expandable: bool
    blocks: tuple[HeapBlock, ...]


@dataclass(frozen=True, slots=True)
class LiveHeap:
    """The whole heap of a device, and the position in the recording that it stands at."""

    segments: tuple[HeapSegment, ...]
    position: int


def read_heap(segments: Any, blocks: Any, position: int) -> LiveHeap:
    """The heap of gm_heap_segments and gm_heap_blocks, which last no longer than the call that brings them."""
    found = []
    row = 0
    for number in range(segments.count):
        end = segments.address[number] + segments.bytes[number]
        tiles = []
        while row < blocks.count and blocks.address[row] < end:
            tiles.append(
                HeapBlock(
                    blocks.address[row],
                    blocks.bytes[row],
                    blocks.requested_bytes[row],
                    _BLOCK_STATES[blocks.state[row]],
                )
            )
            row += 1
        found.append(
            HeapSegment(
                address=segments.address[number],
                segment_bytes=segments.bytes[number],
                stream=segments.stream[number],
                pool=(segments.pool_first[number], segments.pool_second[number]),
                is_small=bool(segments.is_small[number]),
                is_expandable=bool(segments.is_expandable[number]),
                blocks=tuple(tiles),
            )
        )
    return LiveHeap(tuple(found), position)
