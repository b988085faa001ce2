"""Our own caching allocator in the native core, by ctypes.

Owns: typed calls on gpumem/native/include/gpumem_allocator.h. Must not know: recordings, PyTorch, CuPy. Nothing is
loaded until the first call.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gpumem import abi
from gpumem.abi.allocator_layout import (
    ALLOCATOR_ABI_HASH,
    POOL_COUNTERS,
    PROTOTYPES,
    STATISTICS_COUNTS,
    CAllocatorDevice,
    CAllocatorOptions,
    CAllocatorStatistics,
    CCounter,
    CPrivatePool,
    HeapTaker,
)
from gpumem.abi.library import decode_text, encode_text, open_interface
from gpumem.abi.live_heap import LiveHeap, read_heap
from gpumem.abi.policy import NO_BEHAVIOUR, Behaviour
from gpumem.errors import DeviceFailed, DeviceUnavailable, NativeCoreError, UsageError

NO_LIMIT = 2**64 - 1
TEXT_CAPACITY = 1024
NO_MEMORY = "this process has no memory left for what gpumem's allocator has to remember"


class DeviceKind(IntEnum):
    """gm_device_kind: what is behind an allocator."""

    SIMULATED = 0
    CUDA = 1


class Status(IntEnum):
    """How a call on an allocator went."""

    OK = 0
    BAD_ARGUMENT = 5
    NO_MEMORY = 7
    OUT_OF_MEMORY = 100
    TOO_LARGE = 101
    NOT_LIVE = 102
    POOL_UNKNOWN = 103
    DEVICE_FAILED = 104
    BAD_SETTINGS = 105
    UNSOUND = 106
    NO_DEVICE = 200


@dataclass(frozen=True, slots=True)
class Counter:
    """A figure now, at most since the last reset, and what came and went."""

    current: int
    peak: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """PyTorch's counters of one kind of pool."""

    allocation: Counter
    segment: Counter
    active: Counter
    inactive_split: Counter
    allocated_bytes: Counter
    reserved_bytes: Counter
    active_bytes: Counter
    inactive_split_bytes: Counter
    requested_bytes: Counter


@dataclass(frozen=True, slots=True)
class AllocatorStatistics:
    """Everything that an allocator counts, under PyTorch's names where it has one."""

    all: PoolCounters
    small_pool: PoolCounters
    large_pool: PoolCounters
    oversize_allocations: Counter
    oversize_segments: Counter
    num_alloc_retries: int
    num_ooms: int
    num_sync_all_streams: int
    num_device_alloc: int
    num_device_free: int
    num_oom_rejections: int
    max_split_bytes: int
    """NO_LIMIT: blocks of any bytes are split."""
    cache_hits: int
    splits: int
    releasable_bytes: int
    gap_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """The card behind an allocator."""

    name: str
    uuid: str | None
    memory_bytes: int
    free_bytes: int
    limit_bytes: int | None


class NativeAllocator:
    """A native allocator of one device, by its handle; `owned` ones are destroyed by close().

    In a process forked from its own it serves nothing: alloc() says DEVICE_FAILED, what asks for figures or changes
    settings raises DeviceFailed, free() and its like do nothing.
    """

    def __init__(self, handle: int, *, owned: bool) -> None:
        self._core = load_core()
        self._handle: c_void_p | None = c_void_p(handle)
        self._owned = owned
        self._alloc = self._core.gm_allocator_alloc
        self._free = self._core.gm_allocator_free

    def close(self) -> None:
        """Gives all memory back to the device."""
        handle, self._handle = self._handle, None
        if handle is not None and self._owned:
            self._core.gm_allocator_destroy(handle)

    @property
    def is_closed(self) -> bool:
        return self._handle is None

    @property
    def handle(self) -> c_void_p | None:
        """The native object, for native code that is to call it; None once closed."""
        return self._handle

    def alloc(self, byte_count: int, stream: int) -> tuple[Status, int]:
        """How it went, and the address (0 for zero bytes)."""
        address = c_uint64()
        status = self._alloc(self._handle, byte_count, stream, byref(address))
        # An enum by value takes as long as the call itself.
        return (Status(status) if status else Status.OK), address.value

    def free(self, address: int) -> Status:
        """NOT_LIVE where no block begins there."""
        status = self._free(self._handle, address)
        return Status(status) if status else Status.OK

    def record_stream(self, address: int, stream: int) -> Status:
        """Has the block's free wait for `stream`."""
        return Status(self._core.gm_allocator_record_stream(self._handle, address, stream))

    def share_with_torch(self) -> None:
        """Has PyTorch's requests on the device served by this allocator too, which then lives with the process."""
        self._owned = False
        self._require(self._core.gm_torch_share(self._handle))

    def empty_cache(self) -> Status:
        """Gives idle segments back to the device."""
        return Status(self._core.gm_allocator_empty_cache(self._handle))

    def hold_streams(self, held: bool) -> None:
        """Has the simulated device's streams never finish by themselves, or at once."""
        self._require(self._core.gm_allocator_hold_streams(self._handle, int(held)))

    def statistics(self) -> AllocatorStatistics:
        """Everything that is counted, now."""
        raw = CAllocatorStatistics()
        self._require(self._core.gm_allocator_get_statistics(self._handle, byref(raw)))
        return AllocatorStatistics(
            all=_pool_counters(raw.all),
            small_pool=_pool_counters(raw.small_pool),
            large_pool=_pool_counters(raw.large_pool),
            oversize_allocations=_counter(raw.oversize_allocations),
            oversize_segments=_counter(raw.oversize_segments),
            **{name: getattr(raw, name) for name in STATISTICS_COUNTS},
        )

    def private_reserves(self) -> dict[tuple[int, int], Mapping[str, Counter]]:
        """Reserved bytes of each private pool so far, by its id: of "all", "small_pool" and "large_pool"."""
        count, rows = c_uint64(), (CPrivatePool * 0)()
        while True:  # some may come between two calls
            self._require(self._core.gm_allocator_get_private_pools(self._handle, rows, len(rows), byref(count)))
            if count.value <= len(rows):
                break
            rows = (CPrivatePool * count.value)()
        return {
            (row.pool_first, row.pool_second): {
                name: _counter(getattr(row, name)) for name in ("all", "small_pool", "large_pool")
            }
            for row in rows[: count.value]
        }

    def reset_peaks(self) -> None:
        """Peaks are what is current, from now on."""
        self._require(self._core.gm_allocator_reset_peaks(self._handle))

    def reset_accumulated(self) -> None:
        """What came and went is counted from now on."""
        self._require(self._core.gm_allocator_reset_accumulated(self._handle))

    def describe_device(self) -> DeviceDescription:
        """The card: its name, bytes and limit."""
        raw = CAllocatorDevice()
        self._require(self._core.gm_allocator_get_device(self._handle, byref(raw)))
        return DeviceDescription(
            name=decode_text(raw.name),
            uuid=decode_text(raw.uuid) or None,
            memory_bytes=raw.memory_bytes,
            free_bytes=raw.free_bytes,
            limit_bytes=None if raw.limit_bytes == NO_LIMIT else raw.limit_bytes,
        )

    def describe_failure(self) -> str:
        """How the last call that ended with DEVICE_FAILED failed, in the driver's words."""
        text = ctypes.create_string_buffer(TEXT_CAPACITY)
        require_ok(self._core.gm_allocator_get_failure(self._handle, text, TEXT_CAPACITY))
        return decode_text(text.value)

    def find_contradiction(self) -> str | None:
        """Which conservation equation does not hold; None when all do. Walks the whole heap."""
        text = ctypes.create_string_buffer(TEXT_CAPACITY)
        status = Status(self._core.gm_allocator_check(self._handle, text, TEXT_CAPACITY))
        if status is Status.UNSOUND:
            return decode_text(text.value)
        self._require(status)
        return None

    def heap(self) -> LiveHeap:
        """Every segment and block now."""
        taken: list[LiveHeap] = []

        def take(_context: object, segments: Any, blocks: Any, position: int) -> None:
            taken.append(read_heap(segments.contents, blocks.contents, position))

        self._require(self._core.gm_allocator_take_heap(self._handle, HeapTaker(take), None))
        return taken[0]

    def _require(self, status: int) -> None:
        """As require_ok(); raises DeviceFailed where the allocator does not serve this process (any more)."""
        if status == Status.DEVICE_FAILED:
            raise DeviceFailed(f"The allocator failed while {self.describe_failure()}.")
        require_ok(status)


def create_allocator(
    kind: DeviceKind,
    *,
    device: int,
    settings: str,
    memory_bytes: int | None,
    limit_bytes: int | None = None,
    number: int = 0,
) -> NativeAllocator:
    """An allocator on a device, whose events carry `number`; starts CUDA's context on a real one.

    Raises UsageError for settings that PyTorch's allocator would refuse, DeviceUnavailable where there is no such GPU.
    """
    limit = NO_LIMIT if limit_bytes is None else limit_bytes
    options = CAllocatorOptions(encode_text(settings), memory_bytes or 0, limit, kind, device, number)
    handle = c_void_p()
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_allocator_create(byref(options), byref(handle), error, TEXT_CAPACITY)
    reason = decode_text(error.value)
    if status == Status.BAD_SETTINGS:
        raise UsageError(reason)
    if status == Status.NO_DEVICE:
        raise DeviceUnavailable(
            f'GPU {device} cannot be used: {reason}; gpumem doctor says more, and device="simulated" needs no GPU.'
        )
    require_ok(status)
    assert handle.value is not None
    return NativeAllocator(handle.value, owned=True)


def prepare_torch(settings: str, *, behaviour: Behaviour = NO_BEHAVIOUR, number: int = 0) -> None:
    """Settings, behaviour and number of the allocators that PyTorch will get.

    Raises UsageError when the settings are not the allocator's.
    """
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_torch_prepare(encode_text(settings), int(behaviour), number, error, TEXT_CAPACITY)
    if status == Status.BAD_SETTINGS:
        raise UsageError(decode_text(error.value))
    require_ok(status)


def torch_allocator(device: int) -> NativeAllocator | None:
    """The allocator that serves PyTorch on a device; None while it has been asked for nothing."""
    handle = load_core().gm_torch_allocator(device)
    return NativeAllocator(handle, owned=False) if handle else None


def start_torch_allocator(device: int) -> NativeAllocator:
    """The allocator that serves PyTorch on a device, made where there is none; raises DeviceUnavailable."""
    handle = c_void_p()
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    if load_core().gm_torch_start(device, byref(handle), error, TEXT_CAPACITY) or not handle.value:
        raise DeviceUnavailable(f"{decode_text(error.value)}; gpumem doctor says more.")
    return NativeAllocator(handle.value, owned=False)


def answer_cache_info() -> str | None:
    """Makes cudnn.benchmark work under our allocator; why not, where this PyTorch does not let it."""
    reason = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_torch_answer_cache_info(reason, TEXT_CAPACITY)
    return decode_text(reason.value) if status else None


def let_peers_in() -> str | None:
    """Makes copies between GPUs work with expandable segments; why not, where this PyTorch does not let it."""
    reason = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_torch_let_peers_in(reason, TEXT_CAPACITY)
    return decode_text(reason.value) if status else None


def serve_directly() -> str | None:
    """Has PyTorch come to our allocator by the shortest way; why not, where this PyTorch does not let it."""
    reason = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_torch_serve_directly(reason, TEXT_CAPACITY)
    return decode_text(reason.value) if status else None


def statistics_by_name(statistics: AllocatorStatistics) -> Mapping[str, Mapping[str, Counter]]:
    """The counters as PyTorch nests them: name, then "all", "small_pool", "large_pool"."""
    pools = {
        "all": statistics.all,
        "small_pool": statistics.small_pool,
        "large_pool": statistics.large_pool,
    }
    return {name: {pool: getattr(counters, name) for pool, counters in pools.items()} for name in POOL_COUNTERS}


def _counter(raw: CCounter) -> Counter:
    return Counter(raw.current, raw.peak, raw.added, raw.removed)


def _pool_counters(raw: Any) -> PoolCounters:
    return PoolCounters(**{name: _counter(getattr(raw, name)) for name in POOL_COUNTERS})


@functools.cache
def load_core() -> ctypes.CDLL:
    """The native library with the allocator's prototypes set."""
    return open_interface(ctypes.CDLL, str(abi.library_path()), "gm_allocator_abi_hash", ALLOCATOR_ABI_HASH, PROTOTYPES)


def require_ok(status: int) -> None:
    """Raises NativeCoreError for a status that no caller can have caused, MemoryError where the process has none."""
    if status == Status.NO_MEMORY:
        raise MemoryError(NO_MEMORY)
    if status:
        raise NativeCoreError(f"The native allocator refused a call (status {status}); please report this.")
