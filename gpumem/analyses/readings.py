"""NVML readings beside the allocator's figures.

Owns: which reading shows a moment, for every report, and what the allocator had reserved when it was taken. Must not
know: how readings were taken.

A reading takes some tens of microseconds and says after which event it began; segments that come or go meanwhile may be
in it or not. Where they explain a difference to the reading before, they are taken to be in it; where not quite,
the reading is no evidence of a change outside. At a mark the program stands still, so a reading there is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.heap.instants import Instant
from gpumem.heap.reserved import ReservedCurve, find_reserved_curve
from gpumem.heap.segments import SegmentHistory
from gpumem.trace.model import Mark, Reading, Trace
from gpumem.vocabulary import DeviceOrdinal

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
    is_at_mark: bool
    """Whether it is the one that a mark asked for, while the program stood still."""

    @property
    def outside_bytes(self) -> int:
        return self.process_bytes - self.reserved_bytes


def find_reading(
    trace: Trace,
    device: DeviceOrdinal,
    instant: Instant,
    readings: Sequence[Reading] | None = None,
    history: SegmentHistory | None = None,
) -> Reading | None:
    """The reading that shows `device` at `instant` best, of `readings` or of all; None without any.

    `history`: the device's segment events of the whole trace, where they were gathered already.
    """
    chosen = trace.readings if readings is None else readings
    of_device = [reading for reading in chosen if reading.device == device]
    if not of_device:
        return None
    curve = find_reserved_curve(trace, device, history)
    return choose_reading(of_device, place_readings(trace, device, curve), instant, curve)


def find_process_bytes(trace: Trace, device: DeviceOrdinal, instant: Instant) -> int | None:
    """What NVML saw the process hold at `instant`; None where the reading that shows it has no figure of that, or was
    taken while the allocator had reserved something else.
    """
    curve = find_reserved_curve(trace, device)
    placed = place_readings(trace, device, curve)
    reading = choose_reading([one for one in trace.readings if one.device == device], placed, instant, curve)
    at = next((one for one in placed if one.reading is reading), None)
    return at.process_bytes if at is not None and at.reserved_bytes == curve.at(instant.event) else None


def place_readings(trace: Trace, device: int, curve: ReservedCurve) -> list[PlacedReading]:
    """The readings of `device` that have a process figure, in order, with the reserved bytes that belong to each."""
    of_device = [one for one in trace.readings if one.device == device]
    of_device.sort(key=lambda one: (one.time_ns, one.event))
    at_marks = _find_mark_readings(trace.marks, of_device)
    readings = [one for one in of_device if one.process_bytes is not None]
    counts = np.searchsorted(curve.events, np.array([one.event for one in readings], np.int64), side="right")
    until = np.array([one.time_ns + READING_NS for one in readings], np.int64)
    ends = np.searchsorted(curve.times_ns, until, side="right")
    placed: list[PlacedReading] = []
    before: int | None = None
    for reading, count, end in zip(readings, counts.tolist(), ends.tolist(), strict=True):
        is_at_mark = id(reading) in at_marks
        changes = range(count, count + 1 if is_at_mark else max(count, end) + 1)
        one = _place(curve, reading, before, changes, is_at_mark=is_at_mark)
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


def _find_mark_readings(marks: Sequence[Mark], readings: Sequence[Reading]) -> set[int]:
    """The identities of the readings that marks asked for: the first one of the device after each, no event between.

    Later readings after the same event are the interval's, and may fall into whatever the program does before its next.
    """
    times = np.array([one.time_ns for one in readings], np.int64)
    firsts = np.searchsorted(times, np.array([mark.time_ns for mark in marks], np.int64), side="left").tolist()
    return {
        id(readings[first])
        for mark, first in zip(marks, firsts, strict=True)
        if first < len(readings) and readings[first].event == mark.event
    }


def _place(
    curve: ReservedCurve, reading: Reading, before: int | None, changes: range, *, is_at_mark: bool
) -> PlacedReading:
    """The reading with the reserved bytes after the first of `changes`, the segment events that it may have seen, or
    after a later one that leaves nothing changed outside.
    """
    assert reading.process_bytes is not None, "only such readings are placed"
    fitting = [one for one in changes if reading.process_bytes - curve.after_change(one) == before]
    chosen = fitting[0] if fitting else changes.start
    is_settled = len(changes) == 1 or bool(fitting)
    return PlacedReading(reading, reading.process_bytes, curve.after_change(chosen), is_settled, is_at_mark)
