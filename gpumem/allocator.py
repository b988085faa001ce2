"""gpumem.Allocator: our instrumented caching allocator for programs that allocate by themselves.

Owns: the public calls, their errors' texts. Must not know: how memory is found (the native policy), how it is recorded
(recorder/own_allocators.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import index as whole_number
from types import TracebackType
from typing import Literal, NoReturn

from gpumem.abi.allocator import AllocatorStatistics, DeviceKind, NativeAllocator, Status
from gpumem.abi.live_heap import HeapSegment
from gpumem.errors import OutOfMemoryError, UsageError
from gpumem.memory import DeviceMemory, check_device, check_index
from gpumem.recorder import own_allocators
from gpumem.units import GIB, format_bytes

SIMULATED_MEMORY_BYTES = 24 * GIB
"""What the simulated device has where nothing else is said."""
REQUEST_BYTES_MOST = 1 << 60
_HANDLE_LIMIT = 1 << 64
_KINDS = {"simulated": DeviceKind.SIMULATED, "cuda": DeviceKind.CUDA}


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """What an allocator holds, now and at most: reserved = allocated + pending + idle; idle = releasable + gaps."""

    allocated_bytes: int
    allocated_bytes_peak: int
    active_bytes: int
    active_bytes_peak: int
    requested_bytes: int
    requested_bytes_peak: int
    reserved_bytes: int
    reserved_bytes_peak: int
    releasable_bytes: int
    gap_bytes: int
    segment_count: int
    block_count: int
    cache_hit_count: int
    split_count: int
    retry_count: int
    oom_count: int

    @property
    def pending_bytes(self) -> int:
        """Freed, but another stream still uses it."""
        return self.active_bytes - self.allocated_bytes

    @property
    def idle_bytes(self) -> int:
        """Reserved and not in use."""
        return self.reserved_bytes - self.active_bytes


class Allocator(DeviceMemory):
    """A caching allocator that follows PyTorch's rules to the byte, on a GPU or on a simulated one.

    `device`: "cuda" for GPU number `index` of those the program sees, or "simulated", which needs no GPU and hands out
    addresses without memory. `settings`: what PYTORCH_CUDA_ALLOC_CONF takes. `memory_bytes`: as if the card had no
    more. Under `gpumem run` or `gpumem.record()` every event is recorded. May be used from any thread. Its figures have
    PyTorch's names too: memory_allocated(), memory_stats() and the others of gpumem.memory, each for this device.
    """

    _native: NativeAllocator | None = None

    def __init__(
        self,
        device: Literal["simulated", "cuda"] = "cuda",
        index: int = 0,
        settings: str = "",
        memory_bytes: int | None = None,
    ) -> None:
        if not isinstance(device, str) or device not in _KINDS:
            raise UsageError(f'"{device}" is no kind of device; an Allocator is on "cuda" or "simulated".')
        if memory_bytes is not None and not 0 < whole_number(memory_bytes) <= REQUEST_BYTES_MOST:
            raise UsageError("An Allocator's memory_bytes are more than 0, and 1 EiB at most.")
        if not isinstance(settings, str):
            raise UsageError("An Allocator's settings are text, as PYTORCH_CUDA_ALLOC_CONF holds it.")
        if memory_bytes is None and device == "simulated":
            memory_bytes = SIMULATED_MEMORY_BYTES
        self._index = check_index(index)
        self._native = own_allocators.start_allocator(
            _KINDS[device], index, settings=settings, memory_bytes=memory_bytes
        )

    @property
    def index(self) -> int:
        """The program's ordinal of the device."""
        return self._index

    def alloc(self, bytes: int, stream: int = 0) -> int:  # noqa: A002 (as a request is called)
        """Address of a block of at least `bytes` for work on `stream` (a raw handle); 0 for no bytes.

        Raises OutOfMemoryError, DeviceFailed.
        """
        byte_count = whole_number(bytes)
        if byte_count < 0:
            raise UsageError(f"{byte_count} bytes cannot be allocated.")
        native = self._open()
        status, address = native.alloc(min(byte_count, REQUEST_BYTES_MOST + 1), _stream_handle(stream))
        if status is not Status.OK:
            raise self._refusal(native, status, byte_count)
        return address

    def free(self, address: int) -> None:
        """Takes the block back: at once, or when the streams that record_stream() named are done with it."""
        if address:
            self._check(self._open().free(_block_address(address)), address)

    def record_stream(self, address: int, stream: int) -> None:
        """Says that `stream` uses the block too, so that its free waits for the work queued there by then."""
        status = self._open().record_stream(_block_address(address), _stream_handle(stream))
        self._check(status, address)

    def stats(self) -> AllocatorStats:
        """What is held now and was held at most."""
        return _stats_of(self._open().statistics())

    def snapshot(self) -> tuple[HeapSegment, ...]:
        """Every segment with the blocks that tile it, ascending by address."""
        return self._open().heap().segments

    def free_bytes(self) -> int:
        """What the device has left, by its driver."""
        return self._open().describe_device().free_bytes

    def close(self) -> None:
        """Gives all memory back; blocks still held are freed first. Harmless when closed."""
        native, self._native = self._native, None
        if native is not None:
            own_allocators.end_allocator(native)

    def __reduce__(self) -> NoReturn:
        raise TypeError("An Allocator belongs to its process and cannot be copied or pickled.")

    def __enter__(self) -> Allocator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the program's end blocks stay as they are: a recording shows what it held to the last.
        if self._native is not None and not is_finalizing():
            self.close()

    def _open(self) -> NativeAllocator:
        if self._native is None:
            raise UsageError("This Allocator has been closed; make another one.")
        return self._native

    def _check(self, status: Status, address: int) -> None:
        if status is Status.NOT_LIVE:
            raise UsageError(f"{address:#x} is no block that this allocator has handed out and not yet taken back.")
        check_device(self._open(), self._index, status)
        assert status is Status.OK, status

    def _refusal(self, native: NativeAllocator, status: Status, byte_count: int) -> Exception:
        if status is Status.TOO_LARGE:
            message = f"{byte_count} bytes cannot be allocated: a request is 1 EiB at most."
            return OutOfMemoryError(message, requested_bytes=byte_count, free_bytes=0)
        if status is not Status.OUT_OF_MEMORY:
            self._check(status, 0)
        return describe_out_of_memory(native, self._index, byte_count)


def _block_address(address: int) -> int:
    """`address`, or one that no block has where there is no such address at all."""
    return address if 0 <= whole_number(address) < _HANDLE_LIMIT else _HANDLE_LIMIT - 1


def _stream_handle(stream: int) -> int:
    """`stream`, if it can be a raw handle; raises UsageError."""
    if not 0 <= whole_number(stream) < _HANDLE_LIMIT:
        raise UsageError(f"{stream} is no handle of a stream.")
    return stream


def describe_out_of_memory(native: NativeAllocator, index: int, byte_count: int) -> OutOfMemoryError:
    """The error for a request that was refused, with what the device and the allocator hold."""
    device, counted = native.describe_device(), native.statistics().all
    allocated, reserved = counted.allocated_bytes.current, counted.reserved_bytes.current
    limit = "" if device.limit_bytes is None else f" The limit is {format_bytes(device.limit_bytes)}."
    message = (
        f"Out of memory on device {index} ({device.name}): {format_bytes(byte_count)} were asked for, "
        f"{format_bytes(device.free_bytes)} of {format_bytes(device.memory_bytes)} are free. This allocator holds "
        f"{format_bytes(reserved)}, of which {format_bytes(allocated)} are in use.{limit} Free blocks, or ask for less."
    )
    return OutOfMemoryError(message, requested_bytes=byte_count, free_bytes=device.free_bytes)


def _stats_of(counted: AllocatorStatistics) -> AllocatorStats:
    both = counted.all
    return AllocatorStats(
        allocated_bytes=both.allocated_bytes.current,
        allocated_bytes_peak=both.allocated_bytes.peak,
        active_bytes=both.active_bytes.current,
        active_bytes_peak=both.active_bytes.peak,
        requested_bytes=both.requested_bytes.current,
        requested_bytes_peak=both.requested_bytes.peak,
        reserved_bytes=both.reserved_bytes.current,
        reserved_bytes_peak=both.reserved_bytes.peak,
        releasable_bytes=counted.releasable_bytes,
        gap_bytes=counted.gap_bytes,
        segment_count=both.segment.current,
        block_count=both.allocation.current,
        cache_hit_count=counted.cache_hits,
        split_count=counted.splits,
        retry_count=counted.num_alloc_retries,
        oom_count=counted.num_ooms,
    )
