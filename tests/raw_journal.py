"""A journal written with numpy by the rules of gpumem/native/journal_format.h, its windows as small as a test likes.

Owns: the recorder's side of the window states. Must not know: how journals are read or sealed. (The native writer has
its windows of 16 MiB; what is tested with it stands in tests/integration.)
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpumem import abi
from gpumem.trace.journal import process_start_ticks
from gpumem.trace.journal_layout import (
    BYTE_ORDER_MARK,
    COMMIT_MASK,
    ENTRY_HEADER,
    HEADER,
    HEADER_BYTES,
    JOURNAL_MAGIC,
    JOURNAL_VERSION,
    RECORD,
    WINDOW_ENTRY,
    JournalState,
    WindowKind,
    WindowState,
)


class RawJournal:
    """Writes a journal whose record windows hold `window_records` records each (a multiple of 64)."""

    def __init__(self, path: Path, run_id: bytes, *, window_records: int = 64, window_capacity: int = 64) -> None:
        assert window_records % 64 == 0
        self.path = path
        self.window_records = window_records
        directory_end = HEADER_BYTES + window_capacity * WINDOW_ENTRY.itemsize
        self.end = -(-directory_end // 4096) * 4096
        assert self.end == directory_end, "choose a window_capacity that is a multiple of 64"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.ftruncate(self.file, self.end)
        head = mmap.mmap(self.file, self.end)
        self.header = np.frombuffer(head, HEADER, 1)
        self.windows = np.frombuffer(head, WINDOW_ENTRY, window_capacity, HEADER_BYTES)
        self.record_count = 0
        self.open_window: tuple[int, npt.NDArray[np.void]] | None = None
        self.entry_window: int | None = None
        fields = {
            "version": JOURNAL_VERSION,
            "byte_order": BYTE_ORDER_MARK,
            "run_id": np.void(run_id),
            "pid": os.getpid(),
            "window_capacity": window_capacity,
            "windows_offset": directory_end,
            "clock_monotonic_ns": abi.clock_ns(),
            "clock_realtime_ns": 1_700_000_000_000_000_000,
            "process_start_ticks": process_start_ticks(os.getpid()) or 0,
            "state": JournalState.RECORDING,
        }
        for name, value in fields.items():
            self.header[name] = value
        self.header["magic"] = JOURNAL_MAGIC

    def append_rows(self, records: npt.NDArray[np.void]) -> None:
        """Appends RECORD rows; their commit words are set here."""
        done = 0
        while done < len(records):
            number, slots = self.open_window or self._open_record_window()
            taken = int(self.windows["taken"][number])
            some = records[done : done + self.window_records - taken].copy()
            positions = np.arange(self.record_count, self.record_count + len(some))
            some["commit"] = 0
            self.windows["taken"][number] = taken + len(some)
            slots[taken : taken + len(some)] = some
            slots["commit"][taken : taken + len(some)] = (positions & COMMIT_MASK) + 1
            self.windows["committed"][number] = taken + len(some)
            if taken + len(some) == self.window_records:
                self.windows["state"][number] = WindowState.FULL
                self.open_window = None
            self.record_count += len(some)
            done += len(some)

    def append(self, record: abi.CRecord) -> int:
        """Appends one record; its position."""
        self.append_rows(np.frombuffer(bytes(record), RECORD))
        return self.record_count - 1

    def leave_uncommitted(self, slot_count: int) -> None:
        """Takes slots of the open window without filling them, as threads do that are killed in between."""
        number, _ = self.open_window or self._open_record_window()
        self.windows["taken"][number] += slot_count
        self.record_count += slot_count

    def append_entry(self, kind: int, entry_id: int, payload: bytes) -> None:
        header = np.zeros(1, ENTRY_HEADER)
        header["bytes"], header["kind"], header["id"], header["check"] = (
            len(payload),
            kind,
            entry_id,
            zlib.crc32(payload),
        )
        content = header.tobytes() + payload + bytes(-len(payload) % 8)
        number = self.entry_window
        if number is None or int(self.windows["taken"][number]) + len(content) > int(self.windows["bytes"][number]):
            number = self._new_window(WindowKind.ENTRIES, max(4096, -(-len(content) // 4096) * 4096))
            self.entry_window = number
        used = int(self.windows["taken"][number])
        os.pwrite(self.file, content, int(self.windows["offset"][number]) + used)
        self.windows["taken"][number] = used + len(content)

    def close(self, ended_by: str = "exit") -> None:
        self.header["ended_by"] = ended_by.encode()
        self.header["state"] = JournalState.CLOSED
        self.let_go()

    def let_go(self) -> None:
        """Closes the file as a killed process does: nothing is written any more."""
        os.close(self.file)

    def _open_record_window(self) -> tuple[int, npt.NDArray[np.void]]:
        byte_count = self.window_records * RECORD.itemsize
        number = self._new_window(WindowKind.RECORDS, byte_count)
        mapping = mmap.mmap(self.file, byte_count, offset=int(self.windows["offset"][number]))
        self.open_window = number, np.frombuffer(mapping, RECORD)
        return self.open_window

    def _new_window(self, kind: WindowKind, byte_count: int) -> int:
        number = int(self.header["window_count"][0])
        os.posix_fallocate(self.file, self.end, byte_count)
        entry = self.windows[number : number + 1]
        entry["kind"], entry["offset"], entry["bytes"] = kind, self.end, byte_count
        entry["first_record"] = self.record_count
        entry["state"] = WindowState.OPEN
        self.header["window_count"] = number + 1
        self.end += byte_count
        return number
