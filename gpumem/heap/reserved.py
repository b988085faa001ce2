"""What the allocator held from the driver at any event of a trace: its reserved bytes as steps.

Owns: the curve of one device and looking it up. Must not know: readings, blocks, reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import find_initial_levels, read_in_pieces
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind

Numbers = npt.NDArray[np.int64]

_OBTAINED = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
_RETURNED = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)
_COLUMNS = ("kind", "device", "requested_bytes", "time_ns")


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


def find_reserved_curve(trace: Trace, device: DeviceOrdinal) -> ReservedCurve:
    """The reserved bytes of `device` over the whole trace, those from before the recording included."""
    parts: list[tuple[Numbers, Numbers, Numbers]] = []
    for batch in read_in_pieces(trace, _COLUMNS):
        kind = batch["kind"]
        rows = np.flatnonzero(np.isin(kind, (*_OBTAINED, *_RETURNED)) & (batch["device"] == device))
        if len(rows):
            amount = batch["requested_bytes"][rows].astype(np.int64)
            signed = np.where(np.isin(kind[rows], _OBTAINED), amount, -amount)
            parts.append((batch.first_event + rows.astype(np.int64), batch["time_ns"][rows].astype(np.int64), signed))
    initial = find_initial_levels(trace).get(device)
    initial_bytes = 0 if initial is None else initial.reserved_bytes
    nothing = np.zeros(0, np.int64)
    events, times, signed = (np.concatenate([nothing, *(part[column] for part in parts)]) for column in range(3))
    return ReservedCurve(initial_bytes, events, times, initial_bytes + np.cumsum(signed))
