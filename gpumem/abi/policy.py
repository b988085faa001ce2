"""The allocator's policy in the native core, by ctypes: replay of recorded events.

Owns: typed calls on gpumem/native/include/gpumem_policy.h, columns in and columns out. Must not
know: traces, files, what a replay is for. Nothing is loaded until the first call.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, byref, c_uint8, c_uint16, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntFlag
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpumem import abi
from gpumem.abi.library import decode_text, encode_text, open_interface
from gpumem.abi.policy_layout import (
    POLICY_ABI_HASH,
    PROTOTYPES,
    RESULT_COUNTS,
    CHeapBlocks,
    CHeapSegments,
    CReplayDevice,
    CReplayEvents,
    CReplayResult,
)
from gpumem.errors import NativeCoreError, UsageError

POOL_UNKNOWN = 65535
"""In a pool column: the source does not say which pool."""
NO_LIMIT = 2**64 - 1
TEXT_CAPACITY = 512

U8Column = npt.NDArray[np.uint8]
U16Column = npt.NDArray[np.uint16]
U64Column = npt.NDArray[np.uint64]
Column = U8Column | U16Column | U64Column


class ReplayAssumption(IntFlag):
    """gm_replay_assumption: what a replay had to assume because no event says it."""

    EMPTY_CACHE = 1
    POOLS = 2
    LOST_POOLS = 4
    GARBAGE = 8
    DRIVER_REFUSED = 16
    SETTINGS_CHANGED = 32
    SLACK = 64
    RELEASE = 128


class Behaviour(IntFlag):
    """gm_policy_behaviour: where a PyTorch version's allocator differs from 2.11."""

    SEARCH_AFTER_RETRY_WAIT = 1
    ROUTED_POOL_MAY_RELEASE = 2
    LARGE_SEGMENT_SETTING = 4
    OLDEST_BLOCK_FIRST = 8
    OLDEST_SEGMENT_FIRST = 16


NO_BEHAVIOUR = Behaviour(0)
"""PyTorch 2.11, whose recordings the policy is held to."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How one device of the run was set up; None where the source does not say."""

    device: int
    settings: str = ""
    limit_bytes: int | None = None
    """The memory limit; NO_LIMIT when there was none, None when it is not known."""
    capacity_bytes: int | None = None
    truncated: bool = False
    behaviour: Behaviour = NO_BEHAVIOUR
    check_each_event: bool = False


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Consecutive events, one contiguous array per column, of equal length."""

    kind: U8Column
    device: U8Column
    stream: U16Column
    pool: U16Column
    address: U64Column
    requested_bytes: U64Column


@dataclass(frozen=True, slots=True)
class SegmentColumns:
    """Segments ascending by address; expandable ones as their contiguous mapped ranges."""

    address: U64Column
    bytes: U64Column
    stream: U64Column
    pool_first: U64Column
    pool_second: U64Column
    is_small: U8Column
    is_expandable: U8Column


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """Blocks ascending by address; state 0 free, 1 allocated, 2 pending."""

    address: U64Column
    bytes: U64Column
    requested_bytes: U64Column
    state: U8Column


@dataclass(frozen=True, slots=True)
class HeapColumns:
    """A heap: segments and the blocks that tile them."""

    segments: SegmentColumns
    blocks: BlockColumns


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What replay adds to events: bytes handed out, bytes split off, EventFlag bits; 0 where not known."""

    block_bytes: U64Column
    split_bytes: U64Column
    flags: U16Column


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Where a device's replay stands; difference_, expected_ and got_ mean something only when it is not exact."""

    exact: bool
    assumptions: ReplayAssumption
    reason: str
    decisions: int
    events: int
    limit_bytes_min: int
    limit_bytes_max: int
    empty_cache_count: int
    allocated_bytes_end: int
    allocated_bytes_peak: int
    active_bytes_end: int
    active_bytes_peak: int
    requested_bytes_end: int
    requested_bytes_peak: int
    reserved_bytes_end: int
    reserved_bytes_peak: int
    cache_hits: int
    splits: int
    alloc_retries: int
    ooms: int
    device_allocs: int
    device_frees: int
    releasable_bytes_end: int
    gap_bytes_end: int
    small_free_bytes_max: int
    large_free_bytes_max: int
    difference_position: int
    expected_kind: int
    expected_address: int
    expected_bytes: int
    expected_stream: int
    got_kind: int
    got_address: int
    got_bytes: int
    got_stream: int


def check_settings(settings: str) -> None:
    """Raises UsageError, saying what is wrong where, unless PyTorch's allocator would take these settings."""
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    if load_core().gm_policy_check_settings(encode_text(settings), error, TEXT_CAPACITY):
        raise UsageError(decode_text(error.value))


class Replay:
    """A trace followed through the allocator's policy; a context manager that owns the native handle."""

    def __init__(self) -> None:
        self._core = load_core()
        self._handle = c_void_p()
        require_ok(self._core.gm_replay_create(byref(self._handle)))

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the native handle."""
        self._core.gm_replay_destroy(self._handle)
        self._handle = c_void_p()

    def add_streams(self, handles: U64Column) -> None:
        """Appends rows to what the stream column names: raw handles by row."""
        require_ok(self._core.gm_replay_add_streams(self._handle, pointer_of(handles), len(handles)))

    def add_pools(self, first: U64Column, second: U64Column) -> None:
        """Appends rows to what the pool column names; row 0 is (0, 0), the default pools."""
        require_ok(self._core.gm_replay_add_pools(self._handle, pointer_of(first), pointer_of(second), len(first)))

    def add_device(self, options: DeviceOptions) -> None:
        """Adds a device; raises UsageError when its settings are not the allocator's."""
        device = CReplayDevice(
            encode_text(options.settings),
            options.limit_bytes or 0,
            options.capacity_bytes or 0,
            options.limit_bytes is not None,
            options.truncated,
            int(options.behaviour),
            options.check_each_event,
            options.device,
            0,
        )
        error = ctypes.create_string_buffer(TEXT_CAPACITY)
        status = self._core.gm_replay_add_device(self._handle, byref(device), error, TEXT_CAPACITY)
        if error.value:
            raise UsageError(decode_text(error.value))
        require_ok(status)

    def adopt(self, device: int, heap: HeapColumns) -> bool:
        """Takes over the heap as it was before the first event; False where its blocks do not tile its segments."""
        status = self._core.gm_replay_adopt(self._handle, device, byref(_segments(heap)), byref(_blocks(heap)))
        if status != abi.Status.BAD_ARGUMENT:
            require_ok(status)
        return int(status) == abi.Status.OK

    def adopt_from_end(self, device: int, heap: HeapColumns, events: EventColumns) -> str:
        """Works out pools, and in a truncated history the heap at its start; "" or why that is not possible."""
        error = ctypes.create_string_buffer(TEXT_CAPACITY)
        status = self._core.gm_replay_adopt_from_end(
            self._handle,
            device,
            byref(_segments(heap)),
            byref(_blocks(heap)),
            byref(events_of(events)),
            error,
            TEXT_CAPACITY,
        )
        if not error.value:
            require_ok(status)
        return decode_text(error.value)

    def feed(self, events: EventColumns) -> None:
        """Follows the next events of the trace."""
        require_ok(self._core.gm_replay_feed(self._handle, byref(events_of(events))))

    def finish(self) -> None:
        """Follows what was waiting for more events: the trace has none."""
        require_ok(self._core.gm_replay_finish(self._handle))

    def settle(self, position: int) -> None:
        """Follows devices that still wait for more events at one before `position` as if they had no more then."""
        require_ok(self._core.gm_replay_settle(self._handle, position))

    def take(self) -> EventDetails:
        """Details of all events that are settled and were not taken before, in order."""
        count = self._core.gm_replay_ready(self._handle)
        details = EventDetails(np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.uint16))
        columns = (pointer_of(details.block_bytes), pointer_of(details.split_bytes), pointer_of(details.flags))
        require_ok(self._core.gm_replay_take(self._handle, count, *columns))
        return details

    def result(self, device: int) -> ReplayResult:
        """Where the device's replay stands now."""
        raw = CReplayResult()
        require_ok(self._core.gm_replay_get_result(self._handle, device, byref(raw)))
        return ReplayResult(
            exact=bool(raw.exact),
            assumptions=ReplayAssumption(raw.assumptions),
            reason=decode_text(raw.reason),
            expected_kind=raw.expected_kind,
            got_kind=raw.got_kind,
            **{name: getattr(raw, name) for name in RESULT_COUNTS},
        )

    def empty_caches(self, device: int) -> U64Column:
        """Positions of the events before which an empty_cache call was inferred."""
        positions = np.empty(self.result(device).empty_cache_count, np.uint64)
        require_ok(self._core.gm_replay_get_empty_caches(self._handle, device, pointer_of(positions), len(positions)))
        return positions

    def heap(self, device: int) -> HeapColumns:
        """The replayed heap as it stands now."""
        segment_count, block_count = c_uint64(), c_uint64()
        require_ok(self._core.gm_replay_count_heap(self._handle, device, byref(segment_count), byref(block_count)))
        wide = np.zeros((5, segment_count.value), np.uint64)
        narrow = np.zeros((2, segment_count.value), np.uint8)
        cells = np.zeros((3, block_count.value), np.uint64)
        heap = HeapColumns(
            SegmentColumns(wide[0], wide[1], wide[2], wide[3], wide[4], narrow[0], narrow[1]),
            BlockColumns(cells[0], cells[1], cells[2], np.zeros(block_count.value, np.uint8)),
        )
        segments, blocks = _segments(heap), _blocks(heap)
        require_ok(self._core.gm_replay_get_heap(self._handle, device, byref(segments), byref(blocks)))
        return heap


def pointer_of(column: Column) -> Any:
    """A typed pointer to the column's first value; the column must outlive its use."""
    assert column.flags["C_CONTIGUOUS"]
    kinds: dict[int, Any] = {1: c_uint8, 2: c_uint16, 8: c_uint64}
    return column.ctypes.data_as(POINTER(kinds[column.itemsize]))


def _pointers(columns: Sequence[Column]) -> list[Any]:
    assert len({len(column) for column in columns}) == 1
    return [pointer_of(column) for column in columns]


def events_of(events: EventColumns) -> CReplayEvents:
    columns = (events.kind, events.device, events.stream, events.pool, events.address, events.requested_bytes)
    return CReplayEvents(len(events.kind), *_pointers(columns))


def _segments(heap: HeapColumns) -> CHeapSegments:
    rows = heap.segments
    columns = (
        rows.address,
        rows.bytes,
        rows.stream,
        rows.pool_first,
        rows.pool_second,
        rows.is_small,
        rows.is_expandable,
    )
    return CHeapSegments(len(rows.address), *_pointers(columns))


def _blocks(heap: HeapColumns) -> CHeapBlocks:
    rows = heap.blocks
    return CHeapBlocks(len(rows.address), *_pointers((rows.address, rows.bytes, rows.requested_bytes, rows.state)))


@functools.cache
def load_core() -> ctypes.CDLL:
    return open_interface(ctypes.CDLL, str(abi.library_path()), "gm_policy_abi_hash", POLICY_ABI_HASH, PROTOTYPES)


def require_ok(status: int) -> None:
    """Raises NativeCoreError for a status that no caller can have caused, MemoryError where the process has none."""
    if status == abi.Status.NO_MEMORY:
        raise MemoryError("this process has no memory left for a replay")
    if status:
        raise NativeCoreError(f"The native core refused a replay call (status {status}); please report this.")
