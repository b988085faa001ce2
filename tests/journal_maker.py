"""Journals written by hand for tests: events, stacks, marks, facts by name.

    maker = JournalMaker(path); maker.pairs(100); maker.mark("x"); maker.close()

Owns: turning such calls into records and entries as a recorder writes them. Must not know: how they are read or sealed.
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
from raw_journal import RawJournal

RUN_ID = bytes(range(16))


class JournalMaker:
    """Writes a journal with windows of `window_records`; ids of entries count from 1 as a recorder's do."""

    def __init__(
        self, path: Path, *, run_id: bytes = RUN_ID, window_records: int = 64, window_capacity: int = 64
    ) -> None:
        self.path = path
        self.raw = RawJournal(path, run_id, window_records=window_records, window_capacity=window_capacity)
        self.strings: dict[str, int] = {}
        self.counts: dict[EntryKind, int] = {}

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = self.entry(EntryKind.STRING, text.encode())
        return self.strings[text]

    def entry(self, kind: EntryKind, payload: bytes, entry_id: int | None = None) -> int:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        number = self.counts[kind] if entry_id is None else entry_id
        self.raw.append_entry(kind, number, payload)
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
        return self.raw.append(abi.CRecord(**values))

    def mark(self, name: str) -> int:
        return self.record(EventKind.MARK, device=NO_DEVICE, address=self.string(name))

    def step(self, number: int) -> int:
        return self.record(EventKind.STEP, device=NO_DEVICE, requested_bytes=number)

    def reading(self, **fields: int) -> None:
        names = ("time_ns", "event", "total", "used", "free", "reserved", "process", "other", "device", "unavailable")
        values = {"time_ns": abi.clock_ns(), "event": self.raw.record_count} | fields
        self.entry(EntryKind.READING, struct.pack("<8Q2I", *(values.get(name, 0) for name in names)))

    def pairs(self, event_count: int, *, stack: int = 0) -> None:
        """Appends `event_count` records numbered on from the last: alloc and free in turn."""
        records = pair_records(event_count, first=self.raw.record_count)
        records["stack"] = stack
        self.raw.append_rows(records)

    def close(self, ended_by: str = "exit") -> None:
        self.raw.close(ended_by)

    def kill(self) -> None:
        """Leaves the journal as a killed process does; its process is then one that is not there."""
        self.raw.header["process_start_ticks"] = 1
        self.raw.let_go()


def pair_records(event_count: int, *, first: int = 0) -> npt.NDArray[np.void]:
    """Records whose requested_bytes is their number from `first`: alloc and free in turn."""
    records = np.zeros(event_count, RECORD)
    numbers = np.arange(first, first + event_count)
    records["time_ns"] = abi.clock_ns() + np.arange(event_count) * 100
    records["kind"] = np.where(numbers % 2 == 0, EventKind.ALLOC, EventKind.FREE)
    records["requested_bytes"] = numbers
    records["address"] = 0x7F0000000000 + numbers // 2 % 1000 * 512
    return records
