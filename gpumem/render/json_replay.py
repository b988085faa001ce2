"""The findings of a replay as JSON, gpumem.replay/1: a contract that scripts rely on.

Owns: its key names. Must not know: how findings are made. No arithmetic.
"""

from __future__ import annotations

from gpumem.analyses.replay import DeviceReplay, ReplayFindings
from gpumem.analyses.replay_check import EventFacts, FirstDifference, HeapCheck
from gpumem.analyses.replay_limit import MemoryLimit
from gpumem.analyses.replay_what_if import CountRange, RefusedRequests, RunFigures, WhatIfFigures
from gpumem.render.json_parts import Json, document, frame


def render_replay(findings: ReplayFindings) -> str:
    """gpumem.replay/1."""
    limits = {device.limit for device in findings.devices}
    memory = {device.memory_bytes for device in findings.devices}
    settings: set[str | None] = {device.settings for device in findings.devices} or {findings.meta.settings}
    recorded = {device.recorded_settings for device in findings.devices} or {findings.meta.settings}
    return document(
        {
            "schema": "gpumem.replay/1",
            "path": findings.path,
            "source": findings.meta.source.value,
            "events": findings.events,
            "settings": settings.pop() if len(settings) == 1 else None,
            "recorded_settings": recorded.pop() if len(recorded) == 1 else None,
            "what_if": findings.is_what_if,
            "gpu_memory_bytes": memory.pop() if len(memory) == 1 else None,
            "memory_limit": _limit(limits.pop()) if len(limits) == 1 else None,
            "devices": [_device(device) for device in findings.devices],
        }
    )


def _device(device: DeviceReplay) -> Json:
    check = device.check
    return {
        "device": device.facts.device,
        "uuid": device.facts.uuid,
        "name": device.facts.name,
        "allocator_number": device.allocator.number,
        "allocator_count": device.allocator_count,
        "settings": device.settings,
        "recorded_settings": device.recorded_settings,
        "settings_basis": device.settings_basis.value,
        "gpu_memory_bytes": device.memory_bytes,
        "memory_limit": _limit(device.limit),
        "exact": check.exact,
        "refusal": check.refusal,
        "decisions": check.decision_count,
        "events": check.event_count,
        "first_difference": _difference(check.first_difference),
        "final_heap": _heap(check.heap),
        "not_recorded": list(check.not_recorded),
        **_outcome(device),
        "request_count": device.request_count,
        "recorded": _figures(device.recorded),
    }


def _outcome(device: DeviceReplay) -> dict[str, Json]:
    """What the replay comes to: what would be, or the run as recorded; null where it is not exact."""
    if device.what_if is not None:
        return _what_if(device.what_if)
    figures = device.followed
    peak = None if figures is None else figures.reserved_bytes_peak
    return {**_figures(figures), "reserved_bytes_peak_range": None if peak is None else [peak, peak]}


def _what_if(found: WhatIfFigures) -> dict[str, Json]:
    return {
        **_figures(found.figures),
        "reserved_bytes_peak_range": _range(found.reserved_bytes_peak),
        "oom_count_range": _range(found.oom_count),
        "saved_bytes": found.saved_bytes,
        "refused_count": found.refused_count,
        "refused_by_site": [_refused(one) for one in found.refused_by_site],
        "served_count": found.served_count,
        "caveats": list(found.caveats),
    }


def _figures(figures: RunFigures | None) -> dict[str, Json]:
    return {
        "reserved_bytes_peak": None if figures is None else figures.reserved_bytes_peak,
        "allocated_bytes_peak": None if figures is None else figures.allocated_bytes_peak,
        "segment_alloc_count": None if figures is None else figures.segment_alloc_count,
        "segment_free_count": None if figures is None else figures.segment_free_count,
        "oom_count": None if figures is None else figures.oom_count,
    }


def _range(found: CountRange) -> Json:
    return [found.least, found.most]


def _limit(limit: MemoryLimit) -> Json:
    return {
        "bytes": limit.limit_bytes,
        "from": limit.source.value,
        "at_least_bytes": limit.at_least_bytes,
        "below_bytes": limit.below_bytes,
    }


def _difference(difference: FirstDifference | None) -> Json:
    if difference is None:
        return None
    return {
        "event": difference.event,
        "time_ns": difference.time_ns,
        "reason": difference.reason,
        "expected": _event(difference.expected),
        "got": _event(difference.got),
        "site": None if difference.site is None else frame(difference.site),
        "stack": [frame(line) for line in difference.stack],
    }


def _event(event: EventFacts | None) -> Json:
    if event is None:
        return None
    return {
        "kind": event.kind.name.lower(),
        "address": event.address,
        "bytes": event.event_bytes,
        "stream": event.stream,
    }


def _heap(heap: HeapCheck | None) -> Json:
    if heap is None:
        return None
    return {"segments": heap.segment_count, "blocks": heap.block_count, "difference": heap.difference}


def _refused(found: RefusedRequests) -> Json:
    return {
        "site": None if found.site is None else frame(found.site),
        "count": found.request_count,
        "requested_bytes_most": found.requested_bytes_most,
        "first_event": found.first_event,
        "first_time_ns": found.first_time_ns,
        "stack": [frame(line) for line in found.stack],
    }
