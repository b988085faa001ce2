"""Journals written by hand for tests, through the native core, window by window.

Owns: turning rows of events into a journal as a recorder leaves it. Must not know: how it is read or sealed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpumem import abi
from gpumem.trace.journal_layout import RECORD, EntryKind
from gpumem.vocabulary import NO_DEVICE, EventKind

RUN_ID = bytes(range(16))
WINDOW_RECORDS = (16 << 20) // 64


class JournalMaker:
    """Writes a journal; ids of entries count from 1 as a recorder's do."""

    def __init__(self, path: Path, *, run_id: bytes = RUN_ID) -> None:
        self.path = path
        self.writer = abi.JournalWriter(path, run_id)
        self.strings: dict[str, int] = {}
        self.counts: dict[EntryKind, int] = {}
        self.position = 0

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = self.entry(EntryKind.STRING, text.encode())
        return self.strings[text]

    def entry(self, kind: EntryKind, payload: bytes, entry_id: int | None = None) -> int:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        number = self.counts[kind] if entry_id is None else entry_id
        self.writer.append_entry(kind, number, payload)
        return number

    def fact(self, key: str, value: object) -> None:
        text = json.dumps(value).encode()
        self.entry(EntryKind.FACT, struct.pack("<I", len(key)) + key.encode() + text)

    def code(self, file: str, name: str, first_line: int, line_table: bytes = b"") -> int:
        head = struct.pack("<IIII", self.string(file), self.string(name), first_line, len(line_table))
        return self.entry(EntryKind.CODE, head + line_table)

    def stack(self, frames: Sequence[tuple[int, int]]) -> int:
        return self.entry(EntryKind.STACK, struct.pack(f"<I{2 * len(frames)}I", len(frames), *sum(frames, ())))

    def record(self, kind: EventKind, **fields: int) -> int:
        values = {"time_ns": abi.clock_ns(), "kind": kind, "device": 0} | fields
        self.position = self.writer.append(abi.CRecord(**values)) + 1
        return self.position - 1

    def mark(self, name: str) -> int:
        return self.record(EventKind.MARK, device=NO_DEVICE, address=self.string(name))

    def step(self, number: int) -> int:
        return self.record(EventKind.STEP, device=NO_DEVICE, requested_bytes=number)

    def reading(self, **fields: int) -> None:
        names = ("time_ns", "event", "total", "used", "free", "reserved", "process", "other", "device", "unavailable")
        values = {"time_ns": abi.clock_ns(), "event": self.position} | fields
        self.entry(EntryKind.READING, struct.pack("<8Q2I", *(values.get(name, 0) for name in names)))

    def many(self, records: npt.NDArray[np.void]) -> None:
        """Appends records given as RECORD rows, without their commit words."""
        assert records.dtype == RECORD
        append, buffer = self.writer.append, abi.CRecord.from_buffer_copy
        for row in records:
            append(buffer(row.tobytes()))
        self.position += len(records)

    def close(self, ended_by: str = "exit") -> None:
        self.writer.close(ended_by)


def pair_records(event_count: int, *, first: int = 0) -> npt.NDArray[np.void]:
    """Records whose requested_bytes is their number from `first`: alloc and free in turn."""
    records = np.zeros(event_count, RECORD)
    numbers = np.arange(first, first + event_count)
    records["time_ns"] = abi.clock_ns() + np.arange(event_count) * 100
    records["kind"] = np.where(numbers % 2 == 0, EventKind.ALLOC, EventKind.FREE)
    records["requested_bytes"] = numbers
    records["address"] = 0x7F0000000000 + numbers // 2 % 1000 * 512
    return records
