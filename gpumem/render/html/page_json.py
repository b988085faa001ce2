"""The document that a page's figures are drawn from.

Owns: its fields, which assets/*.js read. Must not know: how findings are made or drawn.

A view is one device of one trace. Sites are numbered by their place in `sites`; frames by their place in `frames`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.analyses.page import PageFindings, PageTrace, PageView, SiteRow
from gpumem.analyses.page_curves import PageCurves
from gpumem.analyses.page_flame import FlameTree
from gpumem.analyses.page_readings import PageReadings
from gpumem.analyses.page_shares import DriverEvent, PageShares
from gpumem.analyses.page_sites import PageSites
from gpumem.render.html.canvas_json import canvas_documents
from gpumem.render.html.markup import foreign
from gpumem.render.html.payload import Payload, frame_text
from gpumem.render.json_parts import Json

SCHEMA = "gpumem.page/1"


def pack_page(page: PageFindings) -> str:
    """The findings as the text that a page carries."""
    payload = Payload()
    document: dict[str, Json] = {
        "schema": SCHEMA,
        "first_view": page.first_view,
        "sites": [None if site is None else frame_text(site) for site in page.sites.sites],
        "traces": [_trace(trace) for trace in page.traces],
        "views": [_view(page, view, payload) for view in page.views],
    }
    return payload.pack(document | {"frames": payload.frames()})


def _trace(trace: PageTrace) -> Json:
    summary = trace.summary
    return {
        "path": foreign(summary.path),
        "program": foreign(summary.meta.program),
        "rank": summary.meta.rank,
        "events": summary.events,
        "duration_ns": summary.meta.duration_ns,
        "mark_count": trace.mark_count,
        "marks": [
            {
                "name": foreign(one.name),
                "kind": one.kind.value,
                "step": one.step,
                "event": one.event,
                "time_ns": one.time_ns,
            }
            for one in trace.marks
        ],
    }


def _view(page: PageFindings, view: PageView, payload: Payload) -> Json:
    facts, shares = view.summary.facts, view.shares
    return {
        "trace": view.trace,
        "device": facts.device,
        "name": None if facts.name is None else foreign(facts.name),
        "capacity_bytes": facts.capacity_bytes,
        "memory_limit_bytes": facts.memory_limit_bytes,
        "basis": view.summary.peak.basis.value,
        "peak": _peak(view),
        "curves": None if view.curves is None else _curves(view.curves, payload),
        "beginning_ns": view.beginning_ns,
        "shares": None if shares is None else _shares(shares, page.sites, payload),
        "driver_events": None if shares is None else _driver_events(shares.driver_events, page.sites, payload),
        "driver_event_count": 0 if shares is None else shares.driver_event_count,
        "ooms": [] if shares is None else [_oom(one, page.sites) for one in shares.oom_events],
        "oom_count": view.summary.oom_count,
        "readings": _readings(view.readings, payload),
        "site_rows": _site_rows(view.site_rows, page.sites, payload),
        "site_count": view.site_count,
        "flame": None if view.flame is None else {
            name: _tree(tree, page.sites, payload)
            for name, tree in (("own", view.flame.own), ("full", view.flame.full), ("inverted", view.flame.inverted))
        },
        **({} if view.canvases is None else canvas_documents(view.canvases, page.sites, payload)),
    }  # fmt: skip


def _peak(view: PageView) -> Json:
    peak = view.summary.peak
    return {
        "event": peak.instant.event,
        "time_ns": peak.instant.time_ns,
        "step": peak.step,
        "bytes": peak.held_bytes,
    }


def _curves(curves: PageCurves, payload: Payload) -> Json:
    names = ("event", "time_ns", "requested_bytes", "held_bytes", "pending_bytes", "reserved_bytes")
    columns = {name: payload.column(getattr(curves, name)) for name in names}
    return {**columns, "device_events": curves.device_events}


def _shares(shares: PageShares, sites: PageSites, payload: Payload) -> Json:
    """The sites followed over time: a column each, and the events at which they were counted."""
    followed = [one for one in shares.by_site if len(one.held_bytes)]
    return {
        "event": payload.column(shares.event),
        "time_ns": payload.column(shares.time_ns),
        "sites": [sites.number(one.site) for one in followed],
        "held_bytes": [payload.column(one.held_bytes) for one in followed],
    }


def _driver_events(events: Sequence[DriverEvent], sites: PageSites, payload: Payload) -> Json:
    return {
        "event": payload.column([one.event for one in events]),
        "time_ns": payload.column([one.time_ns for one in events]),
        "bytes": payload.column([one.driver_bytes for one in events]),
        "site": payload.column([sites.number(one.site) for one in events]),
        "kind": [one.kind.name.lower() for one in events],
    }


def _oom(oom: DriverEvent, sites: PageSites) -> Mapping[str, Json]:
    return {
        "event": oom.event,
        "time_ns": oom.time_ns,
        "requested_bytes": oom.driver_bytes,
        "free_bytes": oom.free_bytes,
        "site": sites.number(oom.site),
    }


def _readings(readings: PageReadings, payload: Payload) -> Json:
    names = (
        "event",
        "time_ns",
        "process_bytes",
        "used_bytes",
        "total_bytes",
        "reserved_bytes",
        "other_processes_bytes",
    )
    columns = {name: payload.column(getattr(readings, name)) for name in names}
    return {**columns, "reading_count": readings.reading_count}


def _site_rows(rows: Sequence[SiteRow], sites: PageSites, payload: Payload) -> Json:
    return {
        "site": payload.column([sites.number(row.site) for row in rows]),
        "peak_bytes": payload.column([row.peak_bytes for row in rows]),
        "block_count": payload.column([row.block_count for row in rows]),
        "most_bytes": payload.column([row.most_bytes for row in rows]),
        "alloc_count": payload.column([row.alloc_count for row in rows]),
        "stack": [[payload.frame(frame) for frame in row.stack] for row in rows],
    }


def _tree(tree: FlameTree, sites: PageSites, payload: Payload) -> Json:
    """Nodes as columns; a node's site is -1 where its bytes are of several."""
    nodes = tree.nodes
    return {
        "parent": payload.column([node.parent for node in nodes]),
        "frame": payload.column([payload.frame(node.frame) for node in nodes]),
        "bytes": payload.column([node.held_bytes for node in nodes]),
        "count": payload.column([node.block_count for node in nodes]),
        "site": payload.column([sites.number(node.site) if node.has_site else -1 for node in nodes]),
        "rest": payload.column([int(node.is_rest) for node in nodes]),
        "depth": tree.depth,
    }
