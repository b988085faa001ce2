"""gpumem.Allocator used wrongly: numbers that 64 bits do not hold are never taken for others, and it stays one."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumem.allocator import Allocator
from gpumem.errors import OutOfMemoryError, TargetExists, UsageError
from waits import SECONDS_AT_MOST

BEYOND = 1 << 64


@pytest.fixture
def gpu() -> Iterator[Allocator]:
    with Allocator("simulated", memory_bytes=1 << 30) as allocator:
        yield allocator


@pytest.mark.parametrize("byte_count", [(1 << 60) + 1, 1 << 63, BEYOND, BEYOND + 512, 1 << 100])
def test_request_of_more_than_an_eib_is_refused_whatever_its_low_bits_are(gpu: Allocator, byte_count: int) -> None:
    with pytest.raises(OutOfMemoryError, match=f"{byte_count} bytes cannot be allocated: a request is 1 EiB at most"):
        gpu.alloc(byte_count)
    assert gpu.stats().block_count == 0


def test_address_beyond_64_bits_is_no_block_s(gpu: Allocator) -> None:
    block = gpu.alloc(512)
    for address in (block + BEYOND, block - BEYOND, -1):
        with pytest.raises(UsageError, match="is no block that this allocator has handed out"):
            gpu.free(address)
        with pytest.raises(UsageError, match="is no block that this allocator has handed out"):
            gpu.record_stream(address, 1)
    assert gpu.stats().block_count == 1


@pytest.mark.parametrize("stream", [-1, BEYOND])
def test_stream_that_no_handle_can_be_is_refused(gpu: Allocator, stream: int) -> None:
    block = gpu.alloc(512)
    with pytest.raises(UsageError, match=f"{stream} is no handle of a stream"):
        gpu.alloc(512, stream=stream)
    with pytest.raises(UsageError, match=f"{stream} is no handle of a stream"):
        gpu.record_stream(block, stream)
    assert gpu.stats().block_count == 1


@pytest.mark.parametrize("odd", [1.5, "5", None])
def test_what_is_no_whole_number_is_a_type_error(gpu: Allocator, odd: Any) -> None:
    block = gpu.alloc(512)
    calls: list[Callable[[], object]] = [
        lambda: gpu.alloc(odd),
        lambda: gpu.alloc(512, stream=odd),
        lambda: gpu.record_stream(block, odd),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            call()


@pytest.mark.parametrize("bytes_odd", [0, -1, (1 << 60) + 1, BEYOND, 1 << 70])
def test_memory_that_no_card_has_is_refused(bytes_odd: int) -> None:
    with pytest.raises(UsageError, match="memory_bytes are more than 0, and 1 EiB at most"):
        Allocator("simulated", memory_bytes=bytes_odd)


def test_settings_and_device_of_another_type_are_one_sentence() -> None:
    for odd in (None, b"max_split_size_mb:64"):
        with pytest.raises(UsageError, match="settings are text"):
            Allocator("simulated", settings=odd)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r'"\[\]" is no kind of device'):
        Allocator([])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_allocator_that_was_never_made_goes_quietly() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        Allocator("simulated", cards=2)  # type: ignore[call-arg]
    gc.collect()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_allocator_is_not_doubled(gpu: Allocator, duplicate: Callable[[Allocator], object]) -> None:
    with pytest.raises(TypeError, match="belongs to its process and cannot be copied or pickled"):
        duplicate(gpu)


def test_errors_travel_whole_between_processes() -> None:
    refusal = pickle.loads(pickle.dumps(OutOfMemoryError("full", requested_bytes=7, free_bytes=3)))
    assert (type(refusal), str(refusal)) == (OutOfMemoryError, "full")
    assert (refusal.requested_bytes, refusal.free_bytes) == (7, 3)
    taken = pickle.loads(pickle.dumps(TargetExists("a.gpumem", None)))  # type: ignore[arg-type]
    assert (str(taken), taken.path) == (str(TargetExists("a.gpumem", None)), "a.gpumem")  # type: ignore[arg-type]


def _ask_for_too_much(_: int) -> None:
    with Allocator("simulated", memory_bytes=1 << 20) as gpu:
        gpu.alloc(1 << 30)


def test_out_of_memory_in_a_worker_reaches_the_parent_of_its_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.map_async(_ask_for_too_much, [0])
        with pytest.raises(OutOfMemoryError, match=r"1\.00 GiB were asked for") as caught:
            waiting.get(timeout=SECONDS_AT_MOST)
    assert caught.value.requested_bytes == 1 << 30
