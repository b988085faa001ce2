"""The heap that a trace begins with, as a replay takes it over.

Owns: initial blocks -> columns, free blocks between them filled in. Must not know: files, how a replay works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpumem.abi.policy import BlockColumns, EventColumns, HeapColumns, SegmentColumns, U64Column
from gpumem.trace.model import InitialBlock, PoolRow, StreamRow, Trace
from gpumem.vocabulary import BlockState, EventKind

SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
SMALL_REQUEST_BYTES_MAX = 1 << 20
STATE_CODES = {BlockState.FREE: 0, BlockState.ALLOCATED: 1, BlockState.PENDING: 2}

Placed = tuple[int, int, int, int]
"""A block's address, bytes, requested bytes and state code."""


def heap_of_blocks(blocks: Sequence[InitialBlock], trace: Trace) -> HeapColumns:
    """The heap that initial blocks describe; a block whose bytes are not known counts as free, as what lies between."""
    return heap_of_rows(blocks, trace.streams, trace.pools)


def heap_of_rows(
    blocks: Sequence[InitialBlock], stream_rows: Sequence[StreamRow], pool_rows: Sequence[PoolRow]
) -> HeapColumns:
    """The same of blocks that no trace has yet; the rows are those that they name."""
    groups = list(_segments_of(sorted(blocks, key=lambda block: (block.segment_address, block.address))))
    handles, (first, second) = handles_of(stream_rows), pools_of(pool_rows)
    streams = np.array([group[0].stream for group in groups], np.int64)
    pools = np.array([group[0].pool for group in groups], np.int64)
    placed = np.array([row for group in groups for row in _tile(group)], np.uint64).reshape(-1, 4)
    return HeapColumns(
        SegmentColumns(
            np.array([group[0].segment_address for group in groups], np.uint64),
            np.array([group[0].segment_bytes for group in groups], np.uint64),
            handles[streams],
            first[pools],
            second[pools],
            np.array([_is_small(group) for group in groups], np.uint8),
            np.array([group[0].expandable for group in groups], np.uint8),
        ),
        BlockColumns(
            np.ascontiguousarray(placed[:, 0]),
            np.ascontiguousarray(placed[:, 1]),
            np.ascontiguousarray(placed[:, 2]),
            placed[:, 3].astype(np.uint8),
        ),
    )


def frees_of_unknown(blocks: Sequence[InitialBlock]) -> EventColumns:
    """Frees of the initial blocks whose bytes are not known: from these and their segments a replay works them out."""
    unknown = [block for block in blocks if block.block_bytes is None]
    kinds = [EventKind.FREE_COMPLETED if block.state is BlockState.PENDING else EventKind.FREE for block in unknown]
    return EventColumns(
        np.array(kinds, np.uint8),
        np.array([block.device for block in unknown], np.uint8),
        np.zeros(len(unknown), np.uint16),
        np.zeros(len(unknown), np.uint16),
        np.array([block.address for block in unknown], np.uint64),
        np.array([block.requested_bytes for block in unknown], np.uint64),
    )


def handles_of(streams: Sequence[StreamRow]) -> U64Column:
    """The raw handle of each row of the streams table."""
    handles = np.zeros(1 + max((row.stream for row in streams), default=0), np.uint64)
    for row in streams:
        handles[row.stream] = row.handle
    return handles


def pools_of(pools: Sequence[PoolRow]) -> tuple[U64Column, U64Column]:
    """The two parts of each private pool's id, by row of the pools table."""
    count = 1 + max((row.pool for row in pools), default=0)
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    for row in pools:
        first[row.pool], second[row.pool] = row.first, row.second
    return first, second


def handles_by_row(trace: Trace) -> U64Column:
    """The raw handle of each row of the trace's streams table."""
    return handles_of(trace.streams)


def pools_by_row(trace: Trace) -> tuple[U64Column, U64Column]:
    """The two parts of each private pool's id, by row of the trace's pools table."""
    return pools_of(trace.pools)


def _segments_of(ordered: Sequence[InitialBlock]) -> Iterator[list[InitialBlock]]:
    group: list[InitialBlock] = []
    for block in ordered:
        if group and block.segment_address != group[0].segment_address:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _tile(group: Sequence[InitialBlock]) -> Iterator[Placed]:
    """The blocks of a segment whose bytes are known, and free ones between them."""
    position = group[0].segment_address
    for block in group:
        if block.block_bytes is None:
            continue
        if block.address > position:
            yield position, block.address - position, 0, 0
        yield block.address, block.block_bytes, block.requested_bytes, STATE_CODES[block.state]
        position = block.address + block.block_bytes
    end = group[0].segment_address + group[0].segment_bytes
    if end > position:
        yield position, end - position, 0, 0


def _is_small(group: Sequence[InitialBlock]) -> bool:
    """Ordinary segments tell by their bytes; ranges by their requests, or by bytes that no large pages add up to."""
    if not group[0].expandable:
        return group[0].segment_bytes == SMALL_SEGMENT_BYTES
    requests = [block.requested_bytes for block in group if block.state is not BlockState.FREE]
    if requests:
        return max(requests) <= SMALL_REQUEST_BYTES_MAX
    return group[0].segment_bytes % LARGE_SEGMENT_BYTES != 0
