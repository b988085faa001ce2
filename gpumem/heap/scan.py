"""One pass over a trace: levels at the end, peaks, counts and the blocks in use at the peaks, per device.

Owns: driving levels and live tables through the batches of a window of events. Must not know: files, sites, reports.
The table at a peak is not built when the peak is met (the next batch may top it) but kept as the table before its batch
plus that batch, and built once at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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
from gpumem.heap.live import LiveTable, apply_events, initial_table
from gpumem.heap.segments import SEGMENT_COLUMNS, SegmentHistory
from gpumem.trace.model import EventBatch, Trace
from gpumem.vocabulary import Basis, DeviceOrdinal, EventFlag, EventIndex, EventKind

BEFORE_EVENTS = EventIndex(-1)
FLAG_VALUES = 64
"""Values that the flags of EventFlag make."""


@dataclass(frozen=True, slots=True)
class PeakLevel:
    """The greatest bytes of a curve and the first event after which it held them."""

    peak_bytes: int
    event: EventIndex


@dataclass(frozen=True, slots=True)
class StateAt:
    """A device after an event: its levels and its blocks in use, pending ones included."""

    levels: Levels
    blocks: LiveTable


@dataclass(frozen=True, slots=True)
class DeviceScan:
    """What a window of events did on one device."""

    device: DeviceOrdinal
    start: Levels
    end: Levels
    held_peak: PeakLevel
    requested_peak: PeakLevel
    reserved_peak: PeakLevel
    active_peak: PeakLevel
    kind_counts: Sequence[int]
    peak_blocks: LiveTable
    """Blocks in use after the event of `held_peak`, pending ones included."""
    oom_events: Sequence[EventIndex]
    end_blocks: LiveTable
    """Blocks in use at the end, pending ones included."""
    segments: SegmentHistory
    """Only where the trace knows the device's blocks."""
    flag_counts: Sequence[int]
    """Events in the window by the value of their flags, where the trace knows the device's blocks."""
    state: StateAt
    """After the event that was asked for, else at the end."""
    peak_levels: Levels
    """After the event of `held_peak`."""

    def count_flag(self, flag: EventFlag) -> int:
        """Events with this flag in the window."""
        return sum(count for value, count in enumerate(self.flag_counts) if value & flag)

    def count(self, kind: EventKind) -> int:
        """Events of this kind in the window."""
        return self.kind_counts[kind]


@dataclass(frozen=True, slots=True)
class Window:
    """Events (first, last]: what happens after the moment `first`, up to and with `last`."""

    first: EventIndex
    last: EventIndex


def whole(trace: Trace) -> Window:
    """All events of a trace."""
    return Window(BEFORE_EVENTS, EventIndex(trace.event_count - 1))


def scan_trace(
    trace: Trace,
    *,
    window: Window | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
    carried: Sequence[str] = ("stack",),
    event: EventIndex | None = None,
) -> list[DeviceScan]:
    """Levels, peaks, counts and peak blocks (with the `carried` columns) in a window, one scan a device.

    `event`, which lies in the window, is where the scans' `state` is taken.
    """
    within = window or whole(trace)
    taken_at = within.last if event is None else event
    kept = _kept_columns(trace, carried)
    scanner = _Scanner(trace, kept, devices)
    wanted = kept
    if "block_bytes" in kept:
        wanted = tuple(dict.fromkeys((*kept, *SEGMENT_COLUMNS, "flags")))
    for batch in _batches(trace, wanted, 0, within.first + 1):
        scanner.advance(batch)
    scanner.begin(within.first)
    for batch in _batches(trace, wanted, within.first + 1, taken_at + 1):
        scanner.advance(batch)
    scanner.take_state()
    for batch in _batches(trace, wanted, taken_at + 1, within.last + 1):
        scanner.advance(batch)
    return [scanner.progress[device].finish() for device in sorted(scanner.progress)]


def scan_nothing(
    trace: Trace, device: DeviceOrdinal, window: Window, *, carried: Sequence[str] = ("stack",)
) -> DeviceScan:
    """The scan of a device on which nothing happened."""
    nothing = _Progress(device, basis_of(trace, device), Levels(), initial_table((), _kept_columns(trace, carried)))
    nothing.begin(window.first)
    return nothing.finish()


def live_at(
    trace: Trace,
    event: EventIndex,
    *,
    devices: Collection[DeviceOrdinal] | None = None,
    carried: Sequence[str] = ("stack",),
) -> dict[DeviceOrdinal, LiveTable]:
    """The blocks in use after `event`, with the carried columns, by device."""
    kept = _kept_columns(trace, carried)
    tables = _initial_tables(trace, kept, devices)
    for batch in _batches(trace, kept, 0, event + 1):
        for events in split_by_device(batch, devices):
            before = tables.get(events.device)
            tables[events.device] = apply_events(initial_table((), kept) if before is None else before, events)
    return tables


@dataclass(slots=True)
class _PeakSoFar:
    peak_bytes: int
    event: EventIndex

    def rise(self, curve: npt.NDArray[np.int64], events: DeviceBatch) -> int | None:
        """Takes the curve's peak if it is higher; its position in the batch then."""
        position = int(curve.argmax())
        if int(curve[position]) <= self.peak_bytes:
            return None
        self.peak_bytes, self.event = int(curve[position]), events.event_at(position)
        return position

    def level(self) -> PeakLevel:
        return PeakLevel(self.peak_bytes, self.event)


@dataclass(slots=True)
class _Progress:
    """A device on the way through the trace."""

    device: DeviceOrdinal
    basis: Basis
    levels: Levels
    table: LiveTable
    start: Levels = field(default_factory=Levels)
    peaks: dict[str, _PeakSoFar] = field(default_factory=dict)
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    segments: SegmentHistory | None = None
    flag_counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(FLAG_VALUES, dtype=np.int64))
    peak_levels: Levels = field(default_factory=Levels)
    peak_base: LiveTable | None = None
    peak_batch: tuple[DeviceBatch, int] | None = None
    oom_events: list[EventIndex] = field(default_factory=list)
    state: StateAt | None = None

    def begin(self, event: EventIndex) -> None:
        """Peaks and counts start here, at the levels after `event`."""
        self.start = self.peak_levels = self.levels
        values = {
            "held": self.levels.held_bytes,
            "requested": self.levels.requested_bytes,
            "reserved": self.levels.reserved_bytes,
            "active": self.levels.held_bytes + self.levels.pending_bytes,
        }
        self.peaks = {name: _PeakSoFar(value, event) for name, value in values.items()}
        self.peak_base = self.table

    def observe(self, events: DeviceBatch, levels: LevelColumns) -> None:
        """Counts and peaks of a batch; `self.table` is still the one before it."""
        self.counts += events.kind_counts
        if self.segments is not None:
            self.flag_counts += np.bincount(events["flags"] & (FLAG_VALUES - 1), minlength=FLAG_VALUES)
        position = self.peaks["held"].rise(levels.held_bytes, events)
        if position is not None:
            self.peak_base, self.peak_batch, self.peak_levels = self.table, (events, position), levels.at(position)
        self.peaks["active"].rise(levels.held_bytes + levels.pending_bytes, events)
        if self.basis is Basis.ALLOCATED:
            self.peaks["requested"].rise(levels.requested_bytes, events)
        self.peaks["reserved"].rise(levels.reserved_bytes, events)
        if events.kind_counts[EventKind.OOM]:
            rows = np.flatnonzero(events["kind"] == EventKind.OOM)
            self.oom_events.extend(events.event_at(int(row)) for row in rows)

    def finish(self) -> DeviceScan:
        assert self.peak_base is not None, "begin() comes before finish()"
        blocks = self.peak_base
        if self.peak_batch is not None:
            events, position = self.peak_batch
            blocks = apply_events(blocks, events, position + 1)
        levels = {name: peak.level() for name, peak in self.peaks.items()}
        return DeviceScan(
            self.device,
            self.start,
            self.levels,
            levels["held"],
            levels["requested" if self.basis is Basis.ALLOCATED else "held"],
            levels["reserved"],
            levels["active"],
            self.counts.tolist(),
            blocks,
            tuple(self.oom_events),
            self.table,
            self.segments or SegmentHistory(self.device, ()),
            self.flag_counts.tolist(),
            self.state or StateAt(self.levels, self.table),
            self.peak_levels,
        )


class _Scanner:
    """Every device's progress; counts and peaks from begin() on."""

    def __init__(self, trace: Trace, kept: Sequence[str], devices: Collection[DeviceOrdinal] | None) -> None:
        self.kept, self.devices, self.trace = kept, devices, trace
        self.first_event: EventIndex | None = None
        self.is_state_taken = False
        levels = find_initial_levels(trace)
        self.progress = {
            device: self._progress(device, levels[device], table)
            for device, table in _initial_tables(trace, kept, devices).items()
        }

    def begin(self, event: EventIndex) -> None:
        self.first_event = event
        for one in self.progress.values():
            one.begin(event)

    def take_state(self) -> None:
        self.is_state_taken = True
        for one in self.progress.values():
            one.state = StateAt(one.levels, one.table)

    def advance(self, batch: EventBatch) -> None:
        for events in split_by_device(batch, self.devices):
            one = self.progress.get(events.device) or self._newcomer(events.device)
            levels = measure_levels(events, one.levels, one.basis, str(self.trace.path))
            if self.first_event is not None:
                one.observe(events, levels)
            one.levels = levels.last()
            one.table = apply_events(one.table, events)
            if one.segments is not None:
                one.segments.take(events)

    def _progress(self, device: DeviceOrdinal, levels: Levels, table: LiveTable) -> _Progress:
        basis, segments = basis_of(self.trace, device), None
        if basis is Basis.ALLOCATED:
            initial = [block for block in self.trace.initial_blocks if block.device == device]
            segments = SegmentHistory(device, initial)
        return _Progress(device, basis, levels, table, segments=segments)

    def _newcomer(self, device: DeviceOrdinal) -> _Progress:
        empty = initial_table((), self.kept)
        one = self.progress[device] = self._progress(device, Levels(), empty)
        if self.first_event is not None:
            one.begin(self.first_event)
        if self.is_state_taken:
            one.state = StateAt(Levels(), empty)
        return one


def _initial_tables(
    trace: Trace, kept: Sequence[str], devices: Collection[DeviceOrdinal] | None
) -> dict[DeviceOrdinal, LiveTable]:
    present = {DeviceOrdinal(block.device) for block in trace.initial_blocks}
    return {
        device: initial_table([block for block in trace.initial_blocks if block.device == device], kept)
        for device in sorted(present if devices is None else present & set(devices))
    }


def _kept_columns(trace: Trace, carried: Sequence[str]) -> tuple[str, ...]:
    """The columns that live tables carry: the bytes of every basis and what the caller asks for."""
    return tuple(dict.fromkeys([*bytes_columns(trace), *carried]))


def _batches(trace: Trace, kept: Sequence[str], first: int, end: int) -> Iterator[EventBatch]:
    if end <= first:
        return iter(())
    columns = list(dict.fromkeys(["kind", "device", "address", *kept]))
    return read_in_pieces(trace, columns, first_event=first, end_event=end)
