"""The one place that speaks to the native core, by ctypes.

Owns: loading the library, the C layouts and prototypes of gpumem/native/include/gpumem.h (a test compares
both), typed functions for its gm_* calls; those on pickles are in pickle.py, replay's in policy.py and what_if.py.
Must not know: what a recording is for. Nothing is loaded until the first call, and no numpy here: the recorder imports
this at the program's start.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from gpumem.abi.library import encode_text, open_interface
from gpumem.abi.library import library_path as library_path
from gpumem.errors import JournalTaken, JournalUnmappable, OutputUnwritable
from gpumem.vocabulary import EventFlag, EventKind, ScopeId, StackId

ABI_HASH = "6b39c96cbe6c8a22cd2d980409202da7720080de0dce9c1b06ddb89a91384061"
"""SHA-256 of the gpumem.h that this module was written for."""

NOT_AVAILABLE = 2**64 - 1
"""A reading's figure that could not be had."""
WALK_DEPTH_MAX = 1024


class Status(IntEnum):
    """gm_status: how a call into the core went."""

    OK = 0
    NOT_RECORDING = 1
    DISK_FULL = 2
    CANNOT_CREATE = 3
    CANNOT_MAP = 4
    BAD_ARGUMENT = 5
    UNSUPPORTED = 6
    NO_MEMORY = 7


class CRecord(ctypes.Structure):
    """gm_record: an event as it lies in the journal."""

    _fields_ = (
        ("time_ns", c_uint64),
        ("address", c_uint64),
        ("requested_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("split_bytes", c_uint64),
        ("stack", c_uint32),
        ("scope", c_uint32),
        ("thread", c_uint16),
        ("stream", c_uint16),
        ("pool", c_uint16),
        ("device", c_uint8),
        ("kind", c_uint8),
        ("flags", c_uint16),
        ("reserved", c_uint16),
        ("commit", c_uint32),
    )


class CEvent(ctypes.Structure):
    """gm_event: an event as an allocator hands it over."""

    _fields_ = (
        ("address", c_uint64),
        ("requested_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("split_bytes", c_uint64),
        ("stream", c_uint64),
        ("pool_first", c_uint64),
        ("pool_second", c_uint64),
        ("flags", c_uint16),
        ("device", c_uint8),
        ("kind", c_uint8),
        ("reserved", c_uint32),
        ("ticks", c_uint64),
    )


class CReading(ctypes.Structure):
    """gm_reading: one NVML reading of one device."""

    _fields_ = (
        ("time_ns", c_uint64),
        ("event", c_uint64),
        ("total_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("process_bytes", c_uint64),
        ("other_processes_bytes", c_uint64),
        ("device", c_uint32),
        ("unavailable", c_uint32),
    )


class CRecorderOptions(ctypes.Structure):
    """gm_recorder_options: what a recording starts with."""

    _fields_ = (
        ("journal_path", c_char_p),
        ("fork_path_pattern", c_char_p),
        ("run_id", c_char_p),
        ("stacks", c_uint32),
        ("reserved", c_uint32),
    )


class CRecorderCounts(ctypes.Structure):
    """gm_recorder_counts: how far the recording is."""

    _fields_ = (
        ("records", c_uint64),
        ("segment_events", c_uint64),
        ("journal_bytes", c_uint64),
        ("stacks", c_uint64),
        ("records_refused", c_uint64),
        ("status", c_int32),
        ("errno_value", c_int32),
    )


PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gm_abi_hash": (c_char_p, ()),
    "gm_clock_ns": (c_uint64, ()),
    "gm_recorder_start": (c_int32, (POINTER(CRecorderOptions), POINTER(c_int32))),
    "gm_recorder_stop": (c_int32, (c_char_p,)),
    "gm_recorder_is_active": (c_int32, ()),
    "gm_recorder_set_enabled": (None, (c_int32,)),
    "gm_recorder_get_counts": (c_int32, (POINTER(CRecorderCounts),)),
    "gm_recorder_get_path": (c_int32, (c_char_p, c_size_t)),
    "gm_record_event": (c_int32, (POINTER(CEvent),)),
    "gm_record_mark": (c_int32, (c_uint8, c_char_p, c_uint64, POINTER(c_uint64))),
    "gm_record_reading": (c_int32, (POINTER(CReading),)),
    "gm_record_fact": (c_int32, (c_char_p, c_char_p, c_size_t)),
    "gm_scope_push": (c_int32, (c_char_p, POINTER(c_uint32))),
    "gm_scope_pop": (c_int32, ()),
    "gm_wait_segment_event": (c_uint64, (c_uint64, c_uint32)),
    "gm_wake_segment_waiters": (None, ()),
    "gm_walker_start": (c_int32, (c_char_p, c_size_t)),
    "gm_walker_intern_current": (c_uint32, ()),
    "gm_walker_walk": (c_uint32, (POINTER(c_uint64), POINTER(c_uint32), c_uint32)),
    "gm_walker_stop": (None, ()),
    "gm_journal_create": (c_int32, (c_char_p, c_char_p, POINTER(c_int32), POINTER(c_void_p))),
    "gm_journal_append": (c_int32, (c_void_p, POINTER(CRecord), POINTER(c_uint64))),
    "gm_journal_append_entry": (c_int32, (c_void_p, c_uint16, c_uint32, c_char_p, c_uint32)),
    "gm_journal_close": (c_int32, (c_void_p, c_char_p)),
}
"""Result and argument types of the functions of gpumem.h (those on pickles: pickle.py)."""


@dataclass(frozen=True, slots=True)
class RecorderCounts:
    """How far the recording of this process is."""

    records: int
    segment_events: int
    journal_bytes: int
    stacks: int
    records_refused: int
    status: Status
    errno_value: int


def function_address(name: str) -> int:
    """Address of the core's function `name`, for native code that is to call it."""
    return ctypes.cast(getattr(_core(), name), c_void_p).value or 0


def loaded_path() -> str:
    """The native library's path, as this process has loaded it."""
    return _core()._name


def clock_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: the clock of every record."""
    return int(_core().gm_clock_ns())


# ---- recorder ----


def start_recording(
    journal_path: Path, *, run_id: bytes, stacks: bool, fork_path_pattern: Path | str | None = None
) -> None:
    """Creates the journal and records into it from now on.

    A forked child records into `fork_path_pattern` with "%d" replaced by its pid, or not at all without one. Raises
    JournalUnmappable where the file system cannot hold a journal, JournalTaken where it is there already, and
        OutputUnwritable where it cannot be created.
    """
    assert len(run_id) == 16
    pattern = None if fork_path_pattern is None else os.fsencode(fork_path_pattern)
    options = CRecorderOptions(os.fsencode(journal_path), pattern, run_id, int(stacks), 0)
    error_number = c_int32()
    status = Status(_core().gm_recorder_start(byref(options), byref(error_number)))
    assert status is not Status.BAD_ARGUMENT, "a recording is running already"
    if status is not Status.OK:
        raise _journal_error(journal_path, status, error_number.value)


def stop_recording(ended_by: str) -> None:
    """Ends the recording with `ended_by` ("exit", ...) in the journal; nothing when there is none."""
    _core().gm_recorder_stop(ended_by.encode())


def is_recording() -> bool:
    """Whether a journal is open in this process."""
    return bool(_core().gm_recorder_is_active())


def set_events_enabled(enabled: bool) -> None:
    """Lets events of allocators through, or drops them; marks, readings and facts are not concerned."""
    _core().gm_recorder_set_enabled(int(enabled))


def recorder_counts() -> RecorderCounts | None:
    """How far the recording is or was; None before there was one in this process."""
    counts = CRecorderCounts()
    if _core().gm_recorder_get_counts(byref(counts)) != Status.OK:
        return None
    return RecorderCounts(
        records=counts.records,
        segment_events=counts.segment_events,
        journal_bytes=counts.journal_bytes,
        stacks=counts.stacks,
        records_refused=counts.records_refused,
        status=Status(counts.status),
        errno_value=counts.errno_value,
    )


def count_records() -> int:
    """Records in the journal so far; 0 without one."""
    counts = recorder_counts()
    return counts.records if counts else 0


def recorder_path() -> Path | None:
    """The journal this process writes or wrote last; None before there was one."""
    buffer = ctypes.create_string_buffer(4097)
    if _core().gm_recorder_get_path(buffer, len(buffer)) != Status.OK:
        return None
    return Path(os.fsdecode(buffer.value))


def record_event(
    kind: EventKind,
    *,
    device: int,
    address: int = 0,
    requested_bytes: int = 0,
    block_bytes: int = 0,
    split_bytes: int = 0,
    stream: int = 0,
    pool: tuple[int, int] = (0, 0),
    flags: EventFlag = EventFlag(0),  # noqa: B008 (an immutable value)
) -> Status:
    """Records an allocator's event; `stream` is the raw handle. Hold the allocator's own lock of the device."""
    event = CEvent(address, requested_bytes, block_bytes, split_bytes, stream, *pool, flags, device, kind, 0, 0)
    return Status(_core().gm_record_event(byref(event)))


def record_mark(kind: EventKind, name: str | None, step: int) -> int | None:
    """Records a mark (`name`) or the end of step number `step`; its event number, None when nothing is recorded."""
    position = c_uint64()
    encoded = None if name is None else encode_text(name)
    status = _core().gm_record_mark(kind, encoded, step, byref(position))
    return int(position.value) if status == Status.OK else None


def record_reading(
    *,
    device: int,
    time_ns: int,
    event: int,
    total_bytes: int | None,
    used_bytes: int | None,
    free_bytes: int | None,
    reserved_bytes: int | None,
    process_bytes: int | None,
    other_processes_bytes: int | None,
) -> None:
    """Records an NVML reading that follows event `event` - 1; None is "not available"."""
    figures = (total_bytes, used_bytes, free_bytes, reserved_bytes, process_bytes, other_processes_bytes)
    unavailable = sum(1 << bit for bit, figure in enumerate(figures) if figure is None)
    known = (NOT_AVAILABLE if figure is None else figure for figure in figures)
    reading = CReading(time_ns, event, *known, device, unavailable)
    _core().gm_record_reading(byref(reading))


def record_fact(key: str, json_text: str) -> None:
    """Records a fact for meta.json: a JSON value by key; a later one of the same key replaces it."""
    encoded = json_text.encode("utf-8", "surrogatepass")
    _core().gm_record_fact(encode_text(key), encoded, len(encoded))


def push_scope(name: str) -> ScopeId:
    """Enters scope `name` inside the calling thread's scope; its id, 0 when nothing is recorded."""
    scope = c_uint32()
    _core_with_gil().gm_scope_push(encode_text(name), byref(scope))
    return ScopeId(scope.value)


def pop_scope() -> None:
    """Leaves the calling thread's innermost scope."""
    _core_with_gil().gm_scope_pop()


def wait_segment_event(seen: int, timeout_ms: int) -> int:
    """The number of segment events once it differs from `seen`, the wait is ended or the time is over."""
    return int(_core().gm_wait_segment_event(seen, timeout_ms))


def wake_segment_waiters() -> None:
    """Ends every wait for a segment event that is under way, as a recording's end does."""
    _core().gm_wake_segment_waiters()


# ---- stack walker ----


def start_walker() -> str | None:
    """Starts walking Python stacks; the reason when this interpreter cannot be walked, else None."""
    reason = ctypes.create_string_buffer(512)
    status = _core_with_gil().gm_walker_start(reason, len(reason))
    return None if status == Status.OK else reason.value.decode(errors="replace")


def intern_current_stack() -> StackId:
    """Id of the calling thread's stack in this recording; 0 without a recording or walker."""
    return StackId(_core().gm_walker_intern_current())


def walk_current_stack() -> list[tuple[int, int]]:
    """(code object's address, instruction byte offset) of the calling thread's frames, innermost first."""
    codes = (c_uint64 * WALK_DEPTH_MAX)()
    offsets = (c_uint32 * WALK_DEPTH_MAX)()
    depth = min(_core().gm_walker_walk(codes, offsets, WALK_DEPTH_MAX), WALK_DEPTH_MAX)
    return list(zip(codes[:depth], offsets[:depth], strict=True))


def stop_walker() -> None:
    """Switches stack walking off for good."""
    _core().gm_walker_stop()


# ---- loading ----


def _journal_error(path: Path, status: Status, error_number: int) -> OutputUnwritable:
    reason = os.strerror(error_number) if error_number else "not supported"
    if status is Status.NO_MEMORY:
        reason = os.strerror(errno.ENOMEM)
    if status is Status.CANNOT_MAP:
        return JournalUnmappable(
            f"{path}: this file system cannot map or reserve files ({reason}); choose another folder with -o."
        )
    if status is Status.DISK_FULL:
        return OutputUnwritable(
            f"{path}: no room for a journal, which takes 24 MiB at least ({reason}); make room or choose another "
            "folder with -o."
        )
    kind = JournalTaken if error_number == errno.EEXIST else OutputUnwritable
    return kind(f"{path} cannot be created ({reason}); choose another folder with -o.")


@functools.cache
def _core() -> ctypes.CDLL:
    return open_interface(ctypes.CDLL, str(library_path()), "gm_abi_hash", ABI_HASH, PROTOTYPES)


@functools.cache
def _core_with_gil() -> ctypes.PyDLL:
    """The core for calls so short that giving the interpreter lock up and waiting for it again would cost more."""
    return open_interface(ctypes.PyDLL, loaded_path(), "gm_abi_hash", ABI_HASH, PROTOTYPES)
