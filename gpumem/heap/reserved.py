"""What the allocator held from the driver at any event of a trace: its reserved bytes as steps.

Owns: the curve of one device and looking it up. Must not know: readings, blocks, reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import find_initial_levels, read_in_pieces
from gpumem.heap.segments import SegmentHistory
from gpumem.trace.model import EVENT_COLUMNS, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind

Numbers = npt.NDArray[np.int64]

_OBTAINED = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
_RETURNED = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)
_COLUMNS = ("kind", "device", "requested_bytes", "time_ns")
_NEAR_EVENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class ReservedCurve:
    """The segment events of a device: reserved bytes are `initial_bytes` before the first, `reserved_bytes[i]` from
    event `events[i]` on.
    """

    initial_bytes: int
    events: Numbers
    times_ns: Numbers
    reserved_bytes: Numbers

    def at(self, event: EventIndex) -> int:
        """Reserved bytes after `event`."""
        return self.after_change(self.count_until(event))

    def count_until(self, event: EventIndex) -> int:
        """How many segment events there are up to `event`."""
        return int(np.searchsorted(self.events, event, side="right"))

    def after_change(self, count: int) -> int:
        """Reserved bytes after the first `count` segment events."""
        return int(self.reserved_bytes[count - 1]) if count else self.initial_bytes


def find_reserved_curve(trace: Trace, device: DeviceOrdinal, history: SegmentHistory | None = None) -> ReservedCurve:
    """The reserved bytes of `device` over the whole trace, those from before the recording included.

    `history`: its segment events of the whole trace, where they were gathered already.
    """
    columns = _read_segment_events(trace, device) if history is None else history.columns()
    kind, amount = columns["kind"], columns["requested_bytes"].astype(np.int64)
    signed = np.where(np.isin(kind, _OBTAINED), amount, -amount)
    events = columns["event"].astype(np.int64)
    times = columns["time_ns"].astype(np.int64) if history is None else _read_times(trace, events)
    initial = find_initial_levels(trace).get(device)
    initial_bytes = 0 if initial is None else initial.reserved_bytes
    return ReservedCurve(initial_bytes, events, times, initial_bytes + np.cumsum(signed))


def _read_segment_events(trace: Trace, device: DeviceOrdinal) -> dict[str, Numbers]:
    parts: list[dict[str, Numbers]] = []
    for batch in read_in_pieces(trace, _COLUMNS):
        rows = np.flatnonzero(np.isin(batch["kind"], (*_OBTAINED, *_RETURNED)) & (batch["device"] == device))
        if len(rows):
            part = {name: batch[name][rows] for name in ("kind", "requested_bytes", "time_ns")}
            parts.append(part | {"event": batch.first_event + rows.astype(np.int64)})
    types = {name: EVENT_COLUMNS[name] for name in ("kind", "requested_bytes", "time_ns")}
    types["event"] = np.dtype(np.int64)
    return {name: np.concatenate([np.zeros(0, kind), *(part[name] for part in parts)]) for name, kind in types.items()}


def _read_times(trace: Trace, events: Numbers) -> Numbers:
    """The times of these events, which ascend; what lies between them is not read where it is much."""
    times = np.zeros(len(events), np.int64)
    begins = np.flatnonzero(np.diff(events, prepend=-_NEAR_EVENTS) >= _NEAR_EVENTS).tolist()
    for begin, end in pairwise([*begins, len(events)]):
        first, last = int(events[begin]), int(events[end - 1])
        for batch in trace.event_batches(("time_ns",), first_event=first, end_event=last + 1):
            chosen = begin + np.searchsorted(events[begin:end], [batch.first_event, batch.first_event + batch.count])
            rows = events[chosen[0] : chosen[1]] - batch.first_event
            times[chosen[0] : chosen[1]] = batch["time_ns"][rows]
    return times
