"""gpumem.memory: what gpumem's own allocators hold, under the names of torch.cuda's functions and with their meaning.

Owns: the public functions, which device they mean. Must not know: how figures are counted (the native policy), how
PyTorch nests them (recorder/torch_shapes.py).

Every function is about one device of the program: the one named, else that of the innermost `with device(…):` of this
thread, else the GPU whose CUDA context is current on it, else device 0. A device is served by a gpumem.Allocator, by
gpumem's allocator in CuPy's place, or by the one in PyTorch's; on one that none serves every figure is 0.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

from gpumem.abi.allocator import NO_MEMORY, NativeAllocator, Status
from gpumem.abi.gpus import find_current_gpu
from gpumem.analyses.memory_summary import MemorySummary
from gpumem.errors import DeviceFailed, UsageError
from gpumem.recorder import own_allocators
from gpumem.recorder.torch_shapes import Nested, flatten_statistics, nest_segment, nest_statistics

_chosen = threading.local()


class DeviceMemory(ABC):
    """What one allocator holds, by PyTorch's names; bytes are ints."""

    @property
    @abstractmethod
    def index(self) -> int:
        """The program's ordinal of the device."""

    @abstractmethod
    def _open(self) -> NativeAllocator:
        """The allocator; raises UsageError once it is closed."""

    def memory_allocated(self) -> int:
        """Bytes of the blocks in use."""
        return self._open().statistics().all.allocated_bytes.current

    def max_memory_allocated(self) -> int:
        """The most that memory_allocated() has been since peaks were last reset."""
        return self._open().statistics().all.allocated_bytes.peak

    def memory_reserved(self) -> int:
        """Bytes obtained from the driver: blocks in use, pending and idle."""
        return self._open().statistics().all.reserved_bytes.current

    def max_memory_reserved(self) -> int:
        """The most that memory_reserved() has been since peaks were last reset."""
        return self._open().statistics().all.reserved_bytes.peak

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved

    def memory_stats(self) -> dict[str, int]:
        """Every statistic of PyTorch's allocator by its name, such as `allocated_bytes.all.peak`."""
        return flatten_statistics(nest_statistics(self._open().statistics()))

    def memory_snapshot(self) -> list[Nested]:
        """Every segment with its blocks, as dictionaries with PyTorch's keys; ascending by address."""
        return [nest_segment(self.index, segment) for segment in self._open().heap().segments]

    def memory_summary(self, *, abbreviated: bool = False) -> str:
        """The statistics as a table; `abbreviated` leaves the small and the large pools out."""
        from gpumem.render.memory_summary import render_memory_summary

        native = self._open()
        counted, described = native.statistics(), native.describe_device()
        return render_memory_summary(
            MemorySummary(
                device=self.index,
                name=described.name,
                memory_bytes=described.memory_bytes,
                free_bytes=described.free_bytes,
                limit_bytes=described.limit_bytes,
                statistics=flatten_statistics(nest_statistics(counted)),
                releasable_bytes=counted.releasable_bytes,
                gap_bytes=counted.gap_bytes,
                cache_hit_count=counted.cache_hits,
                split_count=counted.splits,
            ),
            abbreviated=abbreviated,
        )

    def reset_peak_memory_stats(self) -> None:
        """Has peaks count from what is held now."""
        self._open().reset_peaks()

    def reset_accumulated_memory_stats(self) -> None:
        """Has what came and went, retries and refusals counted from now on."""
        self._open().reset_accumulated()

    def empty_cache(self) -> None:
        """Gives every segment without a block in use back to the driver; raises DeviceFailed."""
        native = self._open()
        check_device(native, self.index, native.empty_cache())

    def mem_get_info(self) -> tuple[int, int]:
        """Bytes that the device has free, and all that it has, by its driver."""
        described = self._open().describe_device()
        return described.free_bytes, described.memory_bytes


class _Serving(DeviceMemory):
    """An allocator of this process, whoever plugged it in."""

    def __init__(self, native: NativeAllocator, index: int) -> None:
        self._native = native
        self._index = index

    @property
    def index(self) -> int:
        return self._index

    def _open(self) -> NativeAllocator:
        return self._native


@contextlib.contextmanager
def device(index: int) -> Iterator[None]:
    """Has the functions of this module mean device `index` inside, on this thread; CUDA's own choice stays."""
    before = getattr(_chosen, "index", None)
    _chosen.index = check_index(index)
    try:
        yield
    finally:
        _chosen.index = before


def current_device() -> int:
    """The device that is meant where none is named."""
    chosen: int | None = getattr(_chosen, "index", None)
    if chosen is None and own_allocators.is_any_on_gpu():
        chosen = find_current_gpu()
    return 0 if chosen is None else chosen


def memory_allocated(device: int | None = None) -> int:
    """Bytes of the blocks in use."""
    found = _find(device)
    return 0 if found is None else found.memory_allocated()


def max_memory_allocated(device: int | None = None) -> int:
    """The most that memory_allocated() has been since peaks were last reset."""
    found = _find(device)
    return 0 if found is None else found.max_memory_allocated()


def memory_reserved(device: int | None = None) -> int:
    """Bytes obtained from the driver: blocks in use, pending and idle."""
    found = _find(device)
    return 0 if found is None else found.memory_reserved()


def max_memory_reserved(device: int | None = None) -> int:
    """The most that memory_reserved() has been since peaks were last reset."""
    found = _find(device)
    return 0 if found is None else found.max_memory_reserved()


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def memory_stats(device: int | None = None) -> dict[str, int]:
    """Every statistic of PyTorch's allocator by its name, such as `allocated_bytes.all.peak`."""
    found = _find(device)
    return flatten_statistics(nest_statistics(None)) if found is None else found.memory_stats()


def memory_summary(device: int | None = None, *, abbreviated: bool = False) -> str:
    """The statistics as a table; raises UsageError for a device that no allocator of gpumem's serves."""
    return _require(device).memory_summary(abbreviated=abbreviated)


def memory_snapshot() -> list[Nested]:
    """Every segment of every device with its blocks, as dictionaries with PyTorch's keys."""
    return [segment for memory in _all_serving() for segment in memory.memory_snapshot()]


def reset_peak_memory_stats(device: int | None = None) -> None:
    """Has peaks count from what is held now."""
    found = _find(device)
    if found is not None:
        found.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device: int | None = None) -> None:
    """Has what came and went, retries and refusals counted from now on."""
    found = _find(device)
    if found is not None:
        found.reset_accumulated_memory_stats()


def empty_cache() -> None:
    """Gives every segment without a block in use back to the driver, on every device; raises DeviceFailed."""
    for memory in _all_serving():
        memory.empty_cache()


def mem_get_info(device: int | None = None) -> tuple[int, int]:
    """Bytes free and all bytes of the device; raises UsageError where no allocator of gpumem's serves it."""
    return _require(device).mem_get_info()


def check_index(index: int) -> int:
    """`index`, if a device may have it; raises UsageError."""
    if not isinstance(index, int) or not 0 <= index < own_allocators.DEVICES_MAX:
        raise UsageError(f"{index!r} is no device's index; it is 0 to {own_allocators.DEVICES_MAX - 1}.")
    return index


def check_device(native: NativeAllocator, index: int, status: Status) -> None:
    """Raises DeviceFailed, in the driver's words, for a call that the driver made fail, MemoryError where the process
    has no memory left.
    """
    if status is Status.NO_MEMORY:
        raise MemoryError(NO_MEMORY)
    if status is Status.DEVICE_FAILED:
        raise DeviceFailed(f"GPU {index} failed while {native.describe_failure()}.")


def _find(index: int | None) -> DeviceMemory | None:
    index = current_device() if index is None else check_index(index)
    native = own_allocators.find_serving(index)
    return None if native is None else _Serving(native, index)


def _require(index: int | None) -> DeviceMemory:
    found = _find(index)
    if found is None:
        number = current_device() if index is None else index
        raise UsageError(f"No allocator of gpumem's serves device {number} in this process; make a gpumem.Allocator.")
    return found


def _all_serving() -> Iterator[DeviceMemory]:
    for index in range(own_allocators.DEVICES_MAX):
        native = own_allocators.find_serving(index)
        if native is not None:
            yield _Serving(native, index)
