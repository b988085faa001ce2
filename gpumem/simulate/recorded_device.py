"""What a trace says of how its allocator was set up, for the replay of it.

Owns: which devices can be replayed, their options, whether pools were recorded. Must not know: how a replay works.
"""

from __future__ import annotations

from gpumem.abi.policy import NO_LIMIT, DeviceOptions
from gpumem.abi.torch_release import POOLS_SAID_SINCE, behaviour_of, has_come
from gpumem.trace.model import DeviceFacts, InitialBlock, Trace, TraceMeta
from gpumem.vocabulary import DeviceOrdinal, TraceSource


def devices_of(trace: Trace) -> list[DeviceOrdinal]:
    """The devices that the trace may have events of."""
    known = {facts.device for facts in trace.meta.devices}
    known |= {row.device for row in trace.streams[1:]} | {block.device for block in trace.initial_blocks}
    return sorted(map(DeviceOrdinal, known))


def facts_of(trace: Trace, device: int) -> DeviceFacts:
    """What the trace says of the device."""
    return next((facts for facts in trace.meta.devices if facts.device == device), DeviceFacts(device))


def blocks_before(trace: Trace, device: int) -> list[InitialBlock]:
    """The device's blocks from before the recording that are of the allocator that its source names."""
    is_mixed = trace.meta.source is TraceSource.NATIVE
    return [block for block in trace.initial_blocks if block.device == device and not (is_mixed and block.flags)]


def recorded_limit(trace: Trace, device: int) -> int | None:
    """The memory limit that the trace gives, see limit_of, of a device under the recording's settings."""
    return limit_of(trace.meta, facts_of(trace, device), trace.meta.settings)


def limit_of(meta: TraceMeta, facts: DeviceFacts, settings: str | None) -> int | None:
    """The memory limit by the facts of a device: NO_LIMIT when there was none, None where they do not say.

    The recorder asks PyTorch for it when CUDA starts; where it knows the card and no limit, there was none. Garbage
    collection needs to be sure of it: a limit set later, which is not recorded, would set it off.
    """
    if facts.memory_limit_bytes is not None:
        return facts.memory_limit_bytes
    is_asked = meta.source in (TraceSource.NATIVE, TraceSource.GPUMEM) and facts.capacity_bytes is not None
    unsure = ("per_process_memory_fraction", "garbage_collection_threshold")
    return NO_LIMIT if is_asked and not any(name in (settings or "") for name in unsure) else None


def device_options(
    trace: Trace, device: int, *, settings: str | None, limit_bytes: int | None, torch_version: str | None
) -> DeviceOptions:
    """The options of a replay under these settings, or the default ones where they are not recorded.

    `limit_bytes` None lets the trace bracket the limit; `torch_version` is the PyTorch whose allocator is followed.
    """
    begins_late = bool(blocks_before(trace, device))
    return DeviceOptions(
        device,
        settings or "",
        limit_bytes,
        facts_of(trace, device).capacity_bytes,
        truncated=begins_late or (trace.meta.history_truncated and not trace.initial_blocks),
        behaviour=behaviour_of(torch_version),
    )


def are_pools_recorded(trace: Trace) -> bool:
    """Whether pool 0 of an event means the default pools; else it means "not known"."""
    return says_pools(trace.meta)


def says_pools(meta: TraceMeta) -> bool:
    """Whether a recording with these facts names the default pools; see are_pools_recorded."""
    if meta.source is TraceSource.GPUMEM:
        return True
    if meta.source is not TraceSource.NATIVE:
        return False
    return has_come(POOLS_SAID_SINCE, meta.versions.get("torch"))
