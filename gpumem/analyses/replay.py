"""Whether a recorded allocator can be followed exactly, and what its requests make of other settings.

Owns: the findings of `gpumem replay`. Must not know: text layout, colours, JSON.

Two questions. Under the recorded settings every decision is checked: the address of every alloc, every segment event,
every out-of-memory, the heap at the end. Under others the requests are served anew; the recorded run is followed first
all the same, as it tells what no event says (empty_cache calls, the memory limit).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpumem.abi.policy import NO_LIMIT, HeapColumns, ReplayResult
from gpumem.abi.torch_release import behaviour_of
from gpumem.analyses.replay_check import RunCheck, check_run
from gpumem.analyses.replay_limit import FollowedRun, LimitSource, MemoryLimit, TraceSetting, follow_run
from gpumem.analyses.replay_what_if import RunFigures, WhatIfFigures, measure_what_if, recorded_figures
from gpumem.errors import AllocatorNotRecorded, UsageError
from gpumem.heap.scan import DeviceScan, scan_nothing, scan_trace, whole
from gpumem.simulate.apart import ApartTrace, tell_apart
from gpumem.simulate.end_heap import end_heaps_of_filled
from gpumem.simulate.recorded_device import are_pools_recorded, devices_of, facts_of
from gpumem.simulate.settings_line import fraction_in_line, set_in_line
from gpumem.simulate.what_if import PretendedCard, serve_trace
from gpumem.trace.allocators import RecordedAllocator
from gpumem.trace.model import DeviceFacts, Trace, TraceMeta
from gpumem.vocabulary import DeviceOrdinal, EventKind, TraceSource

PLENTY_BYTES = 1 << 40
"""The pretended card's memory where the trace does not know its own."""


class SettingsBasis(Enum):
    """Where the settings of the recorded run were taken from."""

    RECORDED = "recorded"
    ASSUMED = "assumed"
    """They are not in the recording: PyTorch's default ones."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be other than recorded; `memory_limit_bytes` is the run's own where the trace does not say."""

    changes: Mapping[str, str]
    gpu_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceReplay:
    """An allocator on its device: the recorded run followed, and what would be under other settings."""

    facts: DeviceFacts
    allocator: RecordedAllocator
    """The one of the device's allocators that was followed."""
    allocator_count: int
    """How many the device had: each has a heap of its own."""
    request_count: int
    """Requests that the program made, those that ran out of memory included."""
    check: RunCheck
    recorded: RunFigures
    followed: RunFigures | None
    """What the recorded run comes to when followed; None unless it is exact."""
    memory_bytes: int | None
    """The card's, or the pretended one's; None where not known."""
    limit: MemoryLimit
    what_if: WhatIfFigures | None
    settings: str
    """Those tried: the recorded ones, or the default ones in their place, with the changes asked for."""

    @property
    def recorded_settings(self) -> str | None:
        """None where they are not in the recording, and the default ones were assumed."""
        return self.allocator.settings

    @property
    def settings_basis(self) -> SettingsBasis:
        """Where the settings that the run was followed under come from."""
        return SettingsBasis.ASSUMED if self.recorded_settings is None else SettingsBasis.RECORDED

    @property
    def served_count_recorded(self) -> int:
        """Requests that did not run out of memory when recorded."""
        return self.request_count - self.recorded.oom_count


@dataclass(frozen=True, slots=True)
class ReplayFindings:
    """A trace replayed."""

    path: str
    meta: TraceMeta
    events: int
    gpu_memory_bytes: int | None
    """Another card's, where one was asked for."""
    is_what_if: bool
    devices: Sequence[DeviceReplay]

    @property
    def differs(self) -> bool:
        """Whether the recorded run was to be followed, and is not as recorded."""
        return not self.is_what_if and any(device.check.exact is False for device in self.devices)


def find_replay(
    trace: Trace,
    wish: Wish,
    *,
    end_heaps: Mapping[int, HeapColumns] | None = None,
    pools_recorded: bool = False,
    devices: Collection[DeviceOrdinal] | None = None,
) -> ReplayFindings:
    """The findings on a trace; `end_heaps` is the heap at the end of each device whose source gives it.

    `pools_recorded`: the source names the default pools of events, whatever the trace's facts say.
    Raises UsageError when the settings to try are not the allocator's, AllocatorNotRecorded without any events of one.
    """
    apart = tell_apart(trace)
    scans = {scan.device: scan for scan in scan_trace(apart.trace, devices=_chosen(apart, devices))}
    if not scans and trace.meta.source is TraceSource.NONE:
        why = "".join(f" {note}" for note in trace.meta.notes if "NVML" not in note)
        raise AllocatorNotRecorded(f"{trace.path} holds no allocator's events, so there is nothing to replay.{why}")
    wanted = _chosen(apart, devices) or sorted(scans) or devices_of(trace)
    told = TraceSetting(
        end_heaps or end_heaps_of_filled(trace, wanted),
        pools_recorded or are_pools_recorded(trace),
        {ordinal: apart.allocator(ordinal).settings for ordinal in wanted},
        {ordinal: apart.allocator(ordinal).torch_version for ordinal in wanted},
    )
    run = follow_run(apart.trace, wanted, told, wish.memory_limit_bytes)
    made = [_followed_device(apart, run, _scan_of(apart.trace, scans, ordinal), end_heaps or {}) for ordinal in wanted]
    is_what_if = bool(wish.changes) or wish.gpu_memory_bytes is not None or _is_other_limit(wish, run)
    if is_what_if:
        made = _served_devices(apart.trace, wish, run, made, scans)
    return ReplayFindings(
        str(trace.path), trace.meta, trace.event_count, wish.gpu_memory_bytes, is_what_if, _by_device(made)
    )


def _chosen(apart: ApartTrace, devices: Collection[DeviceOrdinal] | None) -> list[DeviceOrdinal] | None:
    return None if devices is None else apart.ordinals_of(devices)


def _scan_of(trace: Trace, scans: Mapping[DeviceOrdinal, DeviceScan], ordinal: DeviceOrdinal) -> DeviceScan:
    return scans.get(ordinal) or scan_nothing(trace, ordinal, whole(trace))


def _by_device(made: Iterable[DeviceReplay]) -> list[DeviceReplay]:
    """The allocators under their devices' own ordinals, in the order of these and of their numbers."""
    placed = [replace(one, facts=replace(one.facts, device=one.allocator.facts.device)) for one in made]
    return sorted(placed, key=lambda one: (one.facts.device, one.allocator.code))


def _is_other_limit(wish: Wish, run: FollowedRun) -> bool:
    limit = wish.memory_limit_bytes
    return limit is not None and any(
        one.source is not LimitSource.OPTION and one.limit_bytes != limit for one in run.limits.values()
    )


def _followed_device(
    apart: ApartTrace, run: FollowedRun, scan: DeviceScan, end_heaps: Mapping[int, HeapColumns]
) -> DeviceReplay:
    trace, device, allocator = apart.trace, scan.device, apart.allocator(scan.device)
    facts = facts_of(trace, device)
    check = check_run(
        trace,
        run.replay,
        allocator,
        device,
        end_heap=end_heaps.get(device),
        pools_recorded=run.told.pools_recorded,
    )
    result = run.replay.results.get(device)
    followed = _figures(result) if result is not None and check.exact else None
    allocated = facts.torch_allocated_bytes_peak
    if allocated is None and trace.knows_blocks(device):
        allocated = scan.held_peak.peak_bytes
    return DeviceReplay(
        facts=facts,
        allocator=allocator,
        allocator_count=apart.count_beside(device),
        request_count=scan.count(EventKind.ALLOC) + scan.count(EventKind.OOM),
        check=check,
        recorded=recorded_figures(scan, allocated),
        followed=followed,
        memory_bytes=facts.capacity_bytes,
        limit=run.limits[DeviceOrdinal(device)],
        what_if=None,
        settings=allocator.settings or "",
    )


def _figures(result: ReplayResult) -> RunFigures:
    return RunFigures(
        reserved_bytes_peak=result.reserved_bytes_peak,
        allocated_bytes_peak=result.allocated_bytes_peak,
        segment_alloc_count=result.device_allocs,
        segment_free_count=result.device_frees,
        oom_count=result.ooms,
    )


def _served_devices(
    trace: Trace,
    wish: Wish,
    run: FollowedRun,
    followed: Sequence[DeviceReplay],
    scans: Mapping[DeviceOrdinal, DeviceScan],
) -> list[DeviceReplay]:
    """The devices with what their requests come to as wished; of allocators that cannot be told apart nobody knows."""
    asked = [_pretend(device, wish) for device in followed if not device.allocator.is_several]
    cards = {
        device.facts.device: PretendedCard(
            device.settings,
            device.memory_bytes or PLENTY_BYTES,
            NO_LIMIT if device.limit.limit_bytes is None else device.limit.limit_bytes,
            behaviour_of(device.allocator.torch_version),
        )
        for device in asked
    }
    runs = serve_trace(trace, cards, pools_recorded=run.told.pools_recorded, empty_caches=run.replay.empty_caches)
    made = [device for device in followed if device.allocator.is_several]
    for device in asked:
        ordinal = DeviceOrdinal(device.facts.device)
        scan = _scan_of(trace, scans, ordinal)
        # Block bytes are the same figure as recorded ones only where the run was followed to its end.
        known = device.followed.allocated_bytes_peak if device.followed else None
        allocated = device.recorded.allocated_bytes_peak
        recorded = replace(device.recorded, allocated_bytes_peak=known if allocated is None else allocated)
        figures = measure_what_if(trace, runs[ordinal], scan, recorded, _caveats(trace, device))
        made.append(replace(device, recorded=recorded, what_if=figures))
    return made


def _caveats(trace: Trace, device: DeviceReplay) -> Iterator[str]:
    """What the figures of a what-if do not take into account."""
    if "garbage_collection_threshold" in device.settings and device.limit.limit_bytes is None:
        yield "Without a memory limit PyTorch collects no garbage; say the run's limit with --memory-limit."
    if device.allocator_count > 1:
        yield "The device had other allocators: what they held at the same time is not taken off its memory here."
    if any(block.device == device.facts.device for block in trace.initial_blocks):
        yield "What was live when the history begins is placed anew, without the idle memory of that time."


def _pretend(device: DeviceReplay, wish: Wish) -> DeviceReplay:
    """The device with the settings, the memory and the limit that are to be tried."""
    settings = set_in_line(device.settings, dict(wish.changes))
    memory_bytes = wish.gpu_memory_bytes or device.memory_bytes
    limit = device.limit
    fraction = fraction_in_line(settings)
    is_fraction_new = "per_process_memory_fraction" in wish.changes or wish.gpu_memory_bytes is not None
    if wish.memory_limit_bytes is not None:
        limit = MemoryLimit(wish.memory_limit_bytes, LimitSource.OPTION)
    elif fraction is not None and is_fraction_new:
        if memory_bytes is None:
            raise UsageError(
                "per_process_memory_fraction is a share of the card's memory, which the trace does not know; say it "
                "with --gpu-memory SIZE."
            )
        limit = MemoryLimit(int(fraction * memory_bytes), LimitSource.SETTINGS)
    elif wish.gpu_memory_bytes is not None:
        limit = MemoryLimit(None, LimitSource.NONE)
    elif limit.source is LimitSource.TRACE and limit.below_bytes is not None:
        limit = replace(limit, limit_bytes=limit.at_least_bytes)
    elif limit.source is LimitSource.TRACE:
        limit = MemoryLimit(None, LimitSource.NONE)
    return replace(device, settings=settings, memory_bytes=memory_bytes, limit=limit)
