"""What was live at the peak, who asked for it, how the cache behaved and what NVML saw.

Owns: the findings of `gpumem summary`. Must not know: text, colours, JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpumem.analyses.holdings import COLUMN_OF_GROUP, GroupBy, Holding, measure_holdings
from gpumem.analyses.oom_event import explain_oom_event
from gpumem.analyses.oom_facts import OomVerdict
from gpumem.analyses.readings import find_reading
from gpumem.heap.figures import HeapFigures, check_levels, measure_heap
from gpumem.heap.instants import Instant, check_order, time_of
from gpumem.heap.levels import basis_column, basis_of
from gpumem.heap.scan import BEFORE_EVENTS, DeviceScan, PeakLevel, Window, scan_nothing, scan_trace, whole
from gpumem.trace.model import DeviceFacts, Reading, Trace, TraceMeta
from gpumem.vocabulary import Basis, DeviceOrdinal, EventFlag, EventIndex, EventKind, MarkKind, TraceSource

OOMS_DESCRIBED = 8


@dataclass(frozen=True, slots=True)
class EndAndPeak:
    """Bytes at the end and at the most; a figure is None where it is not known.

    Where recording began in mid-run the peak may have been before: `peak_recorded` is then the most since.
    """

    end: int | None
    peak: int | None
    peak_recorded: int | None = None


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """How requests were served."""

    hit_count: int
    """Allocs served by a block that was there."""
    split_count: int
    retry_count: int
    """Requests for which the whole cache was given back, in vain where they ran out of memory all the same."""
    garbage_collection_count: int
    """Allocs before which old free blocks were given back."""


@dataclass(frozen=True, slots=True)
class OomEvent:
    """A request that could not be served: `free_bytes` on the card then, `limit_bytes` None without a limit."""

    event: EventIndex
    time_ns: int
    requested_bytes: int
    free_bytes: int
    limit_bytes: int | None
    card_bytes: int


@dataclass(frozen=True, slots=True)
class PeakHolders:
    """The blocks held at the peak, in the basis' bytes."""

    instant: Instant
    step: int | None
    """The step it fell in; None outside steps."""
    basis: Basis
    held_bytes: int
    by_site: Sequence[Holding]
    by_category: dict[str, int]
    unattributed_bytes: int
    """Held by blocks without a Python stack, or by none that is known."""
    unmatched_bytes: int
    """The peak less the bytes of the blocks known: not zero only where the recording lacks events."""
    by: GroupBy | None
    by_key: Sequence[Holding]


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device in one trace."""

    facts: DeviceFacts
    is_recorded: bool
    """Whether an allocator was; else what it held and did is not known, and counts and peaks are those of nothing."""
    requested_bytes: EndAndPeak
    reserved_bytes: EndAndPeak
    allocated_bytes: EndAndPeak | None
    active_bytes: EndAndPeak | None
    torch_allocated_bytes: EndAndPeak | None
    torch_reserved_bytes: EndAndPeak | None
    reserved_peak: Instant
    headroom_bytes: int | None
    """What the card, or the program's limit if lower, leaves above the peak of reserved bytes."""
    heap_end: HeapFigures | None
    heap_peak: HeapFigures | None
    """At the peak of allocated bytes; both None where block bytes are not known."""
    cache: CacheFigures | None
    alloc_count: int
    free_count: int
    segment_alloc_count: int
    """How often the driver gave memory: segments, and growths of expandable ones; as in a replay."""
    segment_free_count: int
    """How often it got some back: segments, and what expandable ones shrank by."""
    segment_map_count: int
    """Of those that gave, the growths of expandable segments."""
    segment_unmap_count: int
    """Of those that took back, the times that they shrank."""
    oom_count: int
    ooms: Sequence[OomEvent]
    oom_verdict: OomVerdict | None
    """Why the first of them happened."""
    peak: PeakHolders
    nvml: Reading | None
    """The reading that shows the peak best; without a recorded allocator the one with most of the process's bytes."""
    nvml_end: Reading | None
    """The last reading."""
    nvml_process_bytes_peak: int | None
    nvml_free_bytes_min: int | None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A whole trace, or the window of it that was asked for."""

    path: str
    meta: TraceMeta
    events: int
    start: Instant | None
    end: Instant | None
    devices: Sequence[DeviceSummary]


def summarise_trace(
    trace: Trace,
    *,
    start: Instant | None = None,
    end: Instant | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
    by: GroupBy | None = None,
    scanned: Sequence[DeviceScan] | None = None,
) -> TraceSummary:
    """The findings on a trace between two moments (all of it by default); raises UsageError if they are in disorder.

    `scanned`: the scan of this window and these devices, where it was made already.
    """
    window = _window(trace, start, end)
    if scanned is None:
        scanned = scan_trace(trace, window=window, devices=devices, carried=_carried_columns(by))
    scans = {scan.device: scan for scan in scanned}
    facts = {DeviceOrdinal(one.device): one for one in trace.meta.devices}
    wanted = _devices_to_report(trace, scans, devices)
    readings = _readings_within(trace, start, end)
    summaries = [
        _device_summary(trace, facts.get(device, DeviceFacts(device)), scans.get(device), window, readings, by)
        for device in wanted
    ]
    return TraceSummary(str(trace.path), trace.meta, trace.event_count, start, end, summaries)


def _devices_to_report(
    trace: Trace, scans: Collection[DeviceOrdinal], devices: Collection[DeviceOrdinal] | None
) -> list[DeviceOrdinal]:
    """The devices asked for; else those with events, else those known, else those that NVML read."""
    if devices is not None:
        return sorted(devices)
    known = {DeviceOrdinal(facts.device) for facts in trace.meta.devices}
    return sorted(scans or known or {DeviceOrdinal(reading.device) for reading in trace.readings})


def _carried_columns(by: GroupBy | None) -> tuple[str, ...]:
    """The columns that the blocks at the peak are told apart by."""
    return ("stack", COLUMN_OF_GROUP[by]) if by in COLUMN_OF_GROUP else ("stack",)


def _window(trace: Trace, start: Instant | None, end: Instant | None) -> Window:
    if start is not None and end is not None:
        check_order(start, end)
    everything = whole(trace)
    first = everything.first if start is None else start.event
    last = everything.last if end is None else end.event
    return Window(first, last)


def _readings_within(trace: Trace, start: Instant | None, end: Instant | None) -> Sequence[Reading]:
    first = 0 if start is None else start.time_ns
    last = max(trace.meta.duration_ns, first) if end is None else end.time_ns
    if start is None and end is None:
        return trace.readings
    return [reading for reading in trace.readings if first <= reading.time_ns <= last]


def _device_summary(
    trace: Trace,
    facts: DeviceFacts,
    scan: DeviceScan | None,
    window: Window,
    readings: Sequence[Reading],
    by: GroupBy | None,
) -> DeviceSummary:
    found = scan or scan_nothing(trace, DeviceOrdinal(facts.device), window, carried=_carried_columns(by))
    known = basis_of(trace, facts.device) is Basis.ALLOCATED
    of_device = [reading for reading in readings if reading.device == facts.device]
    peak = _peak_holders(trace, found, by)
    end = found.end
    heap_end, heap_peak = _heap_figures(trace, found, window) if known else (None, None)
    history = found.segments if scan is not None and known and window == whole(trace) else None
    is_recorded = scan is not None or trace.meta.source is not TraceSource.NONE
    figures = partial(_end_and_peak, is_recorded, trace.meta.history_truncated and window.first == BEFORE_EVENTS)
    return DeviceSummary(
        facts=facts,
        is_recorded=is_recorded,
        requested_bytes=figures(end.requested_bytes, found.requested_peak),
        reserved_bytes=figures(end.reserved_bytes, found.reserved_peak),
        allocated_bytes=figures(end.held_bytes, found.held_peak) if known else None,
        active_bytes=figures(end.held_bytes + end.pending_bytes, found.active_peak) if known else None,
        torch_allocated_bytes=_torch(facts.torch_allocated_bytes_end, facts.torch_allocated_bytes_peak),
        torch_reserved_bytes=_torch(facts.torch_reserved_bytes_end, facts.torch_reserved_bytes_peak),
        heap_end=heap_end,
        heap_peak=heap_peak,
        cache=_cache_figures(found) if known else None,
        reserved_peak=Instant(found.reserved_peak.event, time_of(trace, found.reserved_peak.event)),
        headroom_bytes=_headroom(facts, figures(0, found.reserved_peak).peak),
        alloc_count=found.count(EventKind.ALLOC),
        free_count=found.count(EventKind.FREE) + found.count(EventKind.FREE_REQUESTED),
        segment_alloc_count=found.count(EventKind.SEGMENT_ALLOC) + found.count(EventKind.SEGMENT_MAP),
        segment_free_count=found.count(EventKind.SEGMENT_FREE) + found.count(EventKind.SEGMENT_UNMAP),
        segment_map_count=found.count(EventKind.SEGMENT_MAP),
        segment_unmap_count=found.count(EventKind.SEGMENT_UNMAP),
        oom_count=found.count(EventKind.OOM),
        ooms=[_oom_event(trace, event) for event in found.oom_events[:OOMS_DESCRIBED]],
        oom_verdict=explain_oom_event(trace, found.oom_events[0]) if found.oom_events else None,
        peak=peak,
        nvml=find_reading(trace, DeviceOrdinal(facts.device), peak.instant, of_device, history)
        if is_recorded
        else max(of_device, key=lambda reading: reading.process_bytes or 0, default=None),
        nvml_end=max(of_device, key=lambda reading: reading.time_ns, default=None),
        nvml_process_bytes_peak=max(_known(one.process_bytes for one in of_device), default=None),
        nvml_free_bytes_min=min(_known(one.free_bytes for one in of_device), default=None),
    )


def _known(figures: Iterable[int | None]) -> list[int]:
    return [figure for figure in figures if figure is not None]


def _end_and_peak(is_recorded: bool, is_peak_lost: bool, end_bytes: int, most: PeakLevel) -> EndAndPeak:
    """The figures of a curve; where recording began in mid-run its peak is the most since."""
    if not is_recorded:
        return EndAndPeak(None, None)
    return EndAndPeak(end_bytes, None, most.peak_bytes) if is_peak_lost else EndAndPeak(end_bytes, most.peak_bytes)


def _peak_holders(trace: Trace, scan: DeviceScan, by: GroupBy | None) -> PeakHolders:
    column = basis_column(trace, scan.device)
    blocks = scan.peak_blocks.select(~scan.peak_blocks.pending)
    known_bytes = int(blocks[column].astype(np.int64).sum())
    unmatched = scan.held_peak.peak_bytes - known_bytes
    by_site = measure_holdings(trace, blocks, column, GroupBy.SITE)
    without_stack = int(blocks[column][blocks["stack"] == 0].astype(np.int64).sum())
    event = scan.held_peak.event
    return PeakHolders(
        instant=Instant(event, time_of(trace, event)),
        step=_step_of(trace, event),
        basis=basis_of(trace, scan.device),
        held_bytes=scan.held_peak.peak_bytes,
        by_site=by_site + ([Holding(None, None, unmatched, 0, 0, ())] if unmatched else []),
        by_category={"other": scan.held_peak.peak_bytes},
        unattributed_bytes=without_stack + max(0, unmatched),
        unmatched_bytes=unmatched,
        by=by,
        by_key=() if by is None else measure_holdings(trace, blocks, column, by),
    )


def _heap_figures(trace: Trace, scan: DeviceScan, window: Window) -> tuple[HeapFigures, HeapFigures]:
    """The heap at the end and at the peak, held to the sums of the events; raises TraceTruncated where they differ."""
    where, peak_event = str(trace.path), scan.held_peak.event
    end = measure_heap(scan.segments.at(window.last), scan.end_blocks, window.last, where)
    check_levels(end, scan.end, window.last, where)
    peak = measure_heap(scan.segments.at(peak_event), scan.peak_blocks, peak_event, where)
    return end, peak


def _cache_figures(scan: DeviceScan) -> CacheFigures:
    return CacheFigures(
        scan.count_flag(EventFlag.CACHE_HIT),
        scan.count_flag(EventFlag.SPLIT),
        scan.count_flag(EventFlag.RETRIED),
        scan.count_flag(EventFlag.GARBAGE_COLLECTED),
    )


def _step_of(trace: Trace, event: EventIndex) -> int | None:
    """The first step that ends at `event` or later."""
    later = [mark for mark in trace.marks if mark.kind is MarkKind.STEP and mark.event >= event]
    return min(later, key=lambda mark: mark.event).step if later else None


def _torch(end: int | None, peak: int | None) -> EndAndPeak | None:
    return None if end is None and peak is None else EndAndPeak(end, peak)


def _headroom(facts: DeviceFacts, reserved_bytes_peak: int | None) -> int | None:
    if reserved_bytes_peak is None:
        return None
    bounds = [bound for bound in (facts.capacity_bytes, facts.memory_limit_bytes) if bound is not None]
    return min(bounds) - reserved_bytes_peak if bounds else None


def _oom_event(trace: Trace, event: EventIndex) -> OomEvent:
    columns = ("time_ns", "requested_bytes", "address", "block_bytes", "split_bytes")
    batch = next(iter(trace.event_batches(columns, first_event=event, end_event=event + 1)))
    time_ns, requested, free, limit, card = (int(batch[name][0]) for name in columns)
    return OomEvent(event, time_ns, requested, free, limit or None, card)
