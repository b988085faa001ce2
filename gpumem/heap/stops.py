"""The heap of a device after each of several events, in one pass over the trace.

Owns: stopping the live table and the segments on the way. Must not know: sites, reports, which moments are worth it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.heap.levels import DeviceBatch, basis_column, read_in_pieces, split_by_device
from gpumem.heap.live import LiveTable, apply_events, initial_table
from gpumem.heap.segments import SEGMENT_COLUMNS, Segment, SegmentHistory
from gpumem.trace.model import EventBatch, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex


@dataclass(frozen=True, slots=True)
class HeapTable:
    """The segments of a device after an event, by address, and the blocks in use, pending ones included."""

    event: EventIndex
    segments: Sequence[Segment]
    blocks: LiveTable


def heaps_at(
    trace: Trace, events: Sequence[EventIndex], *, device: DeviceOrdinal, carried: Sequence[str] = ("stack",)
) -> list[HeapTable]:
    """The heap of `device` after each of `events`, in the order asked for; blocks have the `carried` columns."""
    if not events:
        return []
    kept = tuple(dict.fromkeys(["requested_bytes", basis_column(trace, device), *carried]))
    initial = [block for block in trace.initial_blocks if block.device == device]
    history = SegmentHistory(device, initial)
    tables = dict(_stop(trace, sorted(set(events)), history, initial_table(initial, kept)))
    segments = {event: history.at(event) for event in tables}
    return [HeapTable(event, segments[event], tables[event]) for event in events]


def _stop(
    trace: Trace, stops: Sequence[EventIndex], history: SegmentHistory, table: LiveTable
) -> Iterator[tuple[EventIndex, LiveTable]]:
    """Each stop with the blocks in use then; the history has the segment events of all of them at the end."""
    columns = tuple(dict.fromkeys(["kind", "device", "address", *table.columns, *SEGMENT_COLUMNS]))
    waiting = list(stops)
    while waiting and waiting[0] < 0:
        yield waiting.pop(0), table
    for batch in read_in_pieces(trace, columns, end_event=stops[-1] + 1):
        of_device = next(split_by_device(batch, [history.device]), None)
        while waiting and waiting[0] < batch.first_event + batch.count:
            stop = waiting.pop(0)
            yield stop, table if of_device is None else _table_at(table, batch, of_device, stop)
        if of_device is not None:
            history.take(of_device)
            table = apply_events(table, of_device)
    yield from ((stop, table) for stop in waiting)


def _table_at(table: LiveTable, batch: EventBatch, events: DeviceBatch, stop: EventIndex) -> LiveTable:
    """The table after `stop`, an event of the batch."""
    count = stop - batch.first_event + 1
    if events.rows is not None:
        count = int(np.searchsorted(events.rows, count))
    return apply_events(table, events, count) if count else table
