"""Our allocator's figures in the shapes that torch._C gives its own.

Owns: names and nesting of PyTorch's statistics and snapshots. Must not know: torch, how allocators are plugged in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpumem.abi.allocator import (
    NO_LIMIT,
    AllocatorStatistics,
    Counter,
    HeapSegment,
    statistics_by_name,
    torch_allocator,
)
from gpumem.abi.allocator_layout import POOL_COUNTERS
from gpumem.vocabulary import BlockState

DEVICES_MAX = 128
_STATES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING: "active_pending_free",
    BlockState.FREE: "inactive",
}
_NOTHING = Counter(0, 0, 0, 0)

Nested = dict[str, object]


@dataclass
class TorchFigures:
    """The functions to stand on torch._C; `set_fraction` is torch's own, which tells our allocator."""

    set_fraction: Callable[[float, int], None]
    fractions: dict[int, float] = field(default_factory=dict)
    has_warned: bool = False

    def functions(self) -> Mapping[str, Callable[..., object]]:
        """Each function by its name on torch._C."""
        return {
            "_cuda_memoryStats": read_statistics,
            "_cuda_resetPeakMemoryStats": reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
            "_cuda_memorySnapshot": read_snapshot,
            "_cuda_getMemoryFraction": self.read_fraction,
            "_cuda_setMemoryFraction": self.write_fraction,
            "_cuda_record_memory_history": self.refuse_history,
            "_cuda_record_memory_history_legacy": self.refuse_history,
            "_cuda_isHistoryEnabled": lambda: False,
            "_accelerator_getDeviceStats": read_statistics,
            "_accelerator_resetPeakStats": reset_peaks,
            "_accelerator_resetAccumulatedStats": reset_accumulated,
        }

    def read_fraction(self, device: int) -> float:
        """What PyTorch may take of the device."""
        return self.fractions.get(device, 1.0)

    def write_fraction(self, fraction: float, device: int) -> None:
        """Limits what PyTorch may take of the device."""
        self.set_fraction(fraction, device)
        self.fractions[device] = fraction

    def refuse_history(self, *arguments: object, **keywords: object) -> None:
        """PyTorch's history stays empty: the recording holds more than it would."""
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                "PyTorch's memory history stays empty under gpumem's allocator, whose trace holds every event; for "
                "PyTorch's own use gpumem run --allocator native.",
                stacklevel=3,
            )


def read_statistics(device: int) -> Nested:
    """What torch._C._cuda_memoryStats gives; zeros for a device that was asked for nothing."""
    allocator = torch_allocator(device)
    return nest_statistics(None if allocator is None else allocator.statistics())


def reset_peaks(device: int) -> None:
    """Peaks count from now."""
    allocator = torch_allocator(device)
    if allocator is not None:
        allocator.reset_peaks()


def reset_accumulated(device: int) -> None:
    """What came and went is counted from now."""
    allocator = torch_allocator(device)
    if allocator is not None:
        allocator.reset_accumulated()


def read_snapshot(*arguments: object, **keywords: object) -> Nested:
    """What torch._C._cuda_memorySnapshot gives, without history: every device's segments."""
    segments: list[Nested] = []
    device_count = 0
    for device in range(DEVICES_MAX):
        allocator = torch_allocator(device)
        if allocator is not None:
            device_count = device + 1
            segments.extend(nest_segment(device, segment) for segment in allocator.heap().segments)
    return {
        "segments": segments,
        "device_traces": [[] for _ in range(device_count)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def nest_statistics(counted: AllocatorStatistics | None) -> Nested:
    """The statistics under PyTorch's names and nesting."""
    if counted is None:
        pools = ("all", "small_pool", "large_pool")
        nested: Nested = {name: {pool: _nest(_NOTHING) for pool in pools} for name in POOL_COUNTERS}
        return nested | _counts_of(None)
    by_name = statistics_by_name(counted)
    nested = {name: {pool: _nest(counter) for pool, counter in pools.items()} for name, pools in by_name.items()}
    return nested | _counts_of(counted)


def _counts_of(counted: AllocatorStatistics | None) -> Nested:
    limit = NO_LIMIT if counted is None else counted.max_split_bytes
    return {
        "oversize_allocations": _nest(_NOTHING if counted is None else counted.oversize_allocations),
        "oversize_segments": _nest(_NOTHING if counted is None else counted.oversize_segments),
        "num_alloc_retries": 0 if counted is None else counted.num_alloc_retries,
        "num_ooms": 0 if counted is None else counted.num_ooms,
        "num_sync_all_streams": 0 if counted is None else counted.num_sync_all_streams,
        "num_device_alloc": 0 if counted is None else counted.num_device_alloc,
        "num_device_free": 0 if counted is None else counted.num_device_free,
        "max_split_size": -1 if limit == NO_LIMIT else limit,
    }


def _nest(counter: Counter) -> dict[str, int]:
    return {
        "current": counter.current,
        "peak": counter.peak,
        "allocated": counter.added,
        "freed": counter.removed,
    }


def nest_segment(device: int, segment: HeapSegment) -> Nested:
    """A segment as in PyTorch's snapshots."""
    held = [block for block in segment.blocks if block.state is BlockState.ALLOCATED]
    active = [block for block in segment.blocks if block.state is not BlockState.FREE]
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.segment_bytes,
        "allocated_size": sum(block.block_bytes for block in held),
        "active_size": sum(block.block_bytes for block in active),
        "requested_size": sum(block.requested_bytes for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.block_bytes,
                "requested_size": block.requested_bytes,
                "state": _STATES[block.state],
                "frames": [],
            }
            for block in segment.blocks
        ],
    }
