"""Which event of a trace a moment is.

Owns: Moment -> Instant, and errors that say what the trace has. Must not know: the grammar (trace/moments.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from gpumem.errors import MomentUnknown, UsageError
from gpumem.heap.levels import (
    DeviceBatch,
    LevelColumns,
    bytes_columns,
    find_initial_levels,
    measure_levels,
    merge_devices,
    read_in_pieces,
    sum_levels,
    with_basis_bytes,
)
from gpumem.heap.marks import find_mark, find_numbered, list_marks
from gpumem.trace.model import Mark, Trace
from gpumem.trace.moments import (
    AtEvent,
    AtMark,
    AtStep,
    AtTime,
    End,
    Moment,
    OutOfMemory,
    Peak,
    PeakOf,
    Start,
)
from gpumem.units import format_count, format_duration
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind, MarkKind


@dataclass(frozen=True, slots=True)
class Instant:
    """An event and its time; the state meant is the one after it. Event -1 is before the first."""

    event: EventIndex
    time_ns: int


Devices = Collection[DeviceOrdinal] | None


def check_order(first: Instant, last: Instant) -> None:
    """Raises UsageError where a window from `first` to `last` would end before it begins."""
    if (last.event, last.time_ns) >= (first.event, first.time_ns):
        return
    is_event_telling = first.event != last.event
    begin, end = (_describe(one, is_event_telling=is_event_telling) for one in (first, last))
    raise UsageError(f"--to ({end}) comes before --from ({begin}); exchange them.")


def _describe(instant: Instant, *, is_event_telling: bool) -> str:
    if instant.event < 0 and not instant.time_ns:
        return "the start"
    if is_event_telling and instant.event >= 0:
        return f"event {format_count(instant.event)}"
    return f"{Decimal(instant.time_ns) / 10**9:f} s"


def find_instant(trace: Trace, moment: Moment, *, devices: Devices = None) -> Instant:
    """The event that `moment` is in `trace`; peaks and out-of-memory events are those of `devices` taken together.

    Raises MomentUnknown, naming what there is, where the trace has no such moment.
    """
    match moment:
        case Start():
            return Instant(EventIndex(-1), 0)
        case End():
            return Instant(EventIndex(trace.event_count - 1), trace.meta.duration_ns)
        case Peak(of):
            event = _find_peak(trace, of, devices)
            return Instant(event, time_of(trace, event))
        case OutOfMemory(ordinal):
            event = _find_oom(trace, ordinal, devices)
            return Instant(event, time_of(trace, event))
        case AtMark(name):
            mark = _find_mark(trace, name)
            return Instant(mark.event, mark.time_ns)
        case AtStep(step):
            mark = _find_step(trace, step)
            return Instant(mark.event, mark.time_ns)
        case AtEvent(event):
            return _at_event(trace, event)
        case AtTime(time_ns, from_end):
            return _at_time(trace, trace.meta.duration_ns - time_ns if from_end else time_ns)


def time_of(trace: Trace, event: EventIndex) -> int:
    """The time of an event; 0 before the first."""
    if event < 0:
        return 0
    batch = next(iter(trace.event_batches(["time_ns"], first_event=event, end_event=event + 1)))
    return int(batch["time_ns"][0])


def _find_peak(trace: Trace, of: PeakOf, devices: Devices) -> EventIndex:
    initial = find_initial_levels(trace)
    levels = sum_levels(one for device, one in initial.items() if devices is None or device in devices)
    peak_bytes = {
        PeakOf.ALLOCATED: levels.held_bytes,
        PeakOf.RESERVED: levels.reserved_bytes,
        PeakOf.ACTIVE: levels.held_bytes + levels.pending_bytes,
    }[of]
    peak_event = EventIndex(-1)
    for batch in read_in_pieces(trace, ("kind", "device", *bytes_columns(trace))):
        in_basis, basis = with_basis_bytes(trace, batch)
        events = merge_devices(in_basis, devices)
        if not events.count:
            continue
        after = measure_levels(events, levels, basis, str(trace.path))
        levels = after.last()
        position, value = _highest(events, after, of)
        if value > peak_bytes:
            peak_bytes, peak_event = value, events.event_at(position)
    return peak_event


def _highest(events: DeviceBatch, after: LevelColumns, of: PeakOf) -> tuple[int, int]:
    curve = {
        PeakOf.ALLOCATED: after.held_bytes,
        PeakOf.RESERVED: after.reserved_bytes,
        PeakOf.ACTIVE: after.held_bytes + after.pending_bytes,
    }[of]
    position = int(curve.argmax())
    return position, int(curve[position])


def _find_oom(trace: Trace, ordinal: int, devices: Devices) -> EventIndex:
    seen = 0
    for batch in trace.event_batches(["kind", "device"]):
        chosen = batch["kind"] == EventKind.OOM
        if devices is not None:
            chosen &= np.isin(batch["device"], list(devices))
        rows = np.flatnonzero(chosen)
        if seen + len(rows) >= ordinal:
            return EventIndex(batch.first_event + int(rows[ordinal - seen - 1]))
        seen += len(rows)
    if not seen:
        raise MomentUnknown(f"{trace.path.name} has no out-of-memory event. {_moments_of(trace)}")
    has = "only oom" if seen == 1 else f"oom to oom:{seen}"
    raise MomentUnknown(f"{trace.path.name} has no oom:{ordinal}; it has {has}.")


def _find_mark(trace: Trace, name: str) -> Mark:
    mark = find_mark(trace.marks, name)
    if mark is not None:
        return mark
    same, _ = find_numbered(trace.marks, name)
    if same:
        raise MomentUnknown(f"{trace.path.name} has no mark:{name}; it has {list_marks(same)}.")
    names = list_marks(trace.marks)
    has = f"it has: {names}." if names else "it has no marks. " + _moments_of(trace)
    raise MomentUnknown(f"{trace.path.name} has no mark '{name}'; {has}")


def _find_step(trace: Trace, step: int) -> Mark:
    steps = [mark for mark in trace.marks if mark.kind is MarkKind.STEP]
    for mark in steps:
        if mark.step == step:
            return mark
    numbers = [mark.step for mark in steps if mark.step is not None]
    has = f"it has step:{min(numbers)} to step:{max(numbers)}." if numbers else "no steps were marked. "
    raise MomentUnknown(f"{trace.path.name} has no step:{step}; {has}" + ("" if numbers else _moments_of(trace)))


def _at_event(trace: Trace, event: int) -> Instant:
    if event < trace.event_count:
        return Instant(EventIndex(event), time_of(trace, EventIndex(event)))
    last = trace.event_count - 1
    has = f"its events are event:0 to event:{last}" if last >= 0 else "it has no events"
    raise MomentUnknown(f"{trace.path.name} has no event:{event}; {has}.")


def _at_time(trace: Trace, time_ns: int) -> Instant:
    if not 0 <= time_ns <= trace.meta.duration_ns:
        seconds = trace.meta.duration_ns / 10**9
        raise MomentUnknown(
            f"{trace.path.name} lasts {format_duration(trace.meta.duration_ns)}; "
            f"name a time from 0s to {seconds:.9g}s, or one before the end, such as -1s."
        )
    event = -1
    for batch in trace.event_batches(["time_ns"]):
        earlier = np.flatnonzero(batch["time_ns"] <= time_ns)
        if len(earlier):
            event = batch.first_event + int(earlier[-1])
    return Instant(EventIndex(event), time_ns)


def _moments_of(trace: Trace) -> str:
    """The moments of a trace, in a sentence."""
    has = ["start", "end", "peak"]
    steps = [mark.step for mark in trace.marks if mark.kind is MarkKind.STEP and mark.step is not None]
    if steps:
        has.append(f"step:{min(steps)} to step:{max(steps)}")
    names = list_marks([mark for mark in trace.marks if mark.kind is MarkKind.MARK])
    if names:
        has.append(names)
    if trace.event_count:
        has.append(f"event:0 to event:{trace.event_count - 1}")
    has.append(f"0s to {trace.meta.duration_ns / 10**9:.4g}s")
    return f"It has {', '.join(has)}."
