"""The one place that speaks to the allocator's policy in the native core (ctypes).

Owns: the layouts of gpumem/native/include/gpumem_policy.h and the calls. Must not know: traces, files, reports.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpumem.errors import NativeCoreError, UsageError

POOL_UNKNOWN = 65535
"""In a pool column: the source does not say which pool."""
NO_LIMIT = 2**64 - 1

_U8 = ctypes.POINTER(ctypes.c_uint8)
_U16 = ctypes.POINTER(ctypes.c_uint16)
_U64 = ctypes.POINTER(ctypes.c_uint64)
_TEXT_CAPACITY = 512

U8Column = npt.NDArray[np.uint8]
U16Column = npt.NDArray[np.uint16]
U64Column = npt.NDArray[np.uint64]


class ReplayAssumption(IntFlag):
    """What a replay had to assume because no event says it."""

    EMPTY_CACHE = 1
    POOLS = 2
    LOST_POOLS = 4
    GARBAGE = 8
    DRIVER_REFUSED = 16
    SETTINGS_CHANGED = 32
    SLACK = 64
    RELEASE = 128


class Behaviour(IntFlag):
    """Where a PyTorch version's allocator differs from 2.11."""

    SEARCH_AFTER_RETRY_WAIT = 1
    ROUTED_POOL_MAY_RELEASE = 2
    LARGE_SEGMENT_SETTING = 4


class _Device(ctypes.Structure):
    _fields_ = (
        ("settings", ctypes.c_char_p),
        ("limit_bytes", ctypes.c_uint64),
        ("capacity_bytes", ctypes.c_uint64),
        ("limit_known", ctypes.c_uint32),
        ("truncated", ctypes.c_uint32),
        ("behaviour", ctypes.c_uint32),
        ("check_each_event", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Events(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint64),
        ("kind", _U8),
        ("device", _U8),
        ("stream", _U16),
        ("pool", _U16),
        ("address", _U64),
        ("requested_bytes", _U64),
    )


class _HeapSegments(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint64),
        ("address", _U64),
        ("bytes", _U64),
        ("stream", _U64),
        ("pool_first", _U64),
        ("pool_second", _U64),
        ("is_small", _U8),
        ("is_expandable", _U8),
    )


class _HeapBlocks(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint64),
        ("address", _U64),
        ("bytes", _U64),
        ("requested_bytes", _U64),
        ("state", _U8),
    )


_RESULT_COUNTS = (
    "decisions",
    "events",
    "limit_bytes_min",
    "limit_bytes_max",
    "empty_cache_count",
    "allocated_bytes_end",
    "allocated_bytes_peak",
    "active_bytes_end",
    "active_bytes_peak",
    "requested_bytes_end",
    "requested_bytes_peak",
    "reserved_bytes_end",
    "reserved_bytes_peak",
    "cache_hits",
    "splits",
    "alloc_retries",
    "ooms",
    "device_allocs",
    "device_frees",
    "releasable_bytes_end",
    "gap_bytes_end",
    "small_free_bytes_max",
    "large_free_bytes_max",
    "difference_position",
    "expected_address",
    "expected_bytes",
    "expected_stream",
    "got_address",
    "got_bytes",
    "got_stream",
)


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in _RESULT_COUNTS),
        ("assumptions", ctypes.c_uint32),
        ("exact", ctypes.c_uint8),
        ("expected_kind", ctypes.c_uint8),
        ("got_kind", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8),
        ("reason", ctypes.c_char * 128),
    )


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How one device of the trace was set up; None where the source does not say."""

    device: int
    settings: str = ""
    limit_bytes: int | None = None
    """The memory limit; NO_LIMIT when there was none, None when it is not known."""
    capacity_bytes: int | None = None
    truncated: bool = False
    behaviour: Behaviour = Behaviour(0)
    check_each_event: bool = False


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Consecutive events, one array per column, of equal length."""

    kind: U8Column
    device: U8Column
    stream: U16Column
    pool: U16Column
    address: U64Column
    requested_bytes: U64Column


@dataclass(frozen=True, slots=True)
class HeapColumns:
    """A heap: segments ascending by address, and the blocks that tile them."""

    segment_address: U64Column
    segment_bytes: U64Column
    segment_stream: U64Column
    segment_pool_first: U64Column
    segment_pool_second: U64Column
    segment_is_small: U8Column
    segment_is_expandable: U8Column
    block_address: U64Column
    block_bytes: U64Column
    block_requested_bytes: U64Column
    block_state: U8Column


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What replay adds to events: bytes handed out, bytes split off, EventFlag bits; 0 where not known."""

    block_bytes: U64Column
    split_bytes: U64Column
    flags: U16Column


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Where a device's replay stands; the difference_ fields mean something only when it is not exact."""

    exact: bool
    assumptions: ReplayAssumption
    reason: str
    expected_kind: int
    got_kind: int
    counts: dict[str, int]

    def __getattr__(self, name: str) -> int:
        try:
            return self.counts[name]
        except KeyError:
            raise AttributeError(name) from None


def load_policy(path: Path) -> ctypes.CDLL:
    """The native library at `path` with the prototypes of gpumem_policy.h."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeCoreError(f"The native library {path} cannot be loaded: {error}; reinstall gpumem.") from error
    handle = ctypes.c_void_p
    u64, u32, text = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p
    segments, blocks, events = (ctypes.POINTER(kind) for kind in (_HeapSegments, _HeapBlocks, _Events))
    prototypes: dict[str, tuple[object, Sequence[object]]] = {
        "gm_policy_check_settings": (ctypes.c_int32, (text, text, ctypes.c_size_t)),
        "gm_replay_create": (ctypes.c_int32, (ctypes.POINTER(handle),)),
        "gm_replay_destroy": (None, (handle,)),
        "gm_replay_add_streams": (ctypes.c_int32, (handle, _U64, u64)),
        "gm_replay_add_pools": (ctypes.c_int32, (handle, _U64, _U64, u64)),
        "gm_replay_add_device": (ctypes.c_int32, (handle, ctypes.POINTER(_Device), text, ctypes.c_size_t)),
        "gm_replay_declare_pool": (ctypes.c_int32, (handle, u32, u64, u64, u32, u32)),
        "gm_replay_adopt": (ctypes.c_int32, (handle, u32, segments, blocks)),
        "gm_replay_adopt_from_end": (ctypes.c_int32, (handle, u32, segments, blocks, events, text, ctypes.c_size_t)),
        "gm_replay_feed": (ctypes.c_int32, (handle, events)),
        "gm_replay_finish": (ctypes.c_int32, (handle,)),
        "gm_replay_ready": (u64, (handle,)),
        "gm_replay_take": (ctypes.c_int32, (handle, u64, _U64, _U64, _U16)),
        "gm_replay_get_result": (ctypes.c_int32, (handle, u32, ctypes.POINTER(_Result))),
        "gm_replay_get_empty_caches": (ctypes.c_int32, (handle, u32, _U64, u64)),
        "gm_replay_count_heap": (ctypes.c_int32, (handle, u32, _U64, _U64)),
        "gm_replay_get_heap": (ctypes.c_int32, (handle, u32, segments, blocks)),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def check_settings(library: ctypes.CDLL, settings: str) -> None:
    """Raises UsageError, saying what is wrong where, unless PyTorch's allocator would take these settings."""
    error = ctypes.create_string_buffer(_TEXT_CAPACITY)
    if library.gm_policy_check_settings(settings.encode(), error, _TEXT_CAPACITY):
        raise UsageError(error.value.decode())


def _pointer(column: npt.NDArray[np.generic], kind: type[ctypes._Pointer[ctypes._SimpleCData[int]]]) -> object:
    assert column.flags["C_CONTIGUOUS"]
    return column.ctypes.data_as(kind)


def _events(columns: EventColumns) -> _Events:
    return _Events(
        len(columns.kind),
        _pointer(columns.kind, _U8),
        _pointer(columns.device, _U8),
        _pointer(columns.stream, _U16),
        _pointer(columns.pool, _U16),
        _pointer(columns.address, _U64),
        _pointer(columns.requested_bytes, _U64),
    )


def _heap(columns: HeapColumns) -> tuple[_HeapSegments, _HeapBlocks]:
    segments = _HeapSegments(
        len(columns.segment_address),
        *(
            _pointer(column, _U64)
            for column in (
                columns.segment_address,
                columns.segment_bytes,
                columns.segment_stream,
                columns.segment_pool_first,
                columns.segment_pool_second,
            )
        ),
        _pointer(columns.segment_is_small, _U8),
        _pointer(columns.segment_is_expandable, _U8),
    )
    blocks = _HeapBlocks(
        len(columns.block_address),
        *(
            _pointer(column, _U64)
            for column in (columns.block_address, columns.block_bytes, columns.block_requested_bytes)
        ),
        _pointer(columns.block_state, _U8),
    )
    return segments, blocks


class Replay:
    """A trace followed through the allocator's policy; a context manager that owns the native handle."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._require(library.gm_replay_create(ctypes.byref(self._handle)))

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the native handle."""
        if self._handle:
            self._library.gm_replay_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def add_streams(self, handles: U64Column) -> None:
        """Appends rows to the streams that the stream column names: raw handles by row."""
        self._require(self._library.gm_replay_add_streams(self._handle, _pointer(handles, _U64), len(handles)))

    def add_pools(self, first: U64Column, second: U64Column) -> None:
        """Appends rows to the pools that the pool column names; row 0 is (0, 0), the default pools."""
        status = self._library.gm_replay_add_pools(
            self._handle, _pointer(first, _U64), _pointer(second, _U64), len(first)
        )
        self._require(status)

    def add_device(self, options: DeviceOptions) -> None:
        """Adds a device; raises UsageError when its settings are none."""
        device = _Device(
            options.settings.encode(),
            options.limit_bytes or 0,
            options.capacity_bytes or 0,
            options.limit_bytes is not None,
            options.truncated,
            int(options.behaviour),
            options.check_each_event,
            options.device,
            0,
        )
        error = ctypes.create_string_buffer(_TEXT_CAPACITY)
        status = self._library.gm_replay_add_device(self._handle, ctypes.byref(device), error, _TEXT_CAPACITY)
        if error.value:
            raise UsageError(error.value.decode())
        self._require(status)

    def adopt(self, device: int, heap: HeapColumns) -> None:
        """Takes over the heap as it was before the first event."""
        segments, blocks = _heap(heap)
        self._require(
            self._library.gm_replay_adopt(self._handle, device, ctypes.byref(segments), ctypes.byref(blocks))
        )

    def adopt_from_end(self, device: int, heap: HeapColumns, events: EventColumns) -> str:
        """Works out pools, and in a truncated history the heap at its start; "" or why that is not possible."""
        segments, blocks = _heap(heap)
        columns = _events(events)
        error = ctypes.create_string_buffer(_TEXT_CAPACITY)
        status = self._library.gm_replay_adopt_from_end(
            self._handle,
            device,
            ctypes.byref(segments),
            ctypes.byref(blocks),
            ctypes.byref(columns),
            error,
            _TEXT_CAPACITY,
        )
        if not error.value:
            self._require(status)
        return error.value.decode()

    def feed(self, events: EventColumns) -> None:
        """Follows the next events of the trace."""
        columns = _events(events)
        self._require(self._library.gm_replay_feed(self._handle, ctypes.byref(columns)))

    def finish(self) -> None:
        """Follows what was waiting for more events: the trace has none."""
        self._require(self._library.gm_replay_finish(self._handle))

    def take(self) -> EventDetails:
        """Details of all settled events that were not taken before, in order."""
        count = self._library.gm_replay_ready(self._handle)
        details = EventDetails(np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.uint16))
        status = self._library.gm_replay_take(
            self._handle,
            count,
            _pointer(details.block_bytes, _U64),
            _pointer(details.split_bytes, _U64),
            _pointer(details.flags, _U16),
        )
        self._require(status)
        return details

    def result(self, device: int) -> ReplayResult:
        """Where the device's replay stands now."""
        raw = _Result()
        self._require(self._library.gm_replay_get_result(self._handle, device, ctypes.byref(raw)))
        return ReplayResult(
            exact=bool(raw.exact),
            assumptions=ReplayAssumption(raw.assumptions),
            reason=raw.reason.decode(),
            expected_kind=raw.expected_kind,
            got_kind=raw.got_kind,
            counts={name: getattr(raw, name) for name in _RESULT_COUNTS},
        )

    def empty_caches(self, device: int) -> U64Column:
        """Positions before which an empty_cache call was inferred."""
        positions = np.empty(self.result(device).counts["empty_cache_count"], np.uint64)
        status = self._library.gm_replay_get_empty_caches(
            self._handle, device, _pointer(positions, _U64), len(positions)
        )
        self._require(status)
        return positions

    def heap(self, device: int) -> HeapColumns:
        """The replayed heap as it stands now."""
        segment_count, block_count = ctypes.c_uint64(), ctypes.c_uint64()
        self._require(
            self._library.gm_replay_count_heap(
                self._handle, device, ctypes.byref(segment_count), ctypes.byref(block_count)
            )
        )
        rows, cells = segment_count.value, block_count.value
        heap = HeapColumns(
            *(np.empty(rows, np.uint64) for _ in range(5)),
            *(np.empty(rows, np.uint8) for _ in range(2)),
            *(np.empty(cells, np.uint64) for _ in range(3)),
            np.empty(cells, np.uint8),
        )
        segments, blocks = _heap(heap)
        self._require(
            self._library.gm_replay_get_heap(self._handle, device, ctypes.byref(segments), ctypes.byref(blocks))
        )
        return heap

    @staticmethod
    def _require(status: int) -> None:
        assert status == 0, f"native replay refused a call with status {status}"
