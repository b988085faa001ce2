"""The largest allocations of a device as bands in time, and the exact curve of all the others.

Owns: which allocations are worth a band, and the sum of the rest. Must not know: pixels, colours, JSON, how bands are
stacked.

Bands are the largest allocations live at the peak, up to half of them, then the largest of all; of equally large ones
those held longer (twice as many events, say), then those made nearest to the peak, so that its surroundings are
complete where steps repeat. At every point of the rest's curve the bands held then and the rest add up to the bytes
held. Its points are the events where bands begin and end, and in each of some two thousand stretches (equal in time,
and equal in events) those with the least and the most, so that nothing that matters falls between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.analyses.allocations import Allocations, find_large_allocations
from gpumem.heap.instants import Instant, time_of
from gpumem.heap.levels import (
    DeviceBatch,
    Levels,
    basis_column,
    basis_of,
    find_initial_levels,
    measure_levels,
    read_in_pieces,
    split_by_device,
)
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import DeviceScan, scan_nothing, scan_trace, whole
from gpumem.trace.model import Trace
from gpumem.vocabulary import Basis, BlockState, DeviceOrdinal, EventKind

BANDS_MAX = 5000
STRETCHES = 1000
"""Of time, and as many of events."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RestCurve:
    """Bytes held by the allocations without a band, after each of some events; the first is before all events."""

    event: Integers
    time_ns: Integers
    held_bytes: Integers


@dataclass(frozen=True, slots=True)
class Bands:
    """What a device held over time: the largest allocations, the rest summed."""

    device: DeviceOrdinal
    basis: Basis
    event_count: int
    duration_ns: int
    allocation_count: int
    """All of them: those of the trace and those held before it."""
    peak: Instant
    peak_bytes: int
    banded_bytes_at_peak: int
    """Of the bytes at the peak, those in bands."""
    bands: Allocations
    rest: RestCurve


def find_bands(
    trace: Trace, device: DeviceOrdinal, *, bands_max: int = BANDS_MAX, scan: DeviceScan | None = None
) -> Bands:
    """The bands of one device; `scan` is that of the whole trace, where it was made already."""
    scanned = scan or next(iter(scan_trace(trace, devices=[device])), None) or scan_nothing(trace, device, whole(trace))
    peak = scanned.held_peak
    live = _largest_live(scanned.peak_blocks, basis_column(trace, device), bands_max // 2)
    found = find_large_allocations(trace, device, bands_max, live=live, live_at=peak.event)
    bands = _choose(found, peak.event, bands_max)
    initial = [block for block in trace.initial_blocks if block.device == device]
    return Bands(
        device,
        basis_of(trace, device),
        trace.event_count,
        trace.meta.duration_ns,
        scanned.count(EventKind.ALLOC) + sum(block.state is BlockState.ALLOCATED for block in initial),
        Instant(peak.event, time_of(trace, peak.event)),
        peak.peak_bytes,
        int(bands.held_bytes[bands.held_after(peak.event)].sum()),
        bands,
        _measure_rest(trace, device, bands),
    )


def _largest_live(blocks: LiveTable, basis: str, count: int) -> LiveTable:
    held = blocks.select(~blocks.pending)
    order = np.argsort(-held[basis].astype(np.int64), kind="stable")
    return held.select(np.sort(order[:count]))


def _choose(found: Allocations, peak_event: int, bands_max: int) -> Allocations:
    """At most `bands_max` of the allocations: of those live at the peak the largest half as many, then any largest."""
    lifetime = np.log2(np.maximum(1, found.end_event - found.start_event)).astype(np.int64)
    distance = np.abs(found.start_event - peak_event)
    largest_first = np.lexsort((found.start_event, distance, -lifetime, -found.held_bytes))
    at_peak = found.held_after(peak_event)[largest_first]
    preferred = at_peak & (np.cumsum(at_peak) <= bands_max // 2)
    ranked = np.concatenate([largest_first[preferred], largest_first[~preferred]])
    return found.select(np.sort(ranked[:bands_max]))


def _measure_rest(trace: Trace, device: DeviceOrdinal, bands: Allocations) -> RestCurve:
    before = find_initial_levels(trace).get(device, Levels())
    banded_bytes = int(bands.held_bytes[bands.start_event < 0].sum())
    changes = _changes(bands)
    parts = [(np.full(1, -1), np.zeros(1, np.int64), np.full(1, before.held_bytes - banded_bytes))]
    columns = tuple({"time_ns", "kind", "device", "requested_bytes", basis_column(trace, device)})
    for batch in read_in_pieces(trace, columns):
        for events in split_by_device(batch, [device]):
            held = measure_levels(events, before, basis_of(trace, device), str(trace.path))
            before = held.last()
            rest, kept = _rest_of(trace, events, held.held_bytes, changes)
            positions = np.flatnonzero(kept)
            parts.append((events.events_at(positions), events["time_ns"][positions], rest[positions]))
    event, time_ns, held_bytes = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return RestCurve(event, time_ns, held_bytes)


@dataclass(frozen=True, slots=True)
class _Changes:
    """Events at which bands begin or end, in order, and the bytes in bands after each; 0 before the first."""

    event: Integers
    banded_bytes: Integers


def _changes(bands: Allocations) -> _Changes:
    event = np.concatenate([bands.start_event, bands.end_event])
    delta = np.concatenate([bands.held_bytes, -bands.held_bytes])
    order = np.argsort(event, kind="stable")
    return _Changes(np.append(-2, event[order]), np.append(0, np.cumsum(delta[order])))


def _rest_of(
    trace: Trace, events: DeviceBatch, held_bytes: Integers, changes: _Changes
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The rest after each event of a batch, and which of them are points of its curve."""
    event = events.events_at(np.arange(events.count))
    latest = np.searchsorted(changes.event, event, side="right") - 1
    rest = held_bytes - changes.banded_bytes[latest]
    kept = changes.event[latest] == event
    for begin, end in _stretches(trace, event, events["time_ns"]):
        for curve in (rest, held_bytes):
            kept[begin + int(curve[begin:end].argmax())] = True
        kept[begin + int(rest[begin:end].argmin())] = True
    return rest, kept


def _stretches(trace: Trace, event: Integers, time_ns: Integers) -> Iterator[tuple[int, int]]:
    """The stretches of a batch of events, as positions in it."""
    at_event = event * STRETCHES // max(1, trace.event_count)
    at_time = time_ns * STRETCHES // max(1, trace.meta.duration_ns)
    is_new = np.ones(len(event), np.bool_)
    is_new[1:] = (np.diff(at_event) != 0) | (np.diff(at_time) != 0)
    begins = np.flatnonzero(is_new)
    yield from zip(begins.tolist(), [*begins[1:].tolist(), len(event)], strict=True)
