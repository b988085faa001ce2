"""Records of a journal window as event columns, and event positions as rows.

Owns: which records of a window become events, and the way from a position in the journal to a row of the trace. Must
not know: files, parts, what an event does to the heap.

A position is the number a record got when it was written. A row is its place in the trace: positions never committed
and events superseded by the state at a later border have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gpumem.trace.allocators import AllocatorCode, codes_of
from gpumem.trace.event_parts import PartMark, PartWindow
from gpumem.trace.journal import Window, WindowRecords
from gpumem.trace.model import Column
from gpumem.vocabulary import EventKind


@dataclass(frozen=True, slots=True)
class Superseded:
    """Events that the recorded states at borders replace: those of an allocator of a device before its position."""

    ends: Mapping[tuple[int, AllocatorCode], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """No event from this position on is replaced."""
        return max(self.ends.values(), default=0)

    def covers(self, columns: Mapping[str, Column], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events are replaced."""
        codes = codes_of(columns["flags"])
        replaced = np.zeros(len(positions), np.bool_)
        for (device, code), end in self.ends.items():
            replaced |= (columns["device"] == device) & (codes == code) & (positions < end)
        return replaced


@dataclass(frozen=True, slots=True)
class WindowEvents:
    """The events of one window as columns, and where they came from."""

    columns: dict[str, Column]
    window: PartWindow


def window_events(
    window: Window, found: WindowRecords, *, started_ns: int, superseded: Superseded, first_mark: int
) -> WindowEvents:
    """The columns of a window's committed, not superseded records; marks count on from row `first_mark`."""
    columns, slots = dict(found.columns), found.slots
    if window.first_record < superseded.end and len(slots):
        kept = ~superseded.covers(columns, slots + window.first_record)
        columns, slots = {name: column[kept] for name, column in columns.items()}, slots[kept]
    started = np.uint64(started_ns)
    times = (np.maximum(columns["time_ns"], started) - started).astype(np.int64)
    columns["time_ns"] = times
    marks = _take_marks(columns, first_mark)
    part_window = PartWindow(
        first_record=window.first_record,
        record_count=found.record_count,
        records_lost=found.lost_count,
        last_time_ns=int(times.max(initial=0)),
        removed=_removed_ranges(slots, found.record_count, window.first_record),
        marks=marks,
    )
    return WindowEvents(columns, part_window)


def is_superseded(columns: Mapping[str, Column], window: PartWindow, superseded: Superseded) -> npt.NDArray[np.bool_]:
    """Which rows of a window the state at a later border replaces."""
    return superseded.covers(columns, _positions(window))


def without_superseded(columns: Mapping[str, Column], window: PartWindow, superseded: Superseded) -> WindowEvents:
    """The rows of a window that the state at a later border leaves."""
    kept = ~is_superseded(columns, window, superseded)
    rows = np.cumsum(kept) - 1
    slots = _positions(window)[kept] - window.first_record
    return WindowEvents(
        {name: column[kept] for name, column in columns.items()},
        replace(
            window,
            removed=_removed_ranges(slots, window.record_count, window.first_record),
            marks=tuple(replace(mark, row=int(rows[mark.row])) for mark in window.marks),
        ),
    )


def _positions(window: PartWindow) -> npt.NDArray[np.int64]:
    """The position of each row."""
    return np.concatenate([np.arange(first, end) for first, end in _kept_ranges(window)])


def _take_marks(columns: dict[str, Column], first_mark: int) -> tuple[PartMark, ...]:
    """The marks among the events; their address becomes the row of the marks table."""
    kinds, addresses = columns["kind"], columns["address"]
    rows = np.flatnonzero((kinds == EventKind.MARK) | (kinds == EventKind.STEP))
    if not len(rows):
        return ()
    steps = np.where(kinds[rows] == EventKind.STEP, columns["requested_bytes"][rows].astype(np.int64), -1)
    fields = (rows, addresses[rows], steps, columns["time_ns"][rows])
    marks = tuple(PartMark(*(int(value) for value in mark)) for mark in zip(*fields, strict=True))
    addresses[rows] = np.arange(first_mark, first_mark + len(rows), dtype=np.uint64)
    return marks


def _removed_ranges(slots: npt.NDArray[np.int64], record_count: int, first_record: int) -> tuple[tuple[int, int], ...]:
    """The positions without a row as (first, end) ranges."""
    if len(slots) == record_count:
        return ()
    bounds = np.concatenate([[-1], slots, [record_count]])
    before = np.flatnonzero(np.diff(bounds) > 1)
    return tuple((int(bounds[place]) + 1 + first_record, int(bounds[place + 1]) + first_record) for place in before)


class RowPositions:
    """The rows of positions, over the windows of a trace in order."""

    def __init__(self, windows: Sequence[PartWindow]) -> None:
        self._starts = np.array([first for window in windows for first, _ in _kept_ranges(window)], np.int64)
        self._ends = np.array([end for window in windows for _, end in _kept_ranges(window)], np.int64)
        self._rows = np.concatenate([[0], np.cumsum(self._ends - self._starts)])

    def rows_before(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """How many events have a lower position, for each of `positions`."""
        if not len(self._starts):
            return np.zeros(len(positions), np.int64)
        limited = np.minimum(positions, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
        place = np.searchsorted(self._starts, limited, "right") - 1
        inside = np.minimum(limited, self._ends[place]) - self._starts[place]
        rows: npt.NDArray[np.int64] = np.where(place < 0, 0, self._rows[place] + inside)
        return rows


def _kept_ranges(window: PartWindow) -> list[tuple[int, int]]:
    starts = [window.first_record, *(end for _, end in window.removed)]
    ends = [*(first for first, _ in window.removed), window.first_record + window.record_count]
    return [(first, end) for first, end in zip(starts, ends, strict=True) if end > first]
