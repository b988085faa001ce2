"""A device's curves thinned out for a page, along time and along events, so that no extreme is lost on either axis.

Owns: which events of a trace are drawn. Must not know: sites, HTML.
Time and events are each cut into equal buckets; between any two borders the first and last event are kept and those
with the least and the most bytes of each curve, so a spike of one event in ten million is in the picture on both axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import (
    DeviceBatch,
    LevelColumns,
    Levels,
    basis_of,
    bytes_columns,
    find_initial_levels,
    measure_levels,
    read_in_pieces,
    split_by_device,
)
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex

Int64s = npt.NDArray[np.int64]
_LEVELS = ("requested_bytes", "held_bytes", "pending_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True)
class PageCurves:
    """The levels of a device after chosen events, in order; held and pending bytes are in the trace's basis.

    The first point is the state before the first event (event -1).
    """

    event: Int64s
    time_ns: Int64s
    requested_bytes: Int64s
    held_bytes: Int64s
    pending_bytes: Int64s
    reserved_bytes: Int64s
    highest_events: Int64s
    """The event with the most held bytes between each two borders, in order."""
    device_events: int
    """Events of the device; all are points where there are few."""


def find_curves(
    trace: Trace, *, devices: Collection[DeviceOrdinal] | None, buckets: int
) -> Mapping[DeviceOrdinal, PageCurves]:
    """The curves of each device with events or initial blocks; some ten points a bucket and axis at most."""
    edges = _Edges.of(trace, buckets)
    collectors = {
        device: _Collector(levels, edges)
        for device, levels in find_initial_levels(trace).items()
        if devices is None or device in devices
    }
    for batch in read_in_pieces(trace, ("time_ns", "kind", "device", *bytes_columns(trace))):
        for events in split_by_device(batch, devices):
            one = collectors.setdefault(events.device, _Collector(Levels(), edges))
            one.take(events, measure_levels(events, one.levels, basis_of(trace, events.device), str(trace.path)))
    return {device: collectors[device].curves() for device in sorted(collectors)}


@dataclass(frozen=True, slots=True)
class _Edges:
    """The inner borders of the buckets."""

    time_ns: Int64s
    events: Int64s

    @classmethod
    def of(cls, trace: Trace, buckets: int) -> _Edges:
        """Borders of `buckets` equal parts of the time and of the events; every event is a part where they are few."""
        count = trace.event_count
        times = np.linspace(0, max(1, trace.meta.duration_ns), buckets + 1).astype(np.int64)[1:-1]
        parts = count if count <= 4 * buckets else buckets
        return cls(times, np.linspace(0, count, max(1, parts) + 1).astype(np.int64)[1:-1])

    def within(self, events: DeviceBatch) -> list[int]:
        """Positions in the batch at which a bucket of either axis begins, with its start and end."""
        by_time = np.searchsorted(events["time_ns"], self.time_ns, side="right")
        offsets = self.events - events.first_event
        by_event = offsets if events.rows is None else np.searchsorted(events.rows, offsets, side="left")
        borders = np.concatenate([[0], by_time, np.clip(by_event, 0, events.count), [events.count]])
        return np.unique(borders).tolist()  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Collector:
    """The points of one device while its events stream past."""

    levels: Levels
    edges: _Edges
    initial: Levels = field(init=False)
    pieces: dict[str, list[Int64s]] = field(
        default_factory=lambda: {name: [] for name in ("event", "time_ns", *_LEVELS)}
    )
    highest_events: list[EventIndex] = field(default_factory=list)
    event_count: int = 0

    def __post_init__(self) -> None:
        self.initial = self.levels

    def take(self, events: DeviceBatch, after: LevelColumns) -> None:
        """Keeps what matters of a batch."""
        self.levels = after.last()
        self.event_count += events.count
        borders = self.edges.within(events)
        curves = (
            [*after.curves(), after.held_bytes + after.pending_bytes]
            if len(after.pending_bytes) > 1
            else after.curves()
        )
        kept: set[int] = set()
        for begin, end in pairwise(borders):
            kept |= {begin, end - 1}
            for curve in curves:
                if len(curve) > 1:
                    kept |= {begin + int(curve[begin:end].argmin()), begin + int(curve[begin:end].argmax())}
            self.highest_events.append(events.event_at(begin + int(after.held_bytes[begin:end].argmax())))
        positions = np.array(sorted(kept), np.intp)
        self.pieces["event"].append(events.events_at(positions))
        self.pieces["time_ns"].append(events["time_ns"][positions].astype(np.int64))
        for name, curve in zip(_LEVELS, after.curves(), strict=True):
            self.pieces[name].append(curve[positions] if len(curve) > 1 else np.full(len(positions), curve[0]))

    def curves(self) -> PageCurves:
        """What was kept, behind the state before the first event."""
        start = self.initial
        first = (-1, 0, start.requested_bytes, start.held_bytes, start.pending_bytes, start.reserved_bytes)
        columns = {
            name: np.concatenate([np.array([value], np.int64), *self.pieces[name]])
            for name, value in zip(self.pieces, first, strict=True)
        }
        highest = np.array(self.highest_events, np.int64)
        return PageCurves(**columns, highest_events=highest, device_events=self.event_count)
