"""A trace followed decision by decision through the allocator's policy.

Owns: what of a trace the native replay is told, and the details of each event that come back. Must not know: files,
reports. Details come in the order of the events but lag behind those given: an event is settled when the request
that it belongs to is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.abi.policy import (
    POOL_UNKNOWN,
    BlockColumns,
    DeviceOptions,
    EventColumns,
    EventDetails,
    HeapColumns,
    Replay,
    ReplayResult,
    SegmentColumns,
    U64Column,
)
from gpumem.trace.model import EventBatch, InitialBlock, Trace
from gpumem.vocabulary import BlockState

REPLAY_COLUMNS = ("kind", "device", "stream", "pool", "address", "requested_bytes")
"""The columns that a replay reads."""
SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
STATE_CODES = {BlockState.FREE: 0, BlockState.ALLOCATED: 1, BlockState.PENDING: 2}


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """How each device's replay ended, by ordinal."""

    results: Mapping[int, ReplayResult]
    heaps: Mapping[int, HeapColumns]

    @property
    def exact(self) -> bool:
        return all(result.exact for result in self.results.values())


class TraceFollower:
    """Follows a trace's events in batches; `take` returns the details that are settled."""

    def __init__(self, trace: Trace, devices: Sequence[DeviceOptions], *, pools_recorded: bool) -> None:
        """`pools_recorded`: pool 0 of an event means the default pools, not "not known"."""
        self._replay = Replay()
        self._devices = [options.device for options in devices]
        self._pools_recorded = pools_recorded
        self._replay.add_streams(_handles_by_row(trace))
        self._replay.add_pools(*_pools_by_row(trace))
        for options in devices:
            self._replay.add_device(options)
            blocks = [block for block in trace.initial_blocks if block.device == options.device]
            if blocks and all(block.block_bytes is not None for block in blocks):
                self._replay.adopt(options.device, heap_of_blocks(blocks, trace))

    def feed(self, batch: EventBatch) -> None:
        """Follows the next events; the batch holds REPLAY_COLUMNS."""
        pools = np.ascontiguousarray(batch["pool"], np.uint16)
        if not self._pools_recorded:
            pools = np.where(pools == 0, np.uint16(POOL_UNKNOWN), pools).astype(np.uint16)
        self._replay.feed(
            EventColumns(
                np.ascontiguousarray(batch["kind"], np.uint8),
                np.ascontiguousarray(batch["device"], np.uint8),
                np.ascontiguousarray(batch["stream"], np.uint16),
                pools,
                np.ascontiguousarray(batch["address"], np.uint64),
                np.ascontiguousarray(batch["requested_bytes"], np.uint64),
            )
        )

    def take(self) -> EventDetails:
        """Details of the events settled since the last call, in order."""
        return self._replay.take()

    def finish(self) -> EventDetails:
        """The details still outstanding: the trace has no more events."""
        self._replay.finish()
        return self._replay.take()

    def results(self) -> TraceReplay:
        """Where every device's replay stands."""
        return TraceReplay(
            {device: self._replay.result(device) for device in self._devices},
            {device: self._replay.heap(device) for device in self._devices},
        )

    def close(self) -> None:
        """Frees the native replay."""
        self._replay.close()


def replay_trace(trace: Trace, devices: Sequence[DeviceOptions], *, pools_recorded: bool) -> TraceReplay:
    """The trace followed to its end; its details are dropped."""
    follower = TraceFollower(trace, devices, pools_recorded=pools_recorded)
    try:
        for batch in trace.event_batches(REPLAY_COLUMNS):
            follower.feed(batch)
            follower.take()
        follower.finish()
        return follower.results()
    finally:
        follower.close()


def heap_of_blocks(blocks: Sequence[InitialBlock], trace: Trace) -> HeapColumns:
    """The heap that initial blocks describe; their bytes are known."""
    ordered = sorted(blocks, key=lambda block: block.address)
    handles, (first, second) = _handles_by_row(trace), _pools_by_row(trace)
    segments = list(_segments_of(ordered))
    streams = np.array([group[0].stream for group in segments], np.int64)
    pools = np.array([group[0].pool for group in segments], np.int64)
    return HeapColumns(
        SegmentColumns(
            np.array([group[0].segment_address for group in segments], np.uint64),
            np.array([group[0].segment_bytes for group in segments], np.uint64),
            handles[streams],
            first[pools],
            second[pools],
            np.array([_is_small(group) for group in segments], np.uint8),
            np.array([group[0].expandable for group in segments], np.uint8),
        ),
        BlockColumns(
            np.array([block.address for block in ordered], np.uint64),
            np.array([block.block_bytes for block in ordered], np.uint64),
            np.array([block.requested_bytes for block in ordered], np.uint64),
            np.array([STATE_CODES[block.state] for block in ordered], np.uint8),
        ),
    )


def _segments_of(ordered: Sequence[InitialBlock]) -> Iterator[list[InitialBlock]]:
    group: list[InitialBlock] = []
    for block in ordered:
        if group and block.segment_address != group[0].segment_address:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _is_small(group: Sequence[InitialBlock]) -> bool:
    """Ordinary segments tell by their bytes; ranges by their requests, or by bytes that no large pages add up to."""
    if not group[0].expandable:
        return group[0].segment_bytes == SMALL_SEGMENT_BYTES
    requests = [block.requested_bytes for block in group if block.state is not BlockState.FREE]
    if requests:
        return max(requests) <= 1 << 20
    return group[0].segment_bytes % LARGE_SEGMENT_BYTES != 0


def _handles_by_row(trace: Trace) -> U64Column:
    handles = np.zeros(1 + max((row.stream for row in trace.streams), default=0), np.uint64)
    for row in trace.streams:
        handles[row.stream] = row.handle
    return handles


def _pools_by_row(trace: Trace) -> tuple[U64Column, U64Column]:
    count = 1 + max((row.pool for row in trace.pools), default=0)
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    for row in trace.pools:
        first[row.pool], second[row.pool] = row.first, row.second
    return first, second
