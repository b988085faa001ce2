"""The entries of a journal decoded: strings, code objects, stacks, scopes, streams, pools, threads, facts, readings.

Owns: the payloads of entries and taking in new ones as they come. Must not know: windows of records, parts, what a
fact means (trace/journal_facts.py).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpumem.errors import TraceTruncated
from gpumem.trace.journal import Journal
from gpumem.trace.journal_layout import ENTRY_HEADER, READING, EntryKind, WindowKind
from gpumem.trace.links import check_links
from gpumem.trace.model import TIME_NS_LIMIT, PoolRow, ScopeTable, StreamRow, ThreadRow
from gpumem.vocabulary import NO_DEVICE

_HEADER = struct.Struct("<IHHII")
_CODE = struct.Struct("<IIII")
_TWO32 = struct.Struct("<II")
_STREAM = struct.Struct("<IIQ")
_TWO64 = struct.Struct("<QQ")
_GAP_MAX = 1 << 16
Row = TypeVar("Row")
assert _HEADER.size == ENTRY_HEADER.itemsize


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A code object: string ids of file and qualified name, first line and the table that gives lines."""

    file: int
    name: int
    first_line: int
    line_table: bytes


class JournalEntries:
    """What the entries of one journal say so far; `update` takes in those written since."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._used: dict[int, int] = {}
        self.strings: dict[int, str] = {}
        self.codes: dict[int, CodeEntry] = {}
        self.stacks: dict[int, bytes] = {}
        self.scopes: dict[int, tuple[int, int]] = {}
        self.streams: dict[int, tuple[int, int]] = {}
        self.pools: dict[int, tuple[int, int]] = {}
        self.threads: dict[int, tuple[int, str]] = {}
        self.facts: dict[str, str] = {}
        self.fact_count = 0
        self._readings: list[bytes] = []
        self._takers: Mapping[EntryKind, Callable[[int, bytes], None]] = {
            EntryKind.STRING: self._take_string,
            EntryKind.CODE: self._take_code,
            EntryKind.STACK: self._take_stack,
            EntryKind.SCOPE: self._take_scope,
            EntryKind.STREAM: self._take_stream,
            EntryKind.POOL: self._take_pool,
            EntryKind.THREAD: self._take_thread,
            EntryKind.FACT: self._take_fact,
            EntryKind.READING: self._take_reading,
        }

    def update(self) -> None:
        """Takes in the entries written since the last call; raises TraceTruncated at a damaged one."""
        for window in self._journal.windows(WindowKind.ENTRIES):
            first = self._used.get(window.number, 0)
            content = self._journal.read_entries(window, first)
            if content:
                self._take_all(content, window.offset + first)
                self._used[window.number] = first + len(content)

    @property
    def readings(self) -> npt.NDArray[np.void]:
        """The NVML readings as gm_reading rows, in the order they were written."""
        return np.frombuffer(b"".join(self._readings), READING)

    def scope_table(self) -> ScopeTable:
        """The scopes by id; row 0 is no scope."""
        rows = self._by_id("scope", self.scopes, (0, 0))
        parents = np.array([parent for parent, _ in rows], np.uint32)
        check_links(parents, f"{self._journal.path}, scopes")
        return ScopeTable(parents, [self.strings.get(name, "") for _, name in rows])

    def stream_rows(self) -> list[StreamRow]:
        """The streams by id; row 0 is no stream."""
        rows = self._by_id("stream", self.streams, (0, 0))
        return [StreamRow(row, device, handle) for row, (device, handle) in enumerate(rows)]

    def pool_rows(self) -> list[PoolRow]:
        """The private pools by id; row 0 is the default pools."""
        rows = self._by_id("pool", self.pools, (0, 0))
        return [PoolRow(row, first, second) for row, (first, second) in enumerate(rows)]

    def thread_rows(self) -> list[ThreadRow]:
        """The threads by id; row 0 is no thread."""
        rows = self._by_id("thread", self.threads, (0, ""))
        return [ThreadRow(row, system_id, name) for row, (system_id, name) in enumerate(rows)]

    def stack_frames(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """All stacks one after another as (code id, instruction offset) rows, innermost first, and their depths."""
        payloads = self._by_id("stack", self.stacks, b"\0\0\0\0")[1:]
        depths = np.array([len(payload) // 8 for payload in payloads], np.int64)
        flat = np.frombuffer(b"".join(payload[4:] for payload in payloads), np.dtype("<u4"))
        return flat.reshape(-1, 2), depths

    def _by_id(self, what: str, entries: Mapping[int, Row], missing: Row) -> Sequence[Row]:
        last = max(entries, default=0)
        if last > 2 * len(entries) + _GAP_MAX:
            raise TraceTruncated(f"{self._journal.path} is damaged: a {what} has the impossible id {last}.")
        return [missing, *(entries.get(number, missing) for number in range(1, last + 1))]

    def _take_all(self, content: bytes, file_offset: int) -> None:
        offset = 0
        while offset < len(content):
            try:
                byte_count, kind, _, number, check = _HEADER.unpack_from(content, offset)
                payload = content[offset + _HEADER.size : offset + _HEADER.size + byte_count]
                if len(payload) < byte_count or zlib.crc32(payload) != check:
                    raise ValueError("its checksum does not fit")
                self._takers[EntryKind(kind)](number, payload)
            except (ValueError, struct.error, IndexError) as error:
                where = file_offset + offset
                message = f"{self._journal.path} is damaged: the entry at byte {where} cannot be read: {error}."
                raise TraceTruncated(message, offset=where) from error
            offset += (_HEADER.size + byte_count + 7) & ~7

    def _take_string(self, number: int, payload: bytes) -> None:
        self.strings[number] = payload.decode(errors="replace")

    def _take_code(self, number: int, payload: bytes) -> None:
        file, name, first_line, byte_count = _CODE.unpack_from(payload)
        self.codes[number] = CodeEntry(file, name, first_line, payload[_CODE.size : _CODE.size + byte_count])

    def _take_stack(self, number: int, payload: bytes) -> None:
        if len(payload) != 4 + 8 * int.from_bytes(payload[:4], "little"):
            raise ValueError("its depth does not fit its length")
        self.stacks[number] = payload

    def _take_scope(self, number: int, payload: bytes) -> None:
        self.scopes[number] = _TWO32.unpack(payload)

    def _take_stream(self, number: int, payload: bytes) -> None:
        device, _, handle = _STREAM.unpack(payload)
        if device > NO_DEVICE:
            raise ValueError(f"its device is {device}")
        self.streams[number] = (device, handle)

    def _take_pool(self, number: int, payload: bytes) -> None:
        self.pools[number] = _TWO64.unpack(payload)

    def _take_thread(self, number: int, payload: bytes) -> None:
        if len(payload) < 8:
            raise ValueError("a thread has no id")
        self.threads[number] = (int.from_bytes(payload[:8], "little"), payload[8:].decode(errors="replace"))

    def _take_fact(self, _: int, payload: bytes) -> None:
        key_bytes = int.from_bytes(payload[:4], "little")
        key = payload[4 : 4 + key_bytes].decode()
        self.fact_count += 1
        self.facts[key] = payload[4 + key_bytes :].decode()

    def _take_reading(self, _: int, payload: bytes) -> None:
        if len(payload) != READING.itemsize:
            raise ValueError("a reading has another length")
        reading = np.frombuffer(payload, READING)[0]
        if reading["device"] > NO_DEVICE:
            raise ValueError("a reading names an impossible device")
        if reading["time_ns"] >= TIME_NS_LIMIT:
            raise ValueError("a reading was taken at an impossible time")
        self._readings.append(payload)
