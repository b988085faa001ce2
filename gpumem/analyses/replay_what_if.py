"""What a device's requests make of other settings or another card, beside what was recorded.

Owns: figures over the orders of addresses tried, the requests refused or served now. Must not know: layout, how a run
was served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.analyses.sites import SiteFinder
from gpumem.heap.scan import DeviceScan
from gpumem.simulate.what_if import WhatIfRun
from gpumem.trace.model import Frame, Trace
from gpumem.vocabulary import EventIndex, EventKind, StackId


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What an allocator came to; segments are those obtained and given back, mapped ranges included.

    `allocated_bytes_peak` is None where block bytes are not known.
    """

    reserved_bytes_peak: int
    allocated_bytes_peak: int | None
    segment_alloc_count: int
    segment_free_count: int
    oom_count: int


@dataclass(frozen=True, slots=True)
class CountRange:
    """The least and the most over the orders of addresses."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Requests of one site that were served when recorded, and would not be."""

    site: Frame | None
    request_count: int
    requested_bytes_most: int
    first_event: EventIndex
    first_time_ns: int
    stack: Sequence[Frame]
    """Of the first of them."""


@dataclass(frozen=True, slots=True)
class WhatIfFigures:
    """What would be: `figures` with segments at descending addresses, as drivers mostly hand them out."""

    figures: RunFigures
    reserved_bytes_peak: CountRange
    oom_count: CountRange
    saved_bytes: int
    """The recorded peak of reserved bytes less this one; negative where more would be reserved."""
    refused_count: int
    refused_by_site: Sequence[RefusedRequests]
    """Most requests first."""
    served_count: int
    """Requests that ran out of memory when recorded, and would be served."""
    caveats: Sequence[str]
    """What makes the figures less sure, as sentences."""


def recorded_figures(scan: DeviceScan, allocated_bytes_peak: int | None) -> RunFigures:
    """What the trace itself says of a run."""
    return RunFigures(
        reserved_bytes_peak=scan.reserved_peak.peak_bytes,
        allocated_bytes_peak=allocated_bytes_peak,
        segment_alloc_count=scan.count(EventKind.SEGMENT_ALLOC) + scan.count(EventKind.SEGMENT_MAP),
        segment_free_count=scan.count(EventKind.SEGMENT_FREE) + scan.count(EventKind.SEGMENT_UNMAP),
        oom_count=scan.count(EventKind.OOM),
    )


def measure_what_if(
    trace: Trace, runs: Sequence[WhatIfRun], scan: DeviceScan, recorded: RunFigures, caveats: Iterable[str]
) -> WhatIfFigures:
    """The figures of one device; `runs` are those of all orders, descending addresses first."""
    result = runs[0].result
    peaks = [run.result.reserved_bytes_peak for run in runs]
    ooms = [run.result.ooms for run in runs]
    refused = np.setdiff1d(np.array(runs[0].oom_events, np.int64), np.array(scan.oom_events, np.int64))
    return WhatIfFigures(
        figures=RunFigures(
            reserved_bytes_peak=result.reserved_bytes_peak,
            allocated_bytes_peak=result.allocated_bytes_peak,
            segment_alloc_count=result.device_allocs,
            segment_free_count=result.device_frees,
            oom_count=result.ooms,
        ),
        reserved_bytes_peak=CountRange(min(peaks), max(peaks)),
        oom_count=CountRange(min(ooms), max(ooms)),
        saved_bytes=recorded.reserved_bytes_peak - result.reserved_bytes_peak,
        refused_count=result.ooms - (recorded.oom_count - result.served_oom_count),
        refused_by_site=_by_site(trace, refused[refused >= 0]),
        served_count=result.served_oom_count,
        caveats=tuple(caveats),
    )


def _by_site(trace: Trace, events: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[RefusedRequests]:
    finder = SiteFinder(trace)
    groups: dict[Frame | None, list[tuple[int, int, int, StackId]]] = {}
    for row in _rows_of(trace, events):
        groups.setdefault(finder.site(row[3]), []).append(row)
    found = [
        RefusedRequests(
            site=site,
            request_count=len(rows),
            requested_bytes_most=max(requested_bytes for _, _, requested_bytes, _ in rows),
            first_event=EventIndex(rows[0][0]),
            first_time_ns=rows[0][1],
            stack=trace.stack_frames(rows[0][3]),
        )
        for site, rows in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.request_count, one.first_event))


def _rows_of(
    trace: Trace, events: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[tuple[int, int, int, StackId]]:
    """Event, time, requested bytes and stack of these events, which ascend."""
    if not len(events):
        return
    columns = ["time_ns", "requested_bytes", "stack"]
    for batch in trace.event_batches(columns, first_event=int(events[0]), end_event=int(events[-1]) + 1):
        begin, end = np.searchsorted(events, [batch.first_event, batch.first_event + batch.count])
        rows = events[begin:end] - batch.first_event
        for event, *values in zip(
            events[begin:end].tolist(), *(batch[name][rows].tolist() for name in columns), strict=True
        ):
            yield event, values[0], values[1], StackId(values[2])
