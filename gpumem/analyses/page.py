"""Everything that one page shows of one or several traces.

Owns: gathering the findings of the other analyses, view by view. Must not know: HTML, colours.
A view is one device of one trace; a page with many views draws each more coarsely (page_detail.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from gpumem.analyses.beginning import find_beginning_ns
from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_findings import Held, TraceDiff
from gpumem.analyses.explain import Ledger, find_ledger
from gpumem.analyses.oom_facts import OomVerdict
from gpumem.analyses.page_canvases import PageCanvases, find_canvases
from gpumem.analyses.page_curves import PageCurves, find_curves
from gpumem.analyses.page_detail import Detail
from gpumem.analyses.page_flame import PeakFlame, find_flame
from gpumem.analyses.page_readings import PageReadings, thin_readings
from gpumem.analyses.page_shares import PageShares, find_shares
from gpumem.analyses.page_sites import PageSites, list_sites
from gpumem.analyses.summary import DeviceSummary, TraceSummary, summarise_trace
from gpumem.heap.instants import find_instant
from gpumem.heap.scan import DeviceScan, scan_trace
from gpumem.trace.model import Frame, Mark, Trace
from gpumem.trace.moments import End
from gpumem.vocabulary import DeviceOrdinal, EventIndex, MarkKind

DIFF_GROUPS_LISTED = 150

PARTS = 4
"""Of the work on a trace, as progress is told."""
Progress = Callable[[str, int, int], None]
"""Told what is being done, as the how manieth of how many parts."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site in the table of a view; `stack` is its heaviest at the peak, innermost frame first."""

    site: Frame | None
    peak_bytes: int
    block_count: int
    most_bytes: int
    """The most that it held at any event looked at."""
    alloc_count: int
    stack: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class PageView:
    """One device of one trace."""

    trace: int
    """Position of its trace on the page."""
    summary: DeviceSummary
    curves: PageCurves | None
    """None, as all below, where the device had no events."""
    beginning_ns: int
    """From when on the curves are shown at first."""
    shares: PageShares | None
    flame: PeakFlame | None
    canvases: PageCanvases | None
    readings: PageReadings
    ledger: Ledger | None
    """At the peak."""
    oom: OomVerdict | None
    """On the first request that could not be served."""
    site_rows: Sequence[SiteRow]
    site_count: int
    """Sites that there are, of which `site_rows` has the first."""


@dataclass(frozen=True, slots=True)
class PageTrace:
    """One trace: its summary and its marks; `mark_count` says how many there are."""

    summary: TraceSummary
    marks: Sequence[Mark]
    mark_count: int


@dataclass(frozen=True, slots=True)
class PageFindings:
    """All that a page shows."""

    traces: Sequence[PageTrace]
    views: Sequence[PageView]
    """Those with figures, by trace and device."""
    sites: PageSites
    diff: TraceDiff | None
    """What changed, where there are two traces."""

    @property
    def first_view(self) -> int:
        """The view that reserved the most, which is looked at first."""
        return max(range(len(self.views)), key=lambda at: (_reserved(self.views[at].summary), -at), default=0)


def find_page(
    traces: Sequence[Trace],
    *,
    devices: Sequence[Collection[DeviceOrdinal] | None] | None = None,
    progress: Progress = lambda part, number, count: None,
    coarseness: int = 1,
) -> PageFindings:
    """What there is to show of `traces`, of the devices given for each; a `coarseness` of 2 shows half as much."""
    wanted = devices or [None] * len(traces)
    scans, summaries = [], []
    for number, (trace, of_trace) in enumerate(zip(traces, wanted, strict=True)):
        progress(f"{trace.path.name}: peaks", number, PARTS * len(traces))
        scans.append(scan_trace(trace, devices=of_trace))
        summaries.append(summarise_trace(trace, devices=of_trace, scanned=scans[-1]))
    detail = Detail.of(sum(len(summary.devices) for summary in summaries), coarseness)
    drawn = _drawn_views(summaries, detail.views)
    views: list[PageView] = []
    for number, (trace, summary) in enumerate(zip(traces, summaries, strict=True)):
        chosen = [device for device in summary.devices if (number, device.facts.device) in drawn]
        first = len(traces) + number * (PARTS - 1)

        def tell(part: str, done: int, name: str = trace.path.name, first: int = first) -> None:
            progress(f"{name}: {part}", first + done, PARTS * len(traces))

        views.extend(_find_views(trace, number, chosen, scans[number], detail, tell))
    found = [PageTrace(summary, *_marks(trace, detail)) for trace, summary in zip(traces, summaries, strict=True)]
    diff = _compare(traces, wanted, scans) if len(traces) == 2 else None
    return PageFindings(found, views, list_sites(_named(views, diff)), diff)


def _compare(
    traces: Sequence[Trace],
    devices: Sequence[Collection[DeviceOrdinal] | None],
    scans: Sequence[Sequence[DeviceScan]],
) -> TraceDiff:
    scanned = (scans[0], scans[1]) if devices[0] == devices[1] else None
    return compare_traces(traces[0], traces[1], devices=devices[0], scanned=scanned)


def _drawn_views(summaries: Sequence[TraceSummary], view_count: int) -> Collection[tuple[int, int]]:
    """Trace and device of the views that reserved the most, as many as can be drawn."""
    views = [(number, device) for number, summary in enumerate(summaries) for device in summary.devices]
    largest = sorted(views, key=lambda view: -_reserved(view[1]))[:view_count]
    return {(number, device.facts.device) for number, device in largest}


def _reserved(summary: DeviceSummary) -> int:
    figures = summary.reserved_bytes
    return figures.peak if figures.peak is not None else figures.peak_recorded or 0


def _marks(trace: Trace, detail: Detail) -> tuple[Sequence[Mark], int]:
    """The first named marks, and of many steps every second, third or so; and how many there are of both."""
    named = [mark for mark in trace.marks if mark.kind is MarkKind.MARK][: detail.marks // 2]
    steps = [mark for mark in trace.marks if mark.kind is MarkKind.STEP]
    thinned = steps[:: max(1, -(-len(steps) // (detail.marks // 2)))]
    return sorted([*named, *thinned], key=lambda mark: (mark.event, mark.time_ns)), len(trace.marks)


def _find_views(
    trace: Trace,
    number: int,
    summaries: Sequence[DeviceSummary],
    scanned: Sequence[DeviceScan],
    detail: Detail,
    tell: Callable[[str, int], None],
) -> Iterator[PageView]:
    devices = {DeviceOrdinal(device.facts.device): device for device in summaries}
    if not devices:
        return
    tell("curves", 0)
    curves = find_curves(trace, devices=devices, buckets=detail.buckets)
    peaks: dict[DeviceOrdinal, EventIndex] = {
        device: devices[device].peak.instant.event for device in curves if device in devices
    }
    tell("sites", 1)
    shares = find_shares(trace, {device: curves[device].highest_events for device in peaks}, peaks)
    tell("allocations and heap", 2)
    scans = {scan.device: scan for scan in scanned}
    for device, of_device in devices.items():
        share = shares.get(device)
        scan = scans.get(device)
        canvases = None if scan is None else _find_canvases(trace, scan, detail)
        rows = _site_rows(of_device, share)
        yield PageView(
            number,
            of_device,
            curves.get(device),
            0 if device not in curves else _beginning_ns(trace, of_device, curves[device]),
            share,
            None if share is None else find_flame(share.peak_stacks, share.peak_rest_bytes, detail.flame_nodes),
            canvases,
            thin_readings(trace.readings, device, duration_ns=trace.meta.duration_ns, buckets=detail.buckets),
            _ledger_at_peak(trace, of_device, canvases),
            of_device.oom_verdict,
            rows[: detail.sites],
            len(rows),
        )


def _beginning_ns(trace: Trace, summary: DeviceSummary, curves: PageCurves) -> int:
    noted_ns = [*(mark.time_ns for mark in trace.marks), *(oom.time_ns for oom in summary.ooms)]
    levels = [curves.held_bytes, curves.reserved_bytes]
    return find_beginning_ns(curves.time_ns, levels, noted_ns, duration_ns=trace.meta.duration_ns)


def _find_canvases(trace: Trace, scan: DeviceScan, detail: Detail) -> PageCanvases:
    return find_canvases(trace, scan, bands_max=detail.bands, cells_max=detail.cells, stacks_max=detail.stacks)


def _ledger_at_peak(trace: Trace, summary: DeviceSummary, canvases: PageCanvases | None) -> Ledger:
    """The ledger of the heap map's moment that is the peak; where it has none, found by itself. At the end where no
    allocator was recorded.
    """
    peak = summary.peak.instant if summary.is_recorded else find_instant(trace, End())
    for ledger in () if canvases is None else canvases.ledgers:
        if ledger.instant == peak:
            return ledger
    return find_ledger(trace, peak, DeviceOrdinal(summary.facts.device))


def _site_rows(summary: DeviceSummary, shares: PageShares | None) -> list[SiteRow]:
    """The sites with blocks at the peak, most first, then the others by the most they held."""
    by_site = {} if shares is None else {one.site: one for one in shares.by_site}
    rows = []
    for holding in summary.peak.by_site:
        found = by_site.pop(holding.site, None)
        most = holding.held_bytes if found is None else max(found.held_bytes_peak, holding.held_bytes)
        allocs = 0 if found is None else found.alloc_count
        rows.append(SiteRow(holding.site, holding.held_bytes, holding.block_count, most, allocs, holding.stack))
    rows.extend(SiteRow(one.site, 0, 0, one.held_bytes_peak, one.alloc_count, ()) for one in by_site.values())
    return rows


def _named(views: Sequence[PageView], diff: TraceDiff | None) -> Iterator[tuple[Frame | None, int]]:
    """Every site that a figure names, with its bytes at the peak."""
    for device in () if diff is None else diff.devices:
        listed = device.changed_sites[:DIFF_GROUPS_LISTED]
        yield from ((group.site, 0) for group in listed if group.held is not Held.EVENTS_LACKING)
    for view in views:
        yield from ((row.site, row.peak_bytes) for row in view.site_rows)
        if view.flame is not None:
            for tree in (view.flame.own, view.flame.full, view.flame.inverted):
                yield from ((node.site, 0) for node in tree.nodes if node.has_site)
        if view.canvases is not None:
            yield from ((stack.site, 0) for stack in view.canvases.stacks)
        if view.shares is not None:
            yield from ((one.site, 0) for one in view.shares.by_site if len(one.held_bytes))
            yield from ((one.site, 0) for one in (*view.shares.driver_events, *view.shares.oom_events))
