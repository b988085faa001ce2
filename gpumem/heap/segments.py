"""The segments that a device held at a moment.

Owns: what segment events do to a set of address ranges. Must not know: blocks, files, reports.
Ordinary segments come and go whole: the last event of an address decides. Expandable ones grow and shrink by ranges:
adjacent ranges of one stream and pool are one segment, an unmap may leave one on either side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import DeviceBatch
from gpumem.heap.live import find_last_rows
from gpumem.trace.model import EVENT_COLUMNS, Column, InitialBlock, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind, PoolId, StreamId

SEGMENT_COLUMNS = ("kind", "address", "requested_bytes", "stream", "pool")
_COLUMNS = (*SEGMENT_COLUMNS, "device")
_WHOLE = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE)
_RANGES = (EventKind.SEGMENT_MAP, EventKind.SEGMENT_UNMAP)
_SEGMENT_KINDS = [*_WHOLE, *_RANGES]


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory from the driver: [address, address + segment_bytes)."""

    device: DeviceOrdinal
    address: int
    segment_bytes: int
    stream: StreamId
    pool: PoolId
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.segment_bytes


def segments_at(trace: Trace, event: EventIndex, *, devices: Collection[DeviceOrdinal] | None = None) -> list[Segment]:
    """The segments held after `event`, by device and address."""
    rows = _segment_rows(trace, event)
    initial = _initial_segments(trace.initial_blocks)
    present = {segment.device for segment in initial} | {DeviceOrdinal(int(d)) for d in np.unique(rows["device"])}
    held: list[Segment] = []
    for device in sorted(present if devices is None else present & set(devices)):
        of_device = [segment for segment in initial if segment.device == device]
        chosen = rows["device"] == device
        columns = {name: values[chosen] for name, values in rows.items()}
        held.extend(_whole_segments(device, [s for s in of_device if not s.expandable], columns))
        held.extend(_expandable_segments(device, [s for s in of_device if s.expandable], columns))
    return sorted(held, key=lambda segment: (segment.device, segment.address))


class SegmentHistory:
    """The segments of one device at any event, from its events as they stream past."""

    def __init__(self, device: DeviceOrdinal, initial: Collection[InitialBlock]) -> None:
        """`initial`: the trace's initial blocks of this device."""
        self.device = device
        self._initial = _initial_segments(initial)
        self._pieces: list[dict[str, Column]] = []

    def take(self, events: DeviceBatch) -> None:
        """Keeps the segment events of a batch of the device, which has the columns of segments."""
        if not events.kind_counts[_SEGMENT_KINDS].any():
            return
        rows = np.flatnonzero(np.isin(events["kind"], _SEGMENT_KINDS))
        piece: dict[str, Column] = {name: events[name][rows] for name in SEGMENT_COLUMNS}
        self._pieces.append(piece | {"event": events.events_at(rows)})

    def at(self, event: EventIndex) -> list[Segment]:
        """The segments held after `event`, by address."""
        found = self.columns()
        until = found["event"] <= event
        columns: dict[str, Column] = {name: values[until] for name, values in found.items()}
        whole = [segment for segment in self._initial if not segment.expandable]
        ranges = [segment for segment in self._initial if segment.expandable]
        held = [*_whole_segments(self.device, whole, columns), *_expandable_segments(self.device, ranges, columns)]
        return sorted(held, key=lambda segment: segment.address)

    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """The segment events so far, in order: SEGMENT_COLUMNS and `event`."""
        types = {name: EVENT_COLUMNS[name] for name in SEGMENT_COLUMNS} | {"event": np.dtype(np.int64)}
        return {
            name: np.concatenate([np.zeros(0, kind), *(one[name] for one in self._pieces)])
            for name, kind in types.items()
        }


def _segment_rows(trace: Trace, event: EventIndex) -> dict[str, Column]:
    """The columns of the segment events up to `event`."""
    wanted = np.zeros(256, dtype=np.bool_)
    wanted[[*_WHOLE, *_RANGES]] = True
    parts: dict[str, list[Column]] = {name: [] for name in _COLUMNS}
    for batch in trace.event_batches(_COLUMNS, end_event=event + 1) if event >= 0 else ():
        rows = np.flatnonzero(wanted.take(batch["kind"]))
        for name in _COLUMNS:
            parts[name].append(batch[name][rows])
    return {name: np.concatenate([np.zeros(0, EVENT_COLUMNS[name]), *parts[name]]) for name in _COLUMNS}


def _initial_segments(blocks: Collection[InitialBlock]) -> list[Segment]:
    found: dict[tuple[int, int], Segment] = {}
    for block in blocks:
        found[block.device, block.segment_address] = Segment(
            DeviceOrdinal(block.device),
            block.segment_address,
            block.segment_bytes,
            StreamId(block.stream),
            PoolId(block.pool),
            block.expandable,
        )
    return list(found.values())


def _whole_segments(device: DeviceOrdinal, initial: list[Segment], columns: dict[str, Column]) -> Iterator[Segment]:
    rows = np.flatnonzero(np.isin(columns["kind"], _WHOLE))
    rows = rows[find_last_rows(columns["address"][rows].astype(np.uint64))]
    touched = set(columns["address"][rows].tolist())
    yield from (segment for segment in initial if segment.address not in touched)
    for row in rows[columns["kind"][rows] == EventKind.SEGMENT_ALLOC]:
        yield _segment_of_row(device, columns, int(row), expandable=False)


def _expandable_segments(
    device: DeviceOrdinal, initial: list[Segment], columns: dict[str, Column]
) -> Iterator[Segment]:
    """Ranges as map and unmap events leave them (in order, one by one: each depends on the ones before)."""
    ranges = _Ranges(initial)
    for row in np.flatnonzero(np.isin(columns["kind"], _RANGES)):
        changed = _segment_of_row(device, columns, int(row), expandable=True)
        if columns["kind"][row] == EventKind.SEGMENT_MAP:
            ranges.add(changed)
        else:
            ranges.remove(changed)
    yield from ranges.held


def _segment_of_row(device: DeviceOrdinal, columns: dict[str, Column], row: int, *, expandable: bool) -> Segment:
    return Segment(
        device,
        int(columns["address"][row]),
        int(columns["requested_bytes"][row]),
        StreamId(int(columns["stream"][row])),
        PoolId(int(columns["pool"][row])),
        expandable,
    )


class _Ranges:
    """Mapped ranges sorted by address, none touching another of its stream and pool."""

    def __init__(self, held: list[Segment]) -> None:
        self.held: list[Segment] = []
        for segment in sorted(held, key=lambda one: one.address):
            self.add(segment)

    def add(self, mapped: Segment) -> None:
        """Maps a range and merges it with its neighbours."""
        at = bisect_left(self.held, mapped.address, key=lambda one: one.address)
        if at < len(self.held) and self.held[at].address == mapped.end and _belong(self.held[at], mapped):
            after = self.held.pop(at)
            mapped = replace(mapped, segment_bytes=mapped.segment_bytes + after.segment_bytes)
        if at and self.held[at - 1].end == mapped.address and _belong(self.held[at - 1], mapped):
            before = self.held.pop(at - 1)
            mapped = replace(before, segment_bytes=before.segment_bytes + mapped.segment_bytes)
            at -= 1
        self.held.insert(at, mapped)

    def remove(self, unmapped: Segment) -> None:
        """Unmaps a range; what lies on either side of it stays."""
        at = max(0, bisect_left(self.held, unmapped.address, key=lambda one: one.end))
        while at < len(self.held) and self.held[at].address < unmapped.end:
            hit = self.held.pop(at)
            if hit.address < unmapped.address:
                self.held.insert(at, replace(hit, segment_bytes=unmapped.address - hit.address))
                at += 1
            if hit.end > unmapped.end:
                right = replace(hit, address=unmapped.end, segment_bytes=hit.end - unmapped.end)
                self.held.insert(at, right)
                at += 1


def _belong(one: Segment, other: Segment) -> bool:
    return (one.stream, one.pool) == (other.stream, other.pool)
