"""gpumem.memory and the methods of Allocator with PyTorch's names: exact figures on the simulated device."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpumem import memory
from gpumem.allocator import Allocator
from gpumem.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30
POOLED = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "reserved_bytes",
    "segment",
)
COUNTS = (
    "max_split_size",
    "num_alloc_retries",
    "num_device_alloc",
    "num_device_free",
    "num_ooms",
    "num_sync_all_streams",
)
COLUMNS = ("allocated", "current", "freed", "peak")
KEYS = sorted(
    [f"{name}.{pool}.{column}" for name in POOLED for pool in ("all", "large_pool", "small_pool") for column in COLUMNS]
    + [f"{name}.{column}" for name in ("oversize_allocations", "oversize_segments") for column in COLUMNS]
    + list(COUNTS)
)
"""What torch.cuda.memory_stats() of torch 2.11 holds, in its order."""


@pytest.fixture
def gpu() -> Iterator[Allocator]:
    with Allocator("simulated", memory_bytes=GIB) as allocator:
        yield allocator


def test_figures_of_an_allocator_have_pytorch_s_names_and_meaning(gpu: Allocator) -> None:
    small, large = gpu.alloc(1000), gpu.alloc(30 * MIB)
    gpu.free(large)
    assert gpu.memory_allocated() == memory.memory_allocated() == 1024
    assert gpu.max_memory_allocated() == memory.max_memory_allocated() == 1024 + 30 * MIB
    assert gpu.memory_reserved() == memory.memory_reserved() == 32 * MIB
    gpu.empty_cache()
    assert gpu.memory_reserved() == gpu.memory_cached() == memory.memory_cached() == 2 * MIB
    assert gpu.max_memory_reserved() == gpu.max_memory_cached() == memory.max_memory_cached() == 32 * MIB
    assert gpu.mem_get_info() == memory.mem_get_info() == (GIB - 2 * MIB, GIB)
    gpu.free(small)


def test_statistics_have_the_native_keys_in_their_order(gpu: Allocator) -> None:
    stats = gpu.memory_stats()
    assert list(stats) == KEYS
    assert len(stats) == 122
    assert {name: value for name, value in stats.items() if value} == {"max_split_size": -1}
    assert stats == memory.memory_stats() == memory.memory_stats(5)


CAME_AND_WENT = {
    "active.all.allocated": 4,
    "active.all.current": 2,
    "active.all.freed": 2,
    "active.all.peak": 3,
    "active_bytes.all.allocated": 2048 + 60 * MIB,
    "active_bytes.all.current": 1024 + 30 * MIB,
    "active_bytes.all.freed": 1024 + 30 * MIB,
    "active_bytes.all.peak": 2048 + 30 * MIB,
    "allocated_bytes.all.allocated": 2048 + 60 * MIB,
    "allocated_bytes.all.current": 1024 + 30 * MIB,
    "allocated_bytes.all.freed": 1024 + 30 * MIB,
    "allocated_bytes.all.peak": 2048 + 30 * MIB,
    "allocation.all.allocated": 4,
    "allocation.all.current": 2,
    "allocation.all.freed": 2,
    "allocation.all.peak": 3,
    "inactive_split.all.allocated": 1,
    "inactive_split.all.current": 1,
    "inactive_split.all.peak": 1,
    "inactive_split_bytes.all.allocated": 2 * MIB,
    "inactive_split_bytes.all.current": 2 * MIB - 1024,
    "inactive_split_bytes.all.freed": 1024,
    "inactive_split_bytes.all.peak": 2 * MIB - 1024,
    "requested_bytes.all.allocated": 1513 + 60 * MIB,
    "requested_bytes.all.current": 1000 + 30 * MIB,
    "requested_bytes.all.freed": 513 + 30 * MIB,
    "requested_bytes.all.peak": 1513 + 30 * MIB,
    "reserved_bytes.all.allocated": 32 * MIB,
    "reserved_bytes.all.current": 32 * MIB,
    "reserved_bytes.all.peak": 32 * MIB,
    "segment.all.allocated": 2,
    "segment.all.current": 2,
    "segment.all.peak": 2,
}
"""After 1000 B and 513 B, 30 MiB that come and go, the 513 B that go, and 30 MiB again."""


def test_statistics_count_what_came_and_went(gpu: Allocator) -> None:
    first, second = gpu.alloc(1000), gpu.alloc(513)
    large = gpu.alloc(30 * MIB)
    gpu.free(large)
    gpu.free(second)
    gpu.alloc(30 * MIB)
    stats = gpu.memory_stats()
    assert {name: value for name, value in stats.items() if value and ".all." in name} == CAME_AND_WENT
    assert stats["num_device_alloc"] == 2
    assert first != second


def test_resets_begin_peaks_and_accumulated_counts_anew(gpu: Allocator) -> None:
    block = gpu.alloc(30 * MIB)
    gpu.free(block)
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    stats = gpu.memory_stats()
    assert (gpu.max_memory_allocated(), gpu.max_memory_reserved()) == (0, 30 * MIB)
    assert (stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]) == (0, 0)
    assert (stats["reserved_bytes.all.current"], stats["segment.all.allocated"]) == (30 * MIB, 0)
    gpu.alloc(20 * MIB)
    gpu.reset_peak_memory_stats()
    gpu.reset_accumulated_memory_stats()
    assert (gpu.max_memory_allocated(), gpu.memory_stats()["allocation.all.allocated"]) == (20 * MIB, 0)


def test_snapshot_lists_segments_with_pytorch_s_keys(gpu: Allocator) -> None:
    block = gpu.alloc(1000, stream=7)
    [segment] = gpu.memory_snapshot()
    assert segment == {
        "device": 0,
        "address": block,
        "total_size": 2 * MIB,
        "allocated_size": 1024,
        "active_size": 1024,
        "requested_size": 1000,
        "stream": 7,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {"address": block, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
            {
                "address": block + 1024,
                "size": 2 * MIB - 1024,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            },
        ],
    }


def test_two_devices_have_figures_of_their_own(gpu: Allocator) -> None:
    with Allocator("simulated", 1, memory_bytes=2 * GIB) as other:
        gpu.alloc(1)
        other.alloc(3 * MIB)
        assert memory.memory_allocated(0) == memory.memory_allocated() == 512
        with memory.device(1):
            assert memory.current_device() == 1
            assert memory.memory_allocated() == other.memory_allocated() == 3 * MIB
            assert memory.memory_reserved() == 20 * MIB
            assert memory.memory_allocated(0) == 512
            assert memory.mem_get_info() == (2 * GIB - 20 * MIB, 2 * GIB)
            with memory.device(0):
                assert memory.memory_reserved() == 2 * MIB
            memory.reset_peak_memory_stats()
        assert (memory.current_device(), memory.memory_reserved(7)) == (0, 0)
        assert [(segment["device"], segment["total_size"]) for segment in memory.memory_snapshot()] == [
            (0, 2 * MIB),
            (1, 20 * MIB),
        ]
        freed = gpu.alloc(30 * MIB), other.alloc(30 * MIB)
        gpu.free(freed[0])
        other.free(freed[1])
        memory.empty_cache()
        assert (memory.memory_reserved(0), memory.memory_reserved(1)) == (2 * MIB, 20 * MIB)
    assert memory.memory_reserved(1) == 0


def test_a_device_is_chosen_for_one_thread(gpu: Allocator) -> None:
    seen: list[int] = []
    with memory.device(1):
        thread = threading.Thread(target=lambda: seen.append(memory.current_device()))
        thread.start()
        thread.join()
    assert (seen, memory.current_device()) == ([0], 0)


def test_a_user_s_mistakes_are_one_sentence_each(gpu: Allocator) -> None:
    with pytest.raises(UsageError, match="No allocator of gpumem's serves device 3 in this process"):
        memory.mem_get_info(3)
    with pytest.raises(UsageError, match=r"128 is no device's index; it is 0 to 127\."):
        memory.memory_allocated(128)
    with pytest.raises(UsageError, match=r"-1 is no device's index"), memory.device(-1):
        raise AssertionError
    gpu.close()
    with pytest.raises(UsageError, match="has been closed"):
        gpu.memory_allocated()


SUMMARY = """\
gpumem's allocator on device 0 (simulated device), 992.00 MiB of 1.00 GiB free

bytes                              now       at most          came          went
allocated                     1.00 KiB     30.00 MiB     30.00 MiB     30.00 MiB
active (with pending)         1.00 KiB     30.00 MiB     30.00 MiB     30.00 MiB
requested                       1000 B     30.00 MiB     30.00 MiB     30.00 MiB
reserved                     32.00 MiB     32.00 MiB     32.00 MiB           0 B
free parts of segments        2.00 MiB      2.00 MiB      2.00 MiB           0 B

counts                             now       at most          came          went
blocks allocated                     1             2             2             1
blocks active                        1             2             2             1
segments                             2             2             2             0
free parts of segments               1             1             1             0

idle 32.00 MiB: 30.00 MiB that empty_cache() would give back, 2.00 MiB in gaps; pending 0 B; slack 24 B
0 of 2 requests served by the cache, 1 split; the driver was asked 2 times and given back to 0 times
0 retried after a release, 0 refused for good
"""


def test_summary_says_what_came_what_went_and_what_is_idle(gpu: Allocator) -> None:
    gpu.alloc(1000)
    gpu.free(gpu.alloc(30 * MIB))
    assert gpu.memory_summary(abbreviated=True) == memory.memory_summary(abbreviated=True) == SUMMARY
    whole = gpu.memory_summary().splitlines()
    assert len(whole) == len(SUMMARY.splitlines()) + 18
    assert whole[4:6] == [
        "  small pool                  1.00 KiB      1.00 KiB      1.00 KiB           0 B",
        "  large pool                       0 B     30.00 MiB     30.00 MiB     30.00 MiB",
    ]
