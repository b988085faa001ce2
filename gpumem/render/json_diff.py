"""Comparisons as JSON: gpumem.diff/1, of several ranks gpumem.diffs/1.

Owns: its key names. Must not know: how changes are found. No arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.analyses.diff_findings import BeforeAfter, ComparedSide, DeviceDiff, GroupDiff, TraceDiff
from gpumem.analyses.diff_headline import Growth, GrowthCheck
from gpumem.analyses.diff_ranks import RankDiffs
from gpumem.heap.instants import Instant
from gpumem.render.diff_words import headline_sentence
from gpumem.render.json_parts import Json, document, frame
from gpumem.trace.model import Frame
from gpumem.trace.moments import format_moment


def render_diff(diff: TraceDiff, growth: GrowthCheck | None = None) -> str:
    """gpumem.diff/1, with the check of a limit on growth where there was one."""
    return document(_diff(diff, growth))


def render_rank_diffs(found: RankDiffs) -> str:
    """gpumem.diffs/1: a line for each device of each rank, then the comparisons whole, in the order of the ranks."""
    ranks: list[Json] = [
        {
            "rank": one.rank,
            "before_path": one.diff.before.path,
            "after_path": one.diff.after.path,
            "device": device.device,
            "basis": device.basis.value,
            "allocated_bytes": None if device.allocated_bytes is None else _figure(device.allocated_bytes),
            "requested_bytes": _figure(device.requested_bytes),
            "reserved_bytes": _figure(device.reserved_bytes),
            "reserved_bytes_peak": _figure(device.reserved_bytes_peak),
        }
        for one in found.ranks
        for device in one.diff.devices
    ]
    diffs: list[Json] = [_diff(one.diff, one.growth) for one in found.ranks]
    return document(
        {
            "schema": "gpumem.diffs/1",
            "greatest_rank": found.greatest.rank,
            "greatest": found.ranks.index(found.greatest),
            "ranks": ranks,
            "before_only": [{"path": one.path, "rank": one.rank} for one in found.before_only],
            "after_only": [{"path": one.path, "rank": one.rank} for one in found.after_only],
            "diffs": diffs,
        }
    )


def _diff(diff: TraceDiff, growth: GrowthCheck | None) -> dict[str, Json]:
    settings: list[Json] = [{"name": one.name, "before": one.before, "after": one.after} for one in diff.settings]
    return {
        "schema": "gpumem.diff/1",
        "headline": headline_sentence(diff),
        "before": _side(diff.before),
        "after": _side(diff.after),
        "basis": diff.basis.value,
        "devices": [_device(device) for device in diff.devices],
        "settings": settings,
        "fail_above": None if growth is None else _growth(growth),
    }


def _side(side: ComparedSide) -> Json:
    return {
        "path": side.path,
        "moment": format_moment(side.moment),
        "event": None if side.instant is None else side.instant.event,
        "time_ns": None if side.instant is None else side.instant.time_ns,
        "source": side.meta.source.value,
        "truncated": side.meta.history_truncated,
        "records_lost": side.meta.records_lost,
    }


def _device(device: DeviceDiff) -> Json:
    return {
        "device": device.device,
        "before_device": device.before_device,
        "after_device": device.after_device,
        "before_moment": _moment(device.before_instant),
        "after_moment": _moment(device.after_instant),
        "name": device.facts.name,
        "allocated_bytes": None if device.allocated_bytes is None else _figure(device.allocated_bytes),
        "requested_bytes": _figure(device.requested_bytes),
        "reserved_bytes": _figure(device.reserved_bytes),
        "allocated_bytes_peak": None if device.allocated_bytes is None else _figure(device.held_bytes_peak),
        "requested_bytes_peak": _figure(device.held_bytes_peak) if device.allocated_bytes is None else None,
        "reserved_bytes_peak": _figure(device.reserved_bytes_peak),
        "nvml_process_bytes": _figure(device.nvml_process_bytes),
        "by_site": [_group(group) for group in device.by_site],
        "by_stack": [_group(group) for group in device.by_stack],
    }


def _moment(instant: Instant | None) -> Json:
    return None if instant is None else {"event": instant.event, "time_ns": instant.time_ns}


def _figure(figure: BeforeAfter) -> Json:
    return {"before": figure.before, "after": figure.after, "delta": figure.delta}


def _group(group: GroupDiff) -> Json:
    return {
        "held": group.held.value,
        "change": group.change.value,
        "site": _line(group.site),
        "before_site": _line(group.before_site),
        "after_site": _line(group.after_site),
        "stack": _frames(group.stack),
        "before_bytes": group.before_bytes,
        "after_bytes": group.after_bytes,
        "delta_bytes": group.delta_bytes,
        "before_count": group.before_count,
        "after_count": group.after_count,
    }


def _line(line: Frame | None) -> Json:
    return None if line is None else frame(line)


def _frames(stack: Sequence[Frame]) -> Json:
    return [frame(line) for line in stack]


def _growth(growth: GrowthCheck) -> Json:
    return {
        "limit_bytes": growth.limit_bytes,
        "passed": not growth.exceeding,
        "figures": [
            {
                "device": one.device,
                "name": _figure_key(one),
                "delta_bytes": one.delta_bytes,
                "passed": one not in growth.exceeding,
            }
            for one in growth.growths
        ],
    }


def _figure_key(growth: Growth) -> str:
    """The figure as a device's are named."""
    return growth.figure.value.replace("held", growth.basis.value)
