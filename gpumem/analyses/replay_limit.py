"""The memory limit of a recorded run, and the run followed under it.

Owns: which of the limits known counts. Must not know: findings on a run, other settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.abi.policy import NO_LIMIT, HeapColumns, ReplayResult
from gpumem.simulate.recorded_device import device_options, facts_of, limit_of
from gpumem.simulate.replay import TraceReplay, replay_trace
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal


class LimitSource(Enum):
    """Where a memory limit was taken from."""

    OPTION = "option"
    META = "meta"
    SETTINGS = "settings"
    TRACE = "trace"
    """Not recorded: between the most that was reached and the least that was refused."""
    NONE = "none"
    """Nothing limits the allocator but the card."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What the allocator may reserve of a device; `limit_bytes` is None where nothing limits it, or nobody knows.

    From the trace it lies between two figures: `at_least_bytes` was reached, `below_bytes` refused (None: nothing was).
    """

    limit_bytes: int | None
    source: LimitSource
    at_least_bytes: int | None = None
    below_bytes: int | None = None

    def admits(self, limit_bytes: int) -> bool:
        """Whether the run can have had this limit."""
        if self.source is not LimitSource.TRACE:
            return self.limit_bytes == limit_bytes
        below = self.below_bytes is None or limit_bytes < self.below_bytes
        return (self.at_least_bytes or 0) <= limit_bytes and below


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """What a replay is told beside the trace: heaps at the end, whether pool 0 means the default pools, each
    allocator's settings by its ordinal (None: not recorded), and the PyTorch that it follows.
    """

    end_heaps: Mapping[int, HeapColumns]
    pools_recorded: bool
    settings: Mapping[DeviceOrdinal, str | None]
    torch_versions: Mapping[DeviceOrdinal, str | None]


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A recorded run followed, and each device's limit."""

    told: TraceSetting
    replay: TraceReplay
    limits: Mapping[DeviceOrdinal, MemoryLimit]


def follow_run(
    trace: Trace, devices: Sequence[DeviceOrdinal], told: TraceSetting, limit_bytes: int | None
) -> FollowedRun:
    """The run under its recorded settings; `limit_bytes` is its limit where the trace does not say another."""
    recorded = {device: limit_of(trace.meta, facts_of(trace, device), told.settings[device]) for device in devices}
    replay = _replay(trace, recorded, told)
    limits = {device: _limit(recorded[device], replay.results.get(device)) for device in devices}
    if limit_bytes is None:
        return FollowedRun(told, replay, limits)
    given = {device for device in devices if recorded[device] is None and limits[device].admits(limit_bytes)}
    if given:
        known = {device: limit_bytes if device in given else recorded[device] for device in devices}
        replay = _replay(trace, known, told)
        limits |= {device: MemoryLimit(limit_bytes, LimitSource.OPTION) for device in given}
    return FollowedRun(told, replay, limits)


def _replay(trace: Trace, limits: Mapping[DeviceOrdinal, int | None], told: TraceSetting) -> TraceReplay:
    options = [
        device_options(
            trace,
            device,
            settings=told.settings[device],
            limit_bytes=limit,
            torch_version=told.torch_versions[device],
        )
        for device, limit in limits.items()
    ]
    return replay_trace(trace, options, pools_recorded=told.pools_recorded, end_heaps=told.end_heaps)


def _limit(recorded: int | None, result: ReplayResult | None) -> MemoryLimit:
    if recorded is not None:
        return MemoryLimit(None if recorded == NO_LIMIT else recorded, LimitSource.META)
    if result is None:
        return MemoryLimit(None, LimitSource.TRACE)
    below = None if result.limit_bytes_max == NO_LIMIT else result.limit_bytes_max
    at_least = max(result.limit_bytes_min, result.reserved_bytes_peak)
    return MemoryLimit(None, LimitSource.TRACE, at_least, below)
