"""Findings as JSON: the contract that scripts rely on.

Owns: the key names of docs' JSON schemas. Must not know: how findings are made. No arithmetic.
Bytes, events and nanoseconds are integers; null is "not known". A name that is no Unicode text has U+FFFD in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.analyses.demo import Demo
from gpumem.analyses.doctor import Diagnosis
from gpumem.analyses.holdings import GroupBy, Holding
from gpumem.analyses.snapshot import DeviceSnapshot, HeapSnapshot, PlacedBlock, SegmentFinding
from gpumem.analyses.summary import DeviceSummary, EndAndPeak, OomEvent, PeakHolders, TraceSummary
from gpumem.analyses.timeline import DeviceTimeline, Point, Timeline
from gpumem.heap.figures import LargestFree
from gpumem.heap.instants import Instant
from gpumem.render.json_oom import oom_verdict
from gpumem.render.json_parts import Json
from gpumem.render.json_parts import document as _document
from gpumem.render.json_parts import frame as _frame
from gpumem.trace.allocators import settings_of
from gpumem.trace.model import DeviceFacts, Reading, TraceMeta


def render_summaries(summaries: Sequence[TraceSummary]) -> str:
    """One trace as gpumem.summary/1, several as gpumem.summaries/1."""
    if len(summaries) == 1:
        return _document(_summary(summaries[0]))
    ranks: list[Json] = [
        {
            "path": one.path,
            "rank": one.meta.rank,
            "pid": one.meta.pid,
            "device": device.facts.device,
            "requested_bytes_peak": device.requested_bytes.peak,
            "allocated_bytes_peak": None if device.allocated_bytes is None else device.allocated_bytes.peak,
            "reserved_bytes_peak": device.reserved_bytes.peak,
            "oom_count": device.oom_count,
        }
        for one in summaries
        for device in one.devices
    ]
    traces: list[Json] = [_summary(one) for one in summaries]
    return _document({"schema": "gpumem.summaries/1", "traces": traces, "ranks": ranks})


def render_timeline(timeline: Timeline) -> str:
    """gpumem.timeline/1."""
    return _document(
        {
            "schema": "gpumem.timeline/1",
            "path": timeline.path,
            "from": _instant(timeline.start),
            "to": _instant(timeline.end),
            "devices": [_device_timeline(device, timeline) for device in timeline.devices],
        }
    )


def render_snapshot(snapshot: HeapSnapshot) -> str:
    """gpumem.snapshot/1."""
    return _document(
        {
            "schema": "gpumem.snapshot/1",
            "path": snapshot.path,
            "event": snapshot.instant.event,
            "time_ns": snapshot.instant.time_ns,
            "devices": [_device_snapshot(device, snapshot.path) for device in snapshot.devices],
        }
    )


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """gpumem.doctor/1."""
    checks: list[Json] = [
        {"code": check.code, "state": check.state.value, "text": check.text, "next": check.next_step}
        for check in diagnosis.checks
    ]
    return _document({"schema": "gpumem.doctor/1", "checks": checks})


def render_demo(demo: Demo) -> str:
    """gpumem.demo/1."""
    steps: list[Json] = [
        {
            "name": step.name,
            "allocated_bytes": step.allocated_bytes,
            "reserved_bytes": step.reserved_bytes,
            "nvml_process_bytes": step.nvml_process_bytes,
            "reason": step.reason,
        }
        for step in demo.steps
    ]
    return _document(
        {
            "schema": "gpumem.demo/1",
            "path": demo.path,
            **_facts(demo.device),
            "simulated": demo.why_simulated is not None,
            "why_simulated": demo.why_simulated,
            "steps": steps,
        }
    )


def _summary(summary: TraceSummary) -> dict[str, Json]:
    meta = summary.meta
    return {
        "schema": "gpumem.summary/1",
        "path": summary.path,
        "source": meta.source.value,
        "program": meta.program,
        "command_line": list(meta.command_line),
        "pid": meta.pid,
        "rank": meta.rank,
        "versions": dict(meta.versions),
        "settings": _only(settings_of(meta)),
        "events": summary.events,
        "duration_ns": meta.duration_ns,
        "truncated": meta.history_truncated,
        "ended_by": meta.ended_by,
        "running": meta.running,
        "records_lost": meta.records_lost,
        "stacks_off": meta.stacks_off,
        "notes": list(meta.notes),
        "from": _instant(summary.start),
        "to": _instant(summary.end),
        "devices": [_device_summary(device, summary) for device in summary.devices],
    }


def _only(lines: Sequence[str | None]) -> str | None:
    """The line of settings where there is one for all."""
    return lines[0] if len(lines) == 1 else None


def _allocators(meta: TraceMeta, device: int) -> list[Json]:
    return [
        {
            "number": one.number,
            "settings": one.settings,
            "capacity_bytes": one.capacity_bytes,
            "memory_limit_bytes": one.memory_limit_bytes,
        }
        for one in meta.allocators
        if one.device == device
    ]


def _device_summary(device: DeviceSummary, summary: TraceSummary) -> dict[str, Json]:
    return {
        **_facts(device.facts),
        "settings": _only(settings_of(summary.meta, device.facts.device)),
        "allocators": _allocators(summary.meta, device.facts.device),
        "headroom_bytes": device.headroom_bytes,
        "allocated_bytes": _end_and_peak(device.allocated_bytes),
        "reserved_bytes": _end_and_peak(device.reserved_bytes),
        "active_bytes": _end_and_peak(device.active_bytes),
        "requested_bytes": _end_and_peak(device.requested_bytes),
        "torch": _torch(device),
        **_heap_figures(device),
        **_counts(device),
        "ooms": [_oom(oom) for oom in device.ooms],
        "oom_verdict": None if device.oom_verdict is None else oom_verdict(device.oom_verdict, summary.path),
        "reserved_peak": _instant(device.reserved_peak) if device.is_recorded else None,
        "peak": _peak(device.peak) if device.is_recorded else None,
        "nvml": _reading(device.nvml),
        "nvml_end": _reading(device.nvml_end),
        "nvml_process_bytes_peak": device.nvml_process_bytes_peak,
        "nvml_free_bytes_min": device.nvml_free_bytes_min,
    }


def _counts(device: DeviceSummary) -> dict[str, Json]:
    """How often what happened; null where no allocator was recorded."""
    names = ("alloc", "free", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
    return {f"{name}_count": getattr(device, f"{name}_count") if device.is_recorded else None for name in names}


def _heap_figures(device: DeviceSummary) -> dict[str, Json]:
    """How the heap is used at the end and at the peak of allocated bytes, and how requests were served."""
    end, peak, cache = device.heap_end, device.heap_peak, device.cache
    found: dict[str, Json] = {}
    for name in ("slack_bytes", "pending_bytes", "idle_bytes", "releasable_bytes", "gap_bytes"):
        found[name] = (
            None if end is None or peak is None else {"end": getattr(end, name), "at_peak": getattr(peak, name)}
        )
    found["largest_free_block_bytes"] = (
        None
        if end is None or peak is None
        else {"end": _largest_free(end.largest_free), "at_peak": _largest_free(peak.largest_free)}
    )
    return found | {
        "cache_hit_count": None if cache is None else cache.hit_count,
        "split_count": None if cache is None else cache.split_count,
        "retry_count": None if cache is None else cache.retry_count,
        "garbage_collection_count": None if cache is None else cache.garbage_collection_count,
    }


def _largest_free(largest: LargestFree) -> Json:
    return {"small": largest.small_bytes, "large": largest.large_bytes, "private": largest.private_bytes}


def _facts(facts: DeviceFacts) -> dict[str, Json]:
    return {
        "device": facts.device,
        "uuid": facts.uuid,
        "nvml_index": facts.nvml_index,
        "name": facts.name,
        "capacity_bytes": facts.capacity_bytes,
        "memory_limit_bytes": facts.memory_limit_bytes,
    }


def _torch(device: DeviceSummary) -> Json:
    """PyTorch's own figures, as it said them at the end of the program."""
    if device.torch_allocated_bytes is None and device.torch_reserved_bytes is None:
        return None
    return {
        "allocated_bytes": _end_and_peak(device.torch_allocated_bytes),
        "reserved_bytes": _end_and_peak(device.torch_reserved_bytes),
    }


def _end_and_peak(figures: EndAndPeak | None) -> Json:
    if figures is None:
        return None
    if figures.peak_recorded is None:
        return {"end": figures.end, "peak": figures.peak}
    return {"end": figures.end, "peak": figures.peak, "peak_recorded": figures.peak_recorded}


def _oom(oom: OomEvent) -> Json:
    return {
        "event": oom.event,
        "time_ns": oom.time_ns,
        "requested_bytes": oom.requested_bytes,
        "free_bytes": oom.free_bytes,
        "total_bytes": oom.card_bytes or None,
        "limit_bytes": oom.limit_bytes,
    }


def _peak(peak: PeakHolders) -> Json:
    found: dict[str, Json] = {
        "event": peak.instant.event,
        "time_ns": peak.instant.time_ns,
        "step": peak.step,
        "basis": peak.basis.value,
        "bytes": peak.held_bytes,
        "by_site": [_site_holding(holding) for holding in peak.by_site],
        "by_category": dict(peak.by_category),
        "unattributed_bytes": peak.unattributed_bytes,
        "unmatched_bytes": peak.unmatched_bytes,
    }
    if peak.by is not None and peak.by is not GroupBy.SITE:
        found[f"by_{peak.by.value}"] = [{"key": one.key, **_site_holding(one)} for one in peak.by_key]
    return found


def _site_holding(holding: Holding) -> dict[str, Json]:
    return {
        "site": None if holding.site is None else _frame(holding.site),
        "bytes": holding.held_bytes,
        "count": holding.block_count,
        "stacks": holding.stack_count,
        "stack": [_frame(frame) for frame in holding.stack],
    }


def _instant(instant: Instant | None) -> Json:
    return None if instant is None else {"event": instant.event, "time_ns": instant.time_ns}


def _reading(reading: Reading | None) -> Json:
    if reading is None:
        return None
    return {
        "event": reading.event,
        "time_ns": reading.time_ns,
        "total_bytes": reading.total_bytes,
        "used_bytes": reading.used_bytes,
        "free_bytes": reading.free_bytes,
        "reserved_bytes": reading.reserved_bytes,
        "process_bytes": reading.process_bytes,
        "other_processes_bytes": reading.other_processes_bytes,
        "unavailable": dict(reading.unavailable),
    }


def _device_timeline(device: DeviceTimeline, timeline: Timeline) -> Json:
    return {
        **_facts(device.facts),
        "points": [_point(point) for point in device.points],
        "marks": [
            {
                "name": mark.name,
                "moment": moment,
                "kind": mark.kind.value,
                "step": mark.step,
                "event": mark.event,
                "time_ns": mark.time_ns,
            }
            for mark, moment in zip(timeline.marks, timeline.mark_moments, strict=True)
        ],
        "ooms": [_instant(oom) for oom in device.ooms],
    }


def _point(point: Point) -> Json:
    return {
        "event": point.event,
        "time_ns": point.time_ns,
        "allocated_bytes": point.allocated_bytes,
        "reserved_bytes": point.reserved_bytes,
        "requested_bytes": point.requested_bytes,
    }


def _device_snapshot(device: DeviceSnapshot, path: str) -> Json:
    return {
        **_facts(device.facts),
        "reserved_bytes": device.reserved_bytes,
        "allocated_bytes": device.allocated_bytes,
        "requested_bytes": device.requested_bytes,
        "segments": [_segment(segment) for segment in device.segments],
        "unplaced_blocks": [_block(block) for block in device.unplaced_blocks],
        "nvml": _reading(device.nvml),
        "oom_verdict": None if device.oom_verdict is None else oom_verdict(device.oom_verdict, path),
    }


def _segment(segment: SegmentFinding) -> Json:
    return {
        "address": segment.address,
        "bytes": segment.segment_bytes,
        "allocated_bytes": segment.allocated_bytes,
        "requested_bytes": segment.requested_bytes,
        "stream": segment.stream,
        "pool": None if segment.pool is None else list(segment.pool),
        "expandable": segment.expandable,
        "tiled": segment.tiled,
        "blocks": [_block(block) for block in segment.blocks],
    }


def _block(placed: PlacedBlock) -> Json:
    return {
        "address": placed.block.address,
        "bytes": placed.block.block_bytes,
        "requested_bytes": placed.block.requested_bytes,
        "state": placed.block.state.value,
        "stack": [_frame(frame) for frame in placed.stack],
    }
