"""The curves of a trace over time, thinned out so that no extreme is lost.

Owns: the findings of `gpumem timeline`. Must not know: screens, columns of text, JSON.
Time is cut into equal buckets; of each bucket the first and last event and those with the least and the most bytes of
each curve are kept, so a spike of one event in ten million is still in the picture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpumem.analyses.beginning import find_beginning_ns
from gpumem.heap.instants import Instant, check_order, find_instant
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
from gpumem.heap.marks import name_marks
from gpumem.trace.model import DeviceFacts, Mark, Trace
from gpumem.trace.moments import AtTime, End, Start
from gpumem.vocabulary import Basis, DeviceOrdinal, EventIndex, EventKind, TraceSource

BUCKETS = 400


@dataclass(frozen=True, slots=True)
class Point:
    """The levels of a device after an event; allocated_bytes is None where block bytes are not known."""

    event: EventIndex
    time_ns: int
    requested_bytes: int
    reserved_bytes: int
    allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device: points in order of time, and the out-of-memory events."""

    facts: DeviceFacts
    points: Sequence[Point]
    ooms: Sequence[Instant]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The curves between two moments, with the marks that fall there."""

    path: str
    start: Instant
    end: Instant
    devices: Sequence[DeviceTimeline]
    marks: Sequence[Mark]
    mark_moments: Sequence[str]
    """For each of the marks the moment that leads to it, as `--at` takes it."""
    is_recorded: bool = True
    """Whether an allocator was, or there are curves all the same."""
    left_out_ns: int = 0
    """How long a quiet beginning was left out unasked."""


def find_timeline(
    trace: Trace,
    *,
    start: Instant | None = None,
    end: Instant | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
    buckets: int = BUCKETS,
) -> Timeline:
    """The curves between two moments (all of the trace by default) with at most some eight points a bucket."""
    first = start or find_instant(trace, Start())
    last = end or find_instant(trace, End())
    check_order(first, last)
    collectors = _collect(trace, first, last, devices, buckets)
    facts = {DeviceOrdinal(one.device): one for one in trace.meta.devices}
    found = [
        DeviceTimeline(facts.get(device, DeviceFacts(device)), collectors[device].points(), collectors[device].ooms)
        for device in sorted(collectors)
    ]
    named = zip(trace.marks, name_marks(trace.marks), strict=True)
    shown = [(mark, name) for mark, name in named if first.event <= mark.event <= last.event]
    marks, moments = [mark for mark, _ in shown], [name for _, name in shown]
    is_recorded = bool(found) or trace.meta.source is not TraceSource.NONE
    return Timeline(str(trace.path), first, last, found, marks, moments, is_recorded)


def find_moving_timeline(
    trace: Trace,
    *,
    end: Instant | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
    buckets: int = BUCKETS,
) -> Timeline:
    """The same from where a device's curves begin to move; from the start where no long quiet time comes first."""
    whole = find_timeline(trace, end=end, devices=devices, buckets=max(buckets, BUCKETS))
    begin_ns = min((_beginning_ns(whole, device) for device in whole.devices), default=0)
    if not begin_ns:
        return whole
    start = find_instant(trace, AtTime(begin_ns))
    found = find_timeline(trace, start=start, end=end, devices=devices, buckets=buckets)
    return replace(found, left_out_ns=begin_ns)


def _beginning_ns(whole: Timeline, device: DeviceTimeline) -> int:
    points = device.points
    time_ns = np.array([point.time_ns for point in points], np.int64)
    held = [point.requested_bytes if point.allocated_bytes is None else point.allocated_bytes for point in points]
    reserved = [point.reserved_bytes for point in points]
    noted_ns = [*(mark.time_ns for mark in whole.marks), *(oom.time_ns for oom in device.ooms)]
    curves = [np.array(held, np.int64), np.array(reserved, np.int64)]
    return find_beginning_ns(time_ns, curves, noted_ns, duration_ns=whole.end.time_ns)


def _collect(
    trace: Trace, first: Instant, last: Instant, devices: Collection[DeviceOrdinal] | None, buckets: int
) -> dict[DeviceOrdinal, _Collector]:
    edges = np.linspace(first.time_ns, max(last.time_ns, first.time_ns + 1), buckets + 1).astype(np.int64)[1:-1]

    def collector(device: DeviceOrdinal, levels: Levels) -> _Collector:
        return _Collector(levels, first, edges, basis=basis_of(trace, device))

    collectors = {
        device: collector(device, levels)
        for device, levels in find_initial_levels(trace).items()
        if devices is None or device in devices
    }
    columns = ("time_ns", "kind", "device", *bytes_columns(trace))
    for batch in read_in_pieces(trace, columns, end_event=last.event + 1):
        for events in split_by_device(batch, devices):
            if events.device not in collectors:
                collectors[events.device] = collector(events.device, Levels())
            one = collectors[events.device]
            after = measure_levels(events, one.levels, one.basis, str(trace.path))
            one.take(events, after)
    return collectors


class _Collector:
    """The points of one device while its events stream past."""

    def __init__(self, levels: Levels, first: Instant, edges: npt.NDArray[np.int64], *, basis: Basis) -> None:
        self.levels, self.first, self.edges, self.basis = levels, first, edges, basis
        self.before = levels
        self.buckets: dict[int, list[Point]] = {}
        self.ooms: list[Instant] = []

    def take(self, events: DeviceBatch, after: LevelColumns) -> None:
        """Keeps what matters of a batch."""
        self.levels = after.last()
        skipped = self._skipped(events)
        if skipped:
            self.before = after.at(skipped - 1)
        if skipped == events.count:
            return
        time_ns = events["time_ns"]
        cuts = skipped + np.searchsorted(time_ns[skipped:], self.edges, side="right")
        borders = np.concatenate([[skipped], cuts, [events.count]])
        for bucket in np.flatnonzero(np.diff(borders)).tolist():
            begin, end = int(borders[bucket]), int(borders[bucket + 1])
            kept = self.buckets.setdefault(bucket, [])
            for position in sorted(_extremes(after, begin, end)):
                kept.append(self._point(events.event_at(position), int(time_ns[position]), after.at(position)))
        if events.kind_counts[EventKind.OOM]:
            for row in np.flatnonzero(events["kind"][skipped:] == EventKind.OOM) + skipped:
                self.ooms.append(Instant(events.event_at(int(row)), int(time_ns[row])))

    def points(self) -> list[Point]:
        """The start's levels, then what each bucket keeps, in order."""
        found = [self._point(self.first.event, self.first.time_ns, self.before)]
        for bucket in sorted(self.buckets):
            found.extend(_thinned(self.buckets[bucket]))
        return found

    def _skipped(self, events: DeviceBatch) -> int:
        """How many of the batch's events are before or at the start."""
        if events.first_event > self.first.event:
            return 0
        positions = events.events_at(np.arange(events.count, dtype=np.intp))
        return int(np.searchsorted(positions, self.first.event, side="right"))

    def _point(self, event: EventIndex, time_ns: int, levels: Levels) -> Point:
        allocated = levels.held_bytes if self.basis is Basis.ALLOCATED else None
        return Point(event, time_ns, levels.requested_bytes, levels.reserved_bytes, allocated)


def _extremes(after: LevelColumns, begin: int, end: int) -> Iterator[int]:
    """Positions in [begin, end) of the first, the last, and each curve's least and most."""
    found = {begin, end - 1}
    for curve in after.curves():
        if len(curve) > 1:
            found.add(begin + int(curve[begin:end].argmin()))
            found.add(begin + int(curve[begin:end].argmax()))
    yield from found


def _thinned(points: Sequence[Point]) -> list[Point]:
    """The first and last of a bucket's points and each curve's least and most, in order, none twice."""
    chosen = {points[0].event: points[0], points[-1].event: points[-1]}
    for measure in (
        lambda point: point.requested_bytes,
        lambda point: point.reserved_bytes,
        lambda point: point.allocated_bytes or 0,
    ):
        for extreme in (min(points, key=measure), max(points, key=measure)):
            chosen[extreme.event] = extreme
    return [chosen[event] for event in sorted(chosen)]
