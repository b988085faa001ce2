"""The journal's bytes as numpy types: the reading twin of gpumem/native/journal_format.h (a test compares both).

Owns: offsets, field types, state and kind values. Must not know: who reads or writes them, or when.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

JOURNAL_MAGIC = b"GPUMEMJ1"
JOURNAL_VERSION = 1
BYTE_ORDER_MARK = 0x01020304
HEADER_BYTES = 4096
WINDOW_CAPACITY = 65536
RECORD_WINDOW_BYTES = 16 << 20
ENTRY_WINDOW_BYTES = 4 << 20


class JournalState(IntEnum):
    """Whether the recorder still writes."""

    RECORDING = 1
    CLOSED = 2


class WindowState(IntEnum):
    """Who owns a window: the recorder up to FULL, the sealer from then on."""

    FREE = 0
    OPEN = 1
    FULL = 2
    SEALED = 3


class WindowKind(IntEnum):
    """What a window holds."""

    NONE = 0
    RECORDS = 1
    ENTRIES = 2
    DRIVER_RECORDS = 3


class EntryKind(IntEnum):
    """What an entry gives its id a meaning for."""

    STRING = 1
    CODE = 2
    STACK = 3
    SCOPE = 4
    STREAM = 5
    POOL = 6
    THREAD = 7
    FACT = 8
    READING = 9


HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("byte_order", "<u4"),
        ("run_id", "V16"),
        ("pid", "<u4"),
        ("window_capacity", "<u4"),
        ("windows_offset", "<u8"),
        ("clock_monotonic_ns", "<u8"),
        ("clock_realtime_ns", "<u8"),
        ("process_start_ticks", "<u8"),
        ("state", "<u4"),
        ("window_count", "<u4"),
        ("ended_by", "S64"),
        ("part_published_bytes", "<u8"),
    ]
)

WINDOW_ENTRY = np.dtype(
    [
        ("state", "<u4"),
        ("kind", "<u4"),
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("first_record", "<u8"),
        ("taken", "<u8"),
        ("committed", "<u8"),
        ("part_offset", "<u8"),
        ("part_bytes", "<u8"),
    ]
)

RECORD = np.dtype(
    [
        ("time_ns", "<u8"),
        ("address", "<u8"),
        ("requested_bytes", "<u8"),
        ("block_bytes", "<u8"),
        ("split_bytes", "<u8"),
        ("stack", "<u4"),
        ("scope", "<u4"),
        ("thread", "<u2"),
        ("stream", "<u2"),
        ("pool", "<u2"),
        ("device", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("reserved", "<u2"),
        ("commit", "<u4"),
    ]
)

ENTRY_HEADER = np.dtype([("bytes", "<u4"), ("kind", "<u2"), ("reserved", "<u2"), ("id", "<u4"), ("check", "<u4")])

READING = np.dtype(
    [
        ("time_ns", "<u8"),
        ("event", "<u8"),
        ("total_bytes", "<u8"),
        ("used_bytes", "<u8"),
        ("free_bytes", "<u8"),
        ("reserved_bytes", "<u8"),
        ("process_bytes", "<u8"),
        ("other_processes_bytes", "<u8"),
        ("device", "<u4"),
        ("unavailable", "<u4"),
    ]
)
READING_FIGURES = READING.names[2:8] if READING.names else ()

COMMIT_MASK = 0x7FFFFFFF
