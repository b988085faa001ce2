"""Which moments of a trace are worth a picture of the heap.

Owns: the choice, at most MOMENTS_MAX of them, in order of time. Must not know: heaps, pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.heap.instants import Instant, time_of
from gpumem.heap.marks import name_marks
from gpumem.heap.scan import BEFORE_EVENTS, DeviceScan
from gpumem.trace.model import Mark, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind, MarkKind

MOMENTS_MAX = 40
OOMS_MAX = 8


@dataclass(frozen=True, slots=True)
class NamedInstant:
    """An instant with the moments that it is, as `--at` takes them, most telling first."""

    names: Sequence[str]
    instant: Instant


def choose_moments(trace: Trace, scan: DeviceScan) -> list[NamedInstant]:
    """Start of use, peaks, out-of-memory events and end, then marks and steps, evenly chosen where they are many."""
    named: dict[EventIndex, list[str]] = {}
    for name, event in _certain(trace, scan):
        named.setdefault(event, []).append(name)
    by_name = list(zip(trace.marks, name_marks(trace.marks), strict=True))
    marks = [one for one in by_name if one[0].kind is MarkKind.MARK]
    steps = [one for one in by_name if one[0].kind is MarkKind.STEP and one[0].step is not None]
    free = MOMENTS_MAX - len(named)
    chosen = _evenly(marks, max(free - len(steps), free // 2))
    chosen += _evenly(steps, free - len(chosen))
    for mark, name in chosen:
        named.setdefault(mark.event, []).append(name)
    return [NamedInstant(names, Instant(event, time_of(trace, event))) for event, names in sorted(named.items())]


def _certain(trace: Trace, scan: DeviceScan) -> Iterator[tuple[str, EventIndex]]:
    yield "peak", scan.held_peak.event
    yield "peak:reserved", scan.reserved_peak.event
    for number, event in enumerate(scan.oom_events[:OOMS_MAX], 1):
        yield "oom" if number == 1 else f"oom:{number}", event
    if any(block.device == scan.device for block in trace.initial_blocks):
        yield "start", BEFORE_EVENTS
    else:
        first = _first_alloc(trace, scan.device)
        if first is not None:
            yield f"event:{first}", first
    yield "end", EventIndex(trace.event_count - 1)


def _first_alloc(trace: Trace, device: DeviceOrdinal) -> EventIndex | None:
    for batch in trace.event_batches(["kind", "device"]):
        rows = np.flatnonzero((batch["kind"] == EventKind.ALLOC) & (batch["device"] == device))
        if len(rows):
            return EventIndex(batch.first_event + int(rows[0]))
    return None


def _evenly(marks: Sequence[tuple[Mark, str]], count: int) -> list[tuple[Mark, str]]:
    if len(marks) <= count:
        return list(marks)
    if count <= 0:
        return []
    rows = np.unique(np.linspace(0, len(marks) - 1, count).round().astype(int))
    return [marks[row] for row in rows.tolist()]
