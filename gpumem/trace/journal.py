"""A journal's reading side: header, window directory, records and entries, whether its process lives or not.

Owns: the protocol by which a reader and the sealer share a window without a lock, and what of a window counts as
recorded. Must not know: how windows become parts (seal/), what entries mean (trace/entries.py).

The protocol: load a window's state; SEALED means its records are in the part file. Else copy the window and load
the state again: SEALED now means that the copy may have been punched out meanwhile, so it is thrown away.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpumem.errors import TraceForeign, TraceTruncated, TraceVersionUnsupported
from gpumem.trace.journal_layout import (
    BYTE_ORDER_MARK,
    COMMIT_MASK,
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
from gpumem.trace.model import Column
from gpumem.trace.zip_parts import ReadOnlyFile

JOURNAL_SUFFIX = ".journal"
PART_SUFFIX = ".part"
_POSITION_LIMIT = 1 << 48
_RECORDS_AT_ONCE = 4096
_RECORD_FIELDS = [name for name in RECORD.names or () if name != "reserved"]


@dataclass(frozen=True, slots=True)
class Window:
    """A directory entry as it was when it was looked at."""

    number: int
    state: WindowState
    kind: WindowKind
    offset: int
    byte_count: int
    first_record: int
    taken: int
    committed: int
    part_offset: int
    part_bytes: int

    @property
    def record_capacity(self) -> int:
        return self.byte_count // RECORD.itemsize


@dataclass(frozen=True, slots=True)
class WindowRecords:
    """The committed records of a window, in order: their fields as columns, and their slots.

    `record_count` slots were handed out; those without a record here were never committed.
    """

    columns: dict[str, Column]
    slots: npt.NDArray[np.int64]
    record_count: int

    @property
    def lost_count(self) -> int:
        return self.record_count - len(self.slots)


class Journal:
    """An open journal; its header and directory are mapped, so that they are always as they are now."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        """Opens `path`; raises TraceNotFound, TraceForeign, TraceTruncated or TraceVersionUnsupported.

        `writable` is for the sealer, which stores where it put a window's part.
        """
        self.path = path
        self.file = ReadOnlyFile(path)
        head = self.file.read_at(0, min(HEADER_BYTES, self.file.byte_count))
        self._check_head(head)
        self._mapping = self._map(int(self._field(head, "windows_offset")), writable)
        self.header: npt.NDArray[np.void] = np.frombuffer(self._mapping, HEADER, 1)
        self.entries: npt.NDArray[np.void] = np.frombuffer(
            self._mapping, WINDOW_ENTRY, self._capacity(head), HEADER_BYTES
        )

    @property
    def run_id(self) -> str:
        """Hexadecimal name of the run that this process belongs to."""
        return bytes(self.header["run_id"][0]).hex()

    @property
    def pid(self) -> int:
        return int(self.header["pid"][0])

    @property
    def is_closed(self) -> bool:
        """True once the recorder has ended by itself."""
        return int(self.header["state"][0]) == JournalState.CLOSED

    @property
    def ended_by(self) -> str | None:
        """Why recording ended, as the recorder wrote it; None while it has not."""
        text = bytes(self.header["ended_by"][0]).decode(errors="replace")
        return text or "exit" if self.is_closed else None

    @property
    def started_monotonic_ns(self) -> int:
        """The trace's time zero on CLOCK_MONOTONIC."""
        return int(self.header["clock_monotonic_ns"][0])

    @property
    def started_unix_ns(self) -> int:
        return int(self.header["clock_realtime_ns"][0])

    def is_process_alive(self) -> bool:
        """Whether the recording process still runs: its pid exists and was started when the header says."""
        return process_start_ticks(self.pid) == int(self.header["process_start_ticks"][0])

    def window(self, number: int) -> Window:
        """Directory entry `number` as it is now; raises TraceTruncated when it cannot be."""
        entry = self.entries[number]
        state_number = int(entry["state"])  # before the rest: a SEALED window's part is then known
        offset = HEADER_BYTES + number * WINDOW_ENTRY.itemsize
        try:
            state, kind = WindowState(state_number), WindowKind(int(entry["kind"]))
        except ValueError as error:
            raise TraceTruncated(f"{self.path} is damaged: window {number}: {error}.", offset=offset) from error
        numbers = [int(entry[name]) for name in WINDOW_ENTRY.names[2:]]  # type: ignore[index]
        window = Window(number, state, kind, *numbers)
        if kind is not WindowKind.NONE and window.offset + window.byte_count > self.file.byte_count:
            message = f"{self.path} is cut off: window {number} should end at byte {window.offset + window.byte_count}."
            raise TraceTruncated(message, offset=self.file.byte_count)
        if window.first_record >= _POSITION_LIMIT:
            message = f"{self.path} is damaged: window {number} begins at event {window.first_record}."
            raise TraceTruncated(message, offset=offset)
        return window

    @property
    def window_count(self) -> int:
        """Directory entries in use now; raises TraceTruncated when it counts more than there are."""
        count = int(self.header["window_count"][0])
        if count > len(self.entries):
            raise TraceTruncated(f"{self.path} is damaged: it counts {count} windows.", offset=HEADER_BYTES)
        return count

    def windows(self, kind: WindowKind, first: int = 0) -> Iterator[Window]:
        """The windows of `kind` in use now, from directory entry `first`, in order."""
        for number in range(first, self.window_count):
            window = self.window(number)
            if window.kind is kind and window.state is not WindowState.FREE:
                yield window

    def read_records(self, window: Window) -> WindowRecords | None:
        """The committed records of `window`, copied; None when it is SEALED: then its part has them."""
        before = self.window(window.number)
        if before.state is WindowState.SEALED:
            return None
        record_count = min(before.taken, before.record_capacity)
        columns = self._read_columns(before.offset, record_count)
        if self.window(window.number).state is WindowState.SEALED:
            return None
        expected = (np.arange(before.first_record, before.first_record + record_count) & COMMIT_MASK) + 1
        slots = np.flatnonzero(columns.pop("commit") == expected)
        if len(slots) < record_count:
            columns = {name: column[slots] for name, column in columns.items()}
        return WindowRecords(columns, slots, record_count)

    def _read_columns(self, offset: int, record_count: int) -> dict[str, Column]:
        """The fields of `record_count` records: taken apart piece by piece, while the piece is in the cache."""
        columns: dict[str, Column] = {name: np.empty(record_count, RECORD[name]) for name in _RECORD_FIELDS}
        for first in range(0, record_count, _RECORDS_AT_ONCE):
            count = min(_RECORDS_AT_ONCE, record_count - first)
            content = self.file.read_at(offset + first * RECORD.itemsize, count * RECORD.itemsize)
            records = np.frombuffer(content, RECORD, count)
            for name, column in columns.items():
                column[first : first + count] = records[name]
        return columns

    def read_entries(self, window: Window, first: int) -> bytes:
        """The bytes of the complete entries of an entry window behind its first `first` bytes."""
        used = min(window.taken, window.byte_count)
        return self.file.read_at(window.offset + first, used - first) if used > first else b""

    def close(self) -> None:
        """Closes the file; what was read stays."""
        del self.header, self.entries
        self.file.close()

    def _check_head(self, head: bytes) -> None:
        if not head.startswith(JOURNAL_MAGIC):
            raise TraceForeign(f"{self.path} is no journal: it does not begin with {JOURNAL_MAGIC.decode()}.")
        if len(head) < HEADER_BYTES:
            raise TraceTruncated(f"{self.path} is cut off inside its header.", offset=len(head))
        if self._field(head, "byte_order") != BYTE_ORDER_MARK:
            raise TraceVersionUnsupported(f"{self.path} was written by a machine of another byte order.")
        version = self._field(head, "version")
        if version != JOURNAL_VERSION:
            raise TraceVersionUnsupported(
                f"{self.path} has journal version {version}; this gpumem reads version {JOURNAL_VERSION}. "
                "Open it with the gpumem that recorded it."
            )
        capacity, offset = self._capacity(head), self._field(head, "windows_offset")
        if offset != HEADER_BYTES + capacity * WINDOW_ENTRY.itemsize:
            raise TraceTruncated(f"{self.path} is damaged: its directory does not end where it should.", offset=36)
        if self._field(head, "state") not in list(JournalState):
            raise TraceTruncated(f"{self.path} is damaged: it is neither recording nor closed.", offset=80)

    @staticmethod
    def _field(head: bytes, name: str) -> int:
        return int(np.frombuffer(head, HEADER, 1)[name][0])

    def _capacity(self, head: bytes) -> int:
        return self._field(head, "window_capacity")

    def _map(self, byte_count: int, writable: bool) -> mmap.mmap:
        if byte_count > self.file.byte_count:
            message = f"{self.path} is cut off inside its directory."
            raise TraceTruncated(message, offset=self.file.byte_count)
        if not writable:
            return mmap.mmap(self.file.descriptor, byte_count, prot=mmap.PROT_READ)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, byte_count)
        finally:
            os.close(descriptor)


def target_of(journal_path: Path) -> Path:
    """The finished trace that a journal beside it becomes: its name without `.journal`."""
    if journal_path.suffix == JOURNAL_SUFFIX and journal_path.stem:
        return journal_path.with_suffix("")
    return journal_path.with_name(f"{journal_path.name}.gpumem")


def part_of(target: Path) -> Path:
    """The growing ZIP that becomes `target`."""
    return target.with_name(target.name + PART_SUFFIX)


def process_start_ticks(pid: int) -> int | None:
    """When process `pid` was started, in clock ticks since boot; None when there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    is_zombie = fields[0] in (b"Z", b"X")
    return None if is_zombie else int(fields[19])
