"""Our allocator's statistics and segments under PyTorch's names and in its nesting.

Owns: PyTorch's keys, and what of ours stands under each. Must not know: torch, whose allocator it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumem.abi.allocator import NO_LIMIT, AllocatorStatistics, Counter, NativeAllocator, statistics_by_name
from gpumem.abi.allocator_layout import POOL_COUNTERS
from gpumem.abi.live_heap import HeapSegment
from gpumem.abi.torch_release import PRIVATE_POOLS_COUNTED_SINCE, REJECTIONS_COUNTED_SINCE, has_come
from gpumem.vocabulary import BlockState

STATES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING: "active_pending_free",
    BlockState.FREE: "inactive",
}
_NOTHING = Counter(0, 0, 0, 0)

Nested = dict[str, object]


def nest_all(allocator: NativeAllocator | None, version: str | None) -> Nested:
    """What PyTorch of this version counts of a device; zeros where nothing was asked for yet."""
    counted = None if allocator is None else allocator.statistics()
    nested = nest_statistics(counted)
    if has_come(REJECTIONS_COUNTED_SINCE, version):
        nested["num_oom_rejections"] = 0 if counted is None else counted.num_oom_rejections
    if has_come(PRIVATE_POOLS_COUNTED_SINCE, version):
        reserves = {} if allocator is None else allocator.private_reserves()
        nested["reserved_bytes_by_private_pools"] = {
            pool: {name: _nest(counter) for name, counter in counters.items()} for pool, counters in reserves.items()
        }
    return nested


def nest_statistics(counted: AllocatorStatistics | None) -> Nested:
    """The statistics that all versions have, under PyTorch's names and nesting."""
    if counted is None:
        pools = ("all", "small_pool", "large_pool")
        nested: Nested = {name: {pool: _nest(_NOTHING) for pool in pools} for name in POOL_COUNTERS}
        return nested | _counts_of(None)
    by_name = statistics_by_name(counted)
    nested = {name: {pool: _nest(counter) for pool, counter in pools.items()} for name, pools in by_name.items()}
    return nested | _counts_of(counted)


def flatten_statistics(nested: Mapping[str, object]) -> dict[str, int]:
    """The statistics as torch.cuda.memory_stats() gives them: `allocated_bytes.all.current` and so on, by name."""
    return dict(sorted(_flat("", nested)))


def _flat(prefix: str, nested: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            assert isinstance(value, int)
            yield f"{prefix}{name}", value


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
                "state": STATES[block.state],
                "frames": [],
            }
            for block in segment.blocks
        ],
    }
