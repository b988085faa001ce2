"""What a process holds outside its allocator, from NVML's readings: the CUDA context, and what came later.

Owns: matching readings with the allocator's reserved bytes, and splitting what grew by the mark at which it was seen.
Must not know: blocks, text.

A reading takes some tens of microseconds and says after which event it began; segments that come or go meanwhile may be
in it or not. Where they explain a difference to the reading before, they are taken to be in it; where not quite,
the reading is no evidence of a change outside. At a mark the program stands still, so a reading there is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpumem.analyses.ledger_parts import Component, ComponentName, Evidence
from gpumem.heap.instants import Instant
from gpumem.heap.reserved import ReservedCurve
from gpumem.trace.model import Mark, Reading, Trace
from gpumem.vocabulary import MarkKind

READING_NS = 1_000_000
"""Time after its start in which a reading can still have seen a segment come or go."""

NEAR_NS = 100_000_000
"""How far from a moment a reading may be preferred to a nearer one because the allocator had reserved the same."""


@dataclass(frozen=True, slots=True)
class PlacedReading:
    """A reading of the process beside what its allocator had reserved when NVML answered."""

    reading: Reading
    process_bytes: int
    reserved_bytes: int
    is_settled: bool
    """Whether no segment came or went while NVML was read, as far as that matters."""

    @property
    def outside_bytes(self) -> int:
        return self.process_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Outside:
    """What the process holds outside the allocator at a reading: the context, then each change with its sign."""

    at: PlacedReading
    context: Component
    changes: Sequence[Component]
    unexplained_bytes: int
    """What the reading shows beyond that: it came after the moment, or segments came and went while NVML was read."""


def place_readings(trace: Trace, device: int, curve: ReservedCurve) -> list[PlacedReading]:
    """The readings of `device` that have a process figure, in order, with the reserved bytes that belong to each."""
    readings = [one for one in trace.readings if one.device == device and one.process_bytes is not None]
    readings.sort(key=lambda one: (one.time_ns, one.event))
    counts = np.searchsorted(curve.events, np.array([one.event for one in readings], np.int64), side="right")
    until = np.array([one.time_ns + READING_NS for one in readings], np.int64)
    ends = np.searchsorted(curve.times_ns, until, side="right")
    mark_events = {mark.event for mark in trace.marks}
    placed: list[PlacedReading] = []
    before: int | None = None
    for reading, count, end in zip(readings, counts.tolist(), ends.tolist(), strict=True):
        changes = range(count, count + 1 if reading.event in mark_events else max(count, end) + 1)
        one = _place(curve, reading, before, changes)
        placed.append(one)
        if one.is_settled or before is None:
            before = one.outside_bytes
    return placed


def choose_reading(
    readings: Sequence[Reading], placed: Sequence[PlacedReading], instant: Instant, curve: ReservedCurve
) -> Reading | None:
    """The reading that shows `instant` best: one after the very same event; else, of those near it in time, a settled
    one when the allocator had reserved the same; else the nearest in time.
    """
    reserved = curve.at(instant.event)
    unsettled = {id(one.reading) for one in placed if not one.is_settled}

    def rank(one: Reading) -> tuple[bool, bool, int, int]:
        apart = abs(one.time_ns - instant.time_ns)
        is_alike = apart <= NEAR_NS and curve.at(one.event) == reserved and id(one) not in unsettled
        return one.event != instant.event, not is_alike, apart, -one.time_ns

    return min(readings, key=rank, default=None)


def find_outside(trace: Trace, placed: Sequence[PlacedReading], at: PlacedReading, instant: Instant) -> Outside:
    """What was outside the allocator at the reading `at`, as far as it had been seen by `instant`."""
    chosen = placed.index(at)
    first = min(_find_context_reading(trace, placed), chosen)
    base = placed[first]
    context = Component(
        ComponentName.CUDA_CONTEXT,
        base.outside_bytes,
        Evidence.DIFFERENCE if base.reserved_bytes else Evidence.MEASURED,
    )
    last = chosen
    while last > first and placed[last].reading.event > instant.event:
        last -= 1
    settled = [base, *(one for one in placed[first + 1 : last + 1] if one.is_settled)]
    changes = _split_changes(trace.marks, settled)
    known = base.outside_bytes + sum(change.held_bytes for change in changes)
    return Outside(at, context, changes, at.outside_bytes - known)


def _place(curve: ReservedCurve, reading: Reading, before: int | None, changes: range) -> PlacedReading:
    """The reading with the reserved bytes after the first of `changes`, the segment events that it may have seen, or
    after a later one that leaves nothing changed outside.
    """
    assert reading.process_bytes is not None, "only such readings are placed"
    reserved = curve.after_change(changes.start)
    if len(changes) == 1 or reading.process_bytes - reserved == before:
        return PlacedReading(reading, reading.process_bytes, reserved, is_settled=True)
    for later in changes[1:]:
        if reading.process_bytes - curve.after_change(later) == before:
            return PlacedReading(reading, reading.process_bytes, curve.after_change(later), is_settled=True)
    return PlacedReading(reading, reading.process_bytes, reserved, is_settled=False)


def _find_context_reading(trace: Trace, placed: Sequence[PlacedReading]) -> int:
    """The reading that shows the context alone: at the first mark before any segment, else after the first segment.

    Readings before either may show a context in the making.
    """
    first_mark = min((mark.event for mark in trace.marks), default=None)
    for position, one in enumerate(placed):
        is_at_mark = first_mark is not None and one.reading.event >= first_mark
        if one.reserved_bytes or is_at_mark:
            return position
    return len(placed) - 1


def _split_changes(marks: Sequence[Mark], placed: Sequence[PlacedReading]) -> list[Component]:
    """The changes from reading to reading, summed by the first mark or step at or after the reading that shows them."""
    ordered = sorted(marks, key=lambda mark: mark.event)
    mark_events = np.array([mark.event for mark in ordered], np.int64)
    sums: dict[int, int] = {}
    for before, after in pairwise(placed):
        change = after.outside_bytes - before.outside_bytes
        if change:
            at = int(np.searchsorted(mark_events, after.reading.event, side="left"))
            sums[at] = sums.get(at, 0) + change
    return [
        Component(
            ComponentName.OUTSIDE_ALLOCATOR,
            change,
            Evidence.DIFFERENCE,
            moment=_moment_of(ordered[at]) if at < len(ordered) else None,
            after=_moment_of(ordered[at - 1]) if at else None,
        )
        for at, change in sorted(sums.items())
        if change
    ]


def _moment_of(mark: Mark) -> str:
    return f"step:{mark.step}" if mark.kind is MarkKind.STEP else f"mark:{mark.name}"
