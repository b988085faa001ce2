"""A trace followed decision by decision through the allocator's policy.

Owns: what of a trace the native replay is told, and the details of each event that come back. Must not know: files,
reports. Details come in the order of the events but lag behind those given: an event is settled when the request
that it belongs to is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.abi.policy import (
    POOL_UNKNOWN,
    DeviceOptions,
    EventColumns,
    EventDetails,
    HeapColumns,
    Replay,
    ReplayResult,
    U64Column,
)
from gpumem.errors import UsageError
from gpumem.simulate.recorded_device import blocks_before
from gpumem.simulate.start_heap import frees_of_unknown, handles_of, heap_of_blocks, pools_of
from gpumem.trace.model import Column, EventBatch, PoolRow, StreamRow, Trace
from gpumem.vocabulary import EventFlag, TraceSource

REPLAY_COLUMNS = ("kind", "device", "stream", "pool", "address", "requested_bytes", "flags")
"""The columns that a replay reads."""
_PASSED_OVER = np.uint8(0)
"""A kind that tells a replay nothing."""


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """How each device's replay ended, by ordinal; `refusals` says why a device could not be replayed."""

    results: Mapping[int, ReplayResult]
    heaps: Mapping[int, HeapColumns]
    empty_caches: Mapping[int, U64Column]
    """Positions of the events before which an empty_cache call was inferred."""
    refusals: Mapping[int, str]

    @property
    def exact(self) -> bool:
        return not self.refusals and all(result.exact for result in self.results.values())


class EventFollower:
    """Follows events in batches, devices and rows made known as they come; `take` returns the details settled."""

    def __init__(self, *, pools_recorded: bool, passes_own: bool = False) -> None:
        """`pools_recorded`: pool 0 of an event means the default pools, not "not known". `passes_own`: another
        allocator is followed, beside which gpumem's own was at work.
        """
        self._replay = Replay()
        self._devices: list[int] = []
        self._pools_recorded = pools_recorded
        self._passes_own = passes_own
        self._stream_count = self._pool_count = 0
        self.refusals: dict[int, str] = {}

    def know_rows(self, streams: Sequence[StreamRow], pools: Sequence[PoolRow]) -> None:
        """All rows of streams and pools that the events to come may name; those known before come first."""
        handles, (first, second) = handles_of(streams), pools_of(pools)
        self._replay.add_streams(handles[self._stream_count :])
        self._replay.add_pools(first[self._pool_count :], second[self._pool_count :])
        self._stream_count, self._pool_count = max(self._stream_count, len(handles)), max(self._pool_count, len(first))

    def add_device(self, options: DeviceOptions, heap: HeapColumns | None) -> None:
        """One more device, none of whose events was fed yet, with its heap before the first; see `refusals`."""
        reason = self._add(options)
        if not reason and heap is not None and not self._replay.adopt(options.device, heap):
            reason = "The blocks from before the recording do not tile their segments."
        self._note_refusal(options.device, reason)

    def feed(self, batch: EventBatch | Mapping[str, Column]) -> None:
        """Follows the next events; the batch holds REPLAY_COLUMNS."""
        self._replay.feed(self._events_of(batch))

    def take(self) -> EventDetails:
        """Details of the events settled since the last call, in order."""
        return self._replay.take()

    def settle(self, position: int) -> None:
        """Devices that wait for more events at one before `position` wait no longer."""
        self._replay.settle(position)

    def finish(self) -> EventDetails:
        """The details still outstanding: the trace has no more events."""
        self._replay.finish()
        return self._replay.take()

    def heap(self, device: int) -> HeapColumns:
        """The heap of a device as it stands now."""
        return self._replay.heap(device)

    def results(self) -> TraceReplay:
        """Where every device's replay stands."""
        return TraceReplay(
            {device: self._replay.result(device) for device in self._devices},
            {device: self._replay.heap(device) for device in self._devices},
            {device: self._replay.empty_caches(device) for device in self._devices},
            self.refusals,
        )

    def close(self) -> None:
        """Frees the native replay."""
        self._replay.close()

    def _events_of(self, batch: EventBatch | Mapping[str, Column]) -> EventColumns:
        return replay_events(batch, pools_recorded=self._pools_recorded, passes_own=self._passes_own)

    def _add(self, options: DeviceOptions) -> str:
        """Adds a device; "" or why its settings are none."""
        try:
            self._replay.add_device(options)
        except UsageError as error:  # the recorded settings, not anybody's wish
            return str(error)
        self._devices.append(options.device)
        return ""

    def _note_refusal(self, device: int, reason: str) -> None:
        if reason:
            self.refusals[device] = reason


class TraceFollower(EventFollower):
    """Follows a trace's events, each device from the heap that it begins with."""

    def __init__(
        self,
        trace: Trace,
        devices: Sequence[DeviceOptions],
        *,
        pools_recorded: bool,
        end_heaps: Mapping[int, HeapColumns] | None = None,
    ) -> None:
        """`end_heaps`: by device, the heap at the end where the source gives it; pools, and in a truncated history the
        heap at its start, are worked out from it.
        """
        super().__init__(pools_recorded=pools_recorded, passes_own=trace.meta.source is TraceSource.NATIVE)
        self.know_rows(trace.streams, trace.pools)
        events: EventColumns | None = None
        for options in devices:
            end = (end_heaps or {}).get(options.device)
            if end is not None and events is None:
                events = self._all_events(trace)
            self._note_refusal(options.device, self._begin(trace, options, end, events))

    def _begin(self, trace: Trace, options: DeviceOptions, end: HeapColumns | None, events: EventColumns | None) -> str:
        """Adds a device with the heap that it begins with; "" or why it cannot be replayed."""
        reason = self._add(options)
        if reason:
            return reason
        blocks = blocks_before(trace, options.device)
        homeless_count = sum(block.segment_bytes == 0 for block in blocks)
        if homeless_count:
            return f"{homeless_count} blocks from before the history lie in no known segment."
        if end is not None:
            assert events is not None
            return _sentence(self._replay.adopt_from_end(options.device, end, events))
        heap = heap_of_blocks(blocks, trace)
        if any(block.block_bytes is None for block in blocks):
            return _sentence(self._replay.adopt_from_end(options.device, heap, frees_of_unknown(blocks)))
        is_adopted = not blocks or self._replay.adopt(options.device, heap)
        return "" if is_adopted else "The blocks from before the history do not tile their segments."

    def _all_events(self, trace: Trace) -> EventColumns:
        batches = list(trace.event_batches(REPLAY_COLUMNS))
        pieces = [self._events_of(batch) for batch in batches]
        return pieces[0] if len(pieces) == 1 else join_events(pieces)


def replay_trace(
    trace: Trace,
    devices: Sequence[DeviceOptions],
    *,
    pools_recorded: bool,
    end_heaps: Mapping[int, HeapColumns] | None = None,
) -> TraceReplay:
    """The trace followed to its end; its details are dropped."""
    follower = TraceFollower(trace, devices, pools_recorded=pools_recorded, end_heaps=end_heaps)
    try:
        for batch in trace.event_batches(REPLAY_COLUMNS):
            follower.feed(batch)
            follower.take()
        follower.finish()
        return follower.results()
    finally:
        follower.close()


def replay_events(
    batch: EventBatch | Mapping[str, Column], *, pools_recorded: bool, passes_own: bool = False
) -> EventColumns:
    """The batch as a replay takes it; see EventFollower."""
    kinds = np.ascontiguousarray(batch["kind"], np.uint8)
    if passes_own:
        is_own = find_own(batch["flags"])
        kinds = np.where(is_own, _PASSED_OVER, kinds) if is_own.any() else kinds
    pools = np.ascontiguousarray(batch["pool"], np.uint16)
    if not pools_recorded:
        pools = np.where(pools == 0, np.uint16(POOL_UNKNOWN), pools).astype(np.uint16)
    return EventColumns(
        kinds,
        np.ascontiguousarray(batch["device"], np.uint8),
        np.ascontiguousarray(batch["stream"], np.uint16),
        pools,
        np.ascontiguousarray(batch["address"], np.uint64),
        np.ascontiguousarray(batch["requested_bytes"], np.uint64),
    )


def find_own(flags: Column) -> npt.NDArray[np.bool_]:
    """Which events are those of gpumem's own allocator."""
    found: npt.NDArray[np.bool_] = (flags.astype(np.uint16, copy=False) & np.uint16(EventFlag.OWN_ALLOCATOR)) != 0
    return found


def join_events(pieces: Sequence[EventColumns]) -> EventColumns:
    """The pieces behind one another."""
    return EventColumns(
        np.concatenate([np.zeros(0, np.uint8), *(piece.kind for piece in pieces)]),
        np.concatenate([np.zeros(0, np.uint8), *(piece.device for piece in pieces)]),
        np.concatenate([np.zeros(0, np.uint16), *(piece.stream for piece in pieces)]),
        np.concatenate([np.zeros(0, np.uint16), *(piece.pool for piece in pieces)]),
        np.concatenate([np.zeros(0, np.uint64), *(piece.address for piece in pieces)]),
        np.concatenate([np.zeros(0, np.uint64), *(piece.requested_bytes for piece in pieces)]),
    )


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}." if reason else ""
