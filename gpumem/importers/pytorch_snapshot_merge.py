"""The events of all devices and the marks, merged into one sequence.

Owns: the order of events, times from the start, stream rows, the rows of marks. Must not know: blocks, segments, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_entries import EntryColumns
from gpumem.importers.pytorch_snapshot_marks import NamedInstant
from gpumem.trace.model import EVENT_COLUMNS, Column, ColumnEvents, Mark, StreamRow
from gpumem.vocabulary import NO_DEVICE, EventIndex, EventKind, MarkKind

STREAM_COUNT_MAX = 2**16 - 1
NS_PER_US = 1000
MARK_KINDS = {MarkKind.MARK: EventKind.MARK, MarkKind.STEP: EventKind.STEP}


class StreamInterner:
    """Streams by device and raw handle; row 0 is none."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], int] = {(-1, 0): 0}

    def row(self, device: int, handle: int) -> int:
        return self.rows.setdefault((device, handle), len(self.rows)) if len(self.rows) < STREAM_COUNT_MAX else 0

    def rows_of(self, device: int, handles: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
        """The rows of a column of handles."""
        if not len(handles):
            return np.zeros(0, dtype=np.uint16)
        changes = np.flatnonzero(np.append(True, handles[1:] != handles[:-1]))
        if len(changes) == 1:
            return np.full(len(handles), self.row(device, int(handles[0])), dtype=np.uint16)
        distinct, place = np.unique(handles, return_inverse=True)
        rows = [self.row(device, handle) for handle in distinct.tolist()]
        return np.array(rows, dtype=np.uint16)[place.reshape(-1)]

    def table(self) -> list[StreamRow]:
        rows = [StreamRow(row, device, handle) for (device, handle), row in self.rows.items()]
        return [StreamRow(0, 0, 0), *rows[1:]]


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """A device's events, ready to be merged."""

    device: int
    events: EntryColumns
    scope: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class MergedEvents:
    """All devices and marks in one sequence."""

    events: ColumnEvents
    marks: Sequence[Mark]
    started_us: int | None
    duration_ns: int


def merge_events(
    devices: Sequence[DeviceEvents],
    instants: Sequence[NamedInstant],
    streams: StreamInterner,
    mark_names: Sequence[str],
) -> MergedEvents:
    """One sequence by time, stable within a device; marks come before, step ends after, the events of their time.

    `mark_names` names the marks that are entries of their own (annotate) by their text. Where a device has events
    without times, devices follow one another and all times are 0.
    """
    timed = all(len(one.events) == 0 or int(one.events.time_us.min()) >= 0 for one in devices)
    marks = [one for one in instants if timed and one.kind is MarkKind.MARK]
    steps = [one for one in instants if timed and one.kind is MarkKind.STEP]
    names = [*mark_names, *(one.name for one in marks), *(one.name for one in steps)]
    parts = [
        _mark_columns(marks, len(mark_names)),
        *(_device_columns(one, streams) for one in devices),
        _mark_columns(steps, len(mark_names) + len(marks)),
    ]
    columns = _joined(parts, timed)
    time_us = columns["time_ns"].astype(np.int64, copy=False)
    started = int(time_us[0]) if timed and len(time_us) else None
    columns["time_ns"] = np.zeros_like(time_us) if started is None else (time_us - started) * NS_PER_US
    made = _number_marks(columns, names)
    duration = int(columns["time_ns"][-1]) if len(time_us) else 0
    return MergedEvents(ColumnEvents(_all_columns(columns)), made, started, duration)


def _joined(parts: Sequence[dict[str, Column]], timed: bool) -> dict[str, Column]:
    parts = [part for part in parts if len(part["kind"])] or list(parts[:1])
    if len(parts) == 1:
        return dict(parts[0])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not timed:
        return columns
    order = np.argsort(columns["time_ns"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def _device_columns(device: DeviceEvents, streams: StreamInterner) -> dict[str, Column]:
    events = device.events
    return {
        "time_ns": np.maximum.accumulate(events.time_us) if len(events) else events.time_us,
        "kind": events.kind,
        "device": np.where(events.kind == EventKind.MARK, np.uint8(NO_DEVICE), np.uint8(device.device)),
        "stream": streams.rows_of(device.device, events.stream),
        "pool": events.pool,
        "address": events.address,
        "requested_bytes": events.bytes,
        "stack": events.stack,
        "scope": device.scope,
        "name": events.text,
    }


def _mark_columns(instants: Sequence[NamedInstant], first_name: int) -> dict[str, Column]:
    """Events of marks; `name` is their row in the names, in order from `first_name`."""
    count = len(instants)
    columns: dict[str, Column] = {
        "time_ns": np.array([one.time_us for one in instants], dtype=np.int64),
        "kind": np.array([MARK_KINDS[one.kind] for one in instants], dtype=np.uint8),
        "device": np.full(count, NO_DEVICE, dtype=np.uint8),
    }
    for name, dtype in _ZEROS.items():
        columns[name] = np.zeros(count, dtype=dtype)
    columns["name"] = np.arange(first_name, first_name + count, dtype=np.uint32)
    return columns


_ZEROS: dict[str, np.dtype[np.generic]] = {
    "stream": np.dtype(np.uint16),
    "pool": np.dtype(np.uint16),
    "address": np.dtype(np.int64),
    "requested_bytes": np.dtype(np.int64),
    "stack": np.dtype(np.uint32),
    "scope": np.dtype(np.uint32),
}


def _number_marks(columns: dict[str, Column], names: Sequence[str]) -> list[Mark]:
    """The marks in the order of events; their events' address becomes the row of the mark."""
    name_rows = columns.pop("name")
    rows = np.flatnonzero(np.isin(columns["kind"], [kind.value for kind in MARK_KINDS.values()]))
    if not len(rows):
        return []
    marks: list[Mark] = []
    step = 0
    is_step = (columns["kind"][rows] == EventKind.STEP).tolist()
    times: list[int] = columns["time_ns"][rows].tolist()
    named: list[int] = name_rows[rows].tolist()
    for row, ends_step, time_ns, name in zip(rows.tolist(), is_step, times, named, strict=True):
        kind = MarkKind.STEP if ends_step else MarkKind.MARK
        marks.append(Mark(kind, names[name], step if ends_step else None, EventIndex(row), time_ns))
        step += ends_step
    for name_of_column, values in (("address", np.arange(len(rows))), ("requested_bytes", 0), ("stream", 0)):
        columns[name_of_column] = columns[name_of_column].copy()
        columns[name_of_column][rows] = values
    return marks


def _all_columns(columns: dict[str, Column]) -> dict[str, Column]:
    count = len(columns["kind"])
    return {
        name: columns[name].astype(dtype, copy=False) if name in columns else np.zeros(count, dtype=dtype)
        for name, dtype in EVENT_COLUMNS.items()
    }
