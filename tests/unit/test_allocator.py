"""gpumem.Allocator on the simulated device: what it serves, counts, refuses and records."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpumem
from gpumem.abi.allocator import Status
from gpumem.abi.policy import NO_LIMIT, DeviceOptions
from gpumem.allocator import Allocator
from gpumem.analyses.replay import Wish, find_replay
from gpumem.analyses.summary import summarise_trace
from gpumem.errors import UsageError
from gpumem.heap.instants import find_instant
from gpumem.heap.state import heap_at
from gpumem.simulate.replay import replay_trace
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import BlockState, EventFlag, EventKind
from waits import SECONDS_AT_MOST

MIB = 1 << 20
GIB = 1 << 30
COLUMNS = ("kind", "flags", "address", "requested_bytes", "block_bytes", "split_bytes", "stream")
Row = dict[str, int]


@pytest.fixture
def gpu() -> Iterator[Allocator]:
    with Allocator("simulated") as allocator:
        yield allocator


def rows_of(trace: Trace) -> Iterator[Row]:
    for batch in trace.event_batches(COLUMNS):
        for values in zip(*(batch[name].tolist() for name in COLUMNS), strict=True):
            yield dict(zip(COLUMNS, values, strict=True))


def hold_streams(allocator: Allocator) -> None:
    assert allocator._native is not None
    allocator._native.hold_streams(True)


def contradiction(allocator: Allocator) -> str | None:
    assert allocator._native is not None
    return allocator._native.find_contradiction()


def test_blocks_are_rounded_and_cut_from_segments(gpu: Allocator) -> None:
    first, second = gpu.alloc(1), gpu.alloc(513)
    stats = gpu.stats()
    assert second == first + 512
    assert (stats.requested_bytes, stats.allocated_bytes, stats.reserved_bytes) == (514, 512 + 1024, 2 * MIB)
    assert (stats.segment_count, stats.block_count, stats.split_count) == (1, 2, 2)
    assert stats.idle_bytes == 2 * MIB - 1536 == stats.gap_bytes


def test_a_freed_block_is_reused_without_the_device(gpu: Allocator) -> None:
    block = gpu.alloc(30 * MIB)
    gpu.free(block)
    assert gpu.stats().releasable_bytes == 30 * MIB
    assert gpu.alloc(30 * MIB) == block
    assert gpu.stats().cache_hit_count == 1


def test_no_bytes_are_no_block(gpu: Allocator) -> None:
    assert gpu.alloc(0) == 0
    gpu.free(0)
    assert gpu.stats().reserved_bytes == 0


def test_block_freed_on_another_stream_is_pending_until_that_is_done(gpu: Allocator) -> None:
    hold_streams(gpu)
    block = gpu.alloc(4 * MIB)
    gpu.record_stream(block, 7)
    gpu.free(block)
    assert (gpu.stats().allocated_bytes, gpu.stats().pending_bytes) == (0, 4 * MIB)
    assert {each.state for each in gpu.snapshot()[0].blocks} == {BlockState.PENDING, BlockState.FREE}
    assert gpu.alloc(4 * MIB) != block
    gpu.empty_cache()
    assert gpu.stats().pending_bytes == 0


def test_out_of_memory_says_what_is_held_and_leaves_the_heap_sound(gpu: Allocator) -> None:
    gpu.alloc(20 * GIB)
    with pytest.raises(gpumem.OutOfMemoryError) as refused:
        gpu.alloc(5 * GIB)
    assert str(refused.value) == (
        "Out of memory on device 0 (simulated device): 5.00 GiB were asked for, 4.00 GiB of 24.00 GiB are free. This "
        "allocator holds 20.00 GiB, of which 20.00 GiB are in use. Free blocks, or ask for less."
    )
    assert (refused.value.requested_bytes, refused.value.free_bytes) == (5 * GIB, 4 * GIB)
    assert isinstance(refused.value, MemoryError)
    assert (gpu.stats().oom_count, gpu.stats().retry_count) == (1, 1)
    assert contradiction(gpu) is None


def test_settings_and_limit_are_pytorch_s() -> None:
    with Allocator("simulated", settings="per_process_memory_fraction:0.5", memory_bytes=100 * MIB) as gpu:
        gpu.alloc(40 * MIB)
        with pytest.raises(gpumem.OutOfMemoryError, match=r"The limit is 50\.00 MiB"):
            gpu.alloc(20 * MIB)
    with pytest.raises(UsageError, match="max_split_size_mb must be at least 20"):
        Allocator("simulated", settings="max_split_size_mb:1")


def test_a_user_s_mistakes_are_one_sentence_each(gpu: Allocator) -> None:
    block = gpu.alloc(1)
    gpu.free(block)
    for call in (lambda: gpu.free(block), lambda: gpu.record_stream(block, 1), lambda: gpu.free(12345)):
        with pytest.raises(UsageError, match="is no block that this allocator has handed out"):
            call()
    with pytest.raises(UsageError, match="-1 bytes cannot be allocated"):
        gpu.alloc(-1)
    with pytest.raises(UsageError, match=r"Device 0 \(simulated\) has an allocator in this process already"):
        Allocator("simulated")
    with pytest.raises(UsageError, match='"cpu" is no kind of device'):
        Allocator("cpu")  # type: ignore[arg-type]
    gpu.close()
    with pytest.raises(UsageError, match="has been closed"):
        gpu.alloc(1)


def test_events_in_the_trace_are_the_calls(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem"), Allocator("simulated") as gpu:
        a, b = gpu.alloc(1000), gpu.alloc(30 * MIB, stream=5)
        gpu.free(a)
        gpu.empty_cache()
        gpumem.mark("emptied")
        gpu.free(b)
    trace = gpumem.open(tmp_path / "t.gpumem")
    rows = list(rows_of(trace))
    kinds = [EventKind(row["kind"]).name for row in rows]
    assert kinds[:6] == ["SEGMENT_REQUEST", "SEGMENT_ALLOC", "ALLOC"] * 2
    assert kinds[6:] == ["FREE", "EMPTY_CACHE", "SEGMENT_FREE", "MARK", "FREE", "EMPTY_CACHE", "SEGMENT_FREE"]
    assert (rows[2]["address"], rows[2]["requested_bytes"], rows[2]["block_bytes"]) == (a, 1000, 1024)
    assert rows[2]["split_bytes"] == 2 * MIB - 1024
    assert EventFlag(rows[2]["flags"] & 0xFF) == EventFlag.SPLIT | EventFlag.OWN_ALLOCATOR
    assert EventFlag(rows[6]["flags"] & 0xFF) == EventFlag.MERGED_NEXT | EventFlag.OWN_ALLOCATOR
    assert [trace.streams[rows[number]["stream"]].handle for number in (2, 5)] == [0, 5]
    assert trace.meta.block_bytes_known
    assert trace.meta.devices[0].capacity_bytes == 24 * GIB
    assert trace.meta.notes == () or all("torch" not in note for note in trace.meta.notes)


def test_a_recording_that_begins_in_mid_run_knows_what_is_held(tmp_path: Path, gpu: Allocator) -> None:
    held = gpu.alloc(30 * MIB)
    small = gpu.alloc(100)
    with gpumem.record(tmp_path / "t.gpumem"):
        gpu.free(small)
        gpu.alloc(3 * MIB)
        reserved = gpu.stats().reserved_bytes
        allocated = gpu.stats().allocated_bytes
    trace = gpumem.open(tmp_path / "t.gpumem")
    [heap] = heap_at(trace, find_instant(trace, parse_moment("end")).event)
    in_use = [block for segment in heap.segments for block in segment.blocks if block.state is BlockState.ALLOCATED]
    assert sum(segment.segment.segment_bytes for segment in heap.segments) == reserved
    assert sum(block.block_bytes or 0 for block in in_use) == allocated == 33 * MIB
    assert held in {block.address for block in in_use}
    assert all(segment.tiled for segment in heap.segments)


@pytest.mark.parametrize(
    "settings", ["", "expandable_segments:True", "max_split_size_mb:32,garbage_collection_threshold:0.6"]
)
def test_heap_of_the_trace_is_the_allocator_s_after_random_calls(settings: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        gpu = Allocator("simulated", settings=settings, memory_bytes=GIB)
        hold_streams(gpu)
        live = run_at_random(gpu, chance, 1500)
        assert contradiction(gpu) is None
        stats, segments = gpu.stats(), gpu.snapshot()
    trace = gpumem.open(tmp_path / "t.gpumem")
    gpu.close()
    [heap] = heap_at(trace, find_instant(trace, parse_moment("end")).event)
    assert {(block.address, block.block_bytes, block.state) for segment in segments for block in segment.blocks} == {
        (block.address, block.block_bytes, block.state) for segment in heap.segments for block in segment.blocks
    }
    counts = Counter(EventKind(row["kind"]).name for row in rows_of(trace))
    assert counts["ALLOC"] - counts["FREE"] - counts["FREE_REQUESTED"] == len(live) == stats.block_count
    assert counts["OOM"] == stats.oom_count > 0
    hits = sum(bool(row["flags"] & EventFlag.CACHE_HIT) for row in rows_of(trace) if row["kind"] == EventKind.ALLOC)
    assert hits == stats.cache_hit_count > 0


def test_its_recording_is_replayed_exactly_with_the_recorded_releases(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False), Allocator("simulated", memory_bytes=GIB) as gpu:
        run_at_random(gpu, random.Random(3), 800)
        gpu.empty_cache()
    options = DeviceOptions(0, limit_bytes=NO_LIMIT, capacity_bytes=GIB)
    result = replay_trace(gpumem.open(tmp_path / "t.gpumem"), [options], pools_recorded=True).results[0]
    assert (result.exact, result.reason, result.empty_cache_count) == (True, "", 0)


def run_at_random(gpu: Allocator, chance: random.Random, count: int) -> list[int]:
    """Blocks left after `count` random calls."""
    live: list[int] = []
    for _ in range(count):
        draw = chance.random()
        if draw < 0.55:
            try:
                live.append(gpu.alloc(round(2 ** chance.uniform(4, 27)), stream=chance.choice((0, 0, 1))))
            except gpumem.OutOfMemoryError:
                gpu.free(live.pop(chance.randrange(len(live))))
        elif draw < 0.97 and live:
            block = live.pop(chance.randrange(len(live)))
            if chance.random() < 0.1:
                gpu.record_stream(block, 9)
            gpu.free(block)
        elif draw > 0.99:
            gpu.empty_cache()
    return live


def test_threads_share_an_allocator(gpu: Allocator) -> None:
    def churn(seed: int) -> None:
        for block in run_at_random(gpu, random.Random(seed), 300):
            gpu.free(block)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contradiction(gpu) is None
    assert (gpu.stats().block_count, gpu.stats().allocated_bytes) == (0, 0)


def test_two_devices_in_one_program_are_two_heaps_in_its_trace(tmp_path: Path) -> None:
    with (
        gpumem.record(tmp_path / "t.gpumem", stacks=False),
        Allocator("simulated", 0, memory_bytes=GIB) as first,
        Allocator("simulated", 1, memory_bytes=2 * GIB) as second,
    ):
        live = [
            (gpu, block)
            for number in range(300)
            for gpu in (first, second)
            for block in [gpu.alloc(1000 + 7777 * number % 300_000, stream=number % 2)]
        ]
        for gpu, block in live[::3]:
            gpu.free(block)
        second.empty_cache()
        gpumem.mark("half")
        held = [(gpu.stats(), gpu.snapshot()) for gpu in (first, second)]
    # Both devices hand out the same addresses: nothing but the ordinal tells them apart.
    assert held[0][1][0].address == held[1][1][0].address
    trace = gpumem.open(tmp_path / "t.gpumem")
    summary = summarise_trace(trace)
    assert [device.facts.capacity_bytes for device in summary.devices] == [GIB, 2 * GIB]
    for device, (stats, _) in zip(summary.devices, held, strict=True):
        assert device.allocated_bytes is not None
        assert device.allocated_bytes.peak == stats.allocated_bytes_peak
        assert device.reserved_bytes.peak == stats.reserved_bytes_peak
    heaps = heap_at(trace, find_instant(trace, parse_moment("mark:half")).event)
    for heap, (_, segments) in zip(heaps, held, strict=True):
        assert {(block.address, block.block_bytes, block.state) for one in heap.segments for block in one.blocks} == {
            (block.address, block.block_bytes, block.state) for one in segments for block in one.blocks
        }
    checks = [device.check for device in find_replay(trace, Wish({})).devices]
    assert [(check.exact, check.decision_count == check.event_count) for check in checks] == [(True, True)] * 2


def test_process_without_memory_is_told_so_and_not_that_the_gpu_is_full(
    gpu: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = gpu._native
    assert native is not None
    monkeypatch.setattr(native, "alloc", lambda byte_count, stream: (Status.NO_MEMORY, 0))
    monkeypatch.setattr(native, "free", lambda address: Status.NO_MEMORY)
    with pytest.raises(MemoryError, match="this process has no memory left") as refused:
        gpu.alloc(512)
    assert not isinstance(refused.value, gpumem.OutOfMemoryError)
    with pytest.raises(MemoryError, match="this process has no memory left"):
        gpu.free(512)


FORKED = """
import os, signal, sys, threading
import gpumem
from gpumem.errors import DeviceFailed

gpu = gpumem.Allocator("simulated")
block = gpu.alloc(3 << 20)
is_over = threading.Event()

def keep_busy():
    while not is_over.is_set():
        gpu.free(gpu.alloc(1 << 20))

busy = threading.Thread(target=keep_busy)
busy.start()
asked = (
    gpu.stats, gpu.snapshot, gpu.free_bytes, gpu.memory_allocated, gpu.max_memory_reserved, gpu.memory_stats,
    gpu.memory_snapshot, gpu.memory_summary, gpu.mem_get_info, gpu.reset_peak_memory_stats,
    gpu.reset_accumulated_memory_stats, lambda: gpu.alloc(512),
)
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(200)
        sentences = set()
        for ask in asked:
            try:
                ask()
                sentences.add(f"{ask} answered")
            except DeviceFailed as error:
                sentences.add(str(error))
        gpu.free(block)
        gpu.empty_cache()
        gpu.close()
        print(*sorted(sentences), sep="\\n", flush=True)
        with gpumem.Allocator("simulated") as own:
            own.alloc(1)
            os._exit(0 if own.stats().block_count == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
is_over.set()
busy.join()
assert gpu.stats().allocated_bytes == 3 << 20
"""


def test_forked_child_is_told_that_an_allocator_is_its_parents_and_makes_one_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=SECONDS_AT_MOST,
        check=False,
    )
    reason = "serving a process forked from the one that the allocator belongs to, which needs one of its own."
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) == {f"GPU 0 failed while {reason}", f"The allocator failed while {reason}"}
