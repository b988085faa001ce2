"""The blocks of a heap that a history began with, as initial blocks.

Owns: the bytes of blocks whose rounding only their free tells, and the free blocks beside them. Must not know: replay's
ways of finding that heap, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.abi.policy import EventDetails, HeapColumns
from gpumem.simulate.start_heap import STATE_CODES
from gpumem.trace.model import Column, InitialBlock, Trace
from gpumem.vocabulary import BlockState, EventKind, StackId

_FREES = (EventKind.FREE, EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED)
_STATES = {code: state for state, code in STATE_CODES.items()}
_FREE = STATE_CODES[BlockState.FREE]


def find_start_blocks(
    device: int,
    start: HeapColumns,
    found: Sequence[InitialBlock],
    trace: Trace,
    columns: Mapping[str, Column],
    details: EventDetails,
) -> list[InitialBlock]:
    """All blocks of the device's heap at the start, tiling their segments; stacks are those of `found` by address."""
    ends = start.blocks.address + start.blocks.bytes
    freed = _bytes_at_first_free(device, start.blocks.address, columns, details)
    told = (start.blocks.state != _FREE) & (freed > 0)
    ends[told] = start.blocks.address[told] + freed[told]
    begins = start.blocks.address.copy()
    follows = (start.blocks.state[1:] == _FREE) & (
        start.blocks.address[1:] == (start.blocks.address + start.blocks.bytes)[:-1]
    )
    begins[1:][follows] = ends[:-1][follows]
    homes = np.searchsorted(start.segments.address, start.blocks.address, side="right") - 1
    segments = _segments(start, trace, device)
    stacks = {block.address: block.stack for block in found if block.state is not BlockState.FREE}
    rows = zip(
        begins.tolist(), ends.tolist(), start.blocks.requested_bytes.tolist(), start.blocks.state.tolist(),
        homes.tolist(), strict=True,
    )  # fmt: skip
    return [
        InitialBlock(
            device=device,
            segment_address=segments[home].address,
            segment_bytes=segments[home].segment_bytes,
            stream=segments[home].stream,
            pool=segments[home].pool,
            expandable=segments[home].expandable,
            address=begin,
            block_bytes=end - begin,
            requested_bytes=0 if state == _FREE else requested,
            state=_STATES[state],
            stack=StackId(stacks.get(begin, 0)) if state != _FREE else StackId(0),
        )
        for begin, end, requested, state, home in rows
        if end > begin
    ]


@dataclass(frozen=True, slots=True)
class _Segment:
    address: int
    segment_bytes: int
    stream: int
    pool: int
    expandable: bool


def _segments(start: HeapColumns, trace: Trace, device: int) -> list[_Segment]:
    streams = {row.handle: row.stream for row in trace.streams[1:] if row.device == device}
    pools = {(row.first, row.second): row.pool for row in trace.pools}
    columns = start.segments
    return [
        _Segment(address, segment_bytes, streams.get(stream, 0), pools.get((first, second), 0), bool(expandable))
        for address, segment_bytes, stream, first, second, expandable in zip(
            columns.address.tolist(), columns.bytes.tolist(), columns.stream.tolist(), columns.pool_first.tolist(),
            columns.pool_second.tolist(), columns.is_expandable.tolist(), strict=True,
        )
    ]  # fmt: skip


def _bytes_at_first_free(
    device: int, addresses: npt.NDArray[np.uint64], columns: Mapping[str, Column], details: EventDetails
) -> npt.NDArray[np.uint64]:
    """For each address the block bytes of the free that is its first event; 0 where there is none."""
    kind = columns["kind"]
    rows = np.flatnonzero((columns["device"] == device) & np.isin(kind, [EventKind.ALLOC, *_FREES]))
    rows = rows[np.isin(columns["address"][rows], addresses)]
    named, first = np.unique(columns["address"][rows].astype(np.uint64), return_index=True)
    found = np.where(kind[rows[first]] == EventKind.ALLOC, np.uint64(0), details.block_bytes[rows[first]])
    place = np.minimum(np.searchsorted(named, addresses), max(0, len(named) - 1))
    told = np.zeros(len(addresses), np.uint64)
    if len(named):
        same = named[place] == addresses
        told[same] = found[place[same]]
    return told
