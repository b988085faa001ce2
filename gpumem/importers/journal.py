"""A journal as a Trace: of a running process, or of one that was killed before its trace was finished.

Owns: joining sealed parts and windows not sealed yet into one EventSource. Must not know: how windows are sealed.

What is read is fixed when the journal is opened: windows that are still open are copied then, full ones are read
when their turn comes, from the journal or, once they are sealed, from the part file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpumem.errors import TraceNotFound
from gpumem.trace.entries import JournalEntries
from gpumem.trace.event_parts import EventPart, ParquetPart, PartEvents, PartWindow, decode_window
from gpumem.trace.file import read_part
from gpumem.trace.journal import Journal, Window, part_of, target_of
from gpumem.trace.journal_facts import JournalFacts
from gpumem.trace.journal_layout import WindowKind, WindowState
from gpumem.trace.journal_trace import make_tables, make_trace
from gpumem.trace.model import Column, Trace
from gpumem.trace.record_columns import Superseded, WindowEvents, window_events
from gpumem.trace.zip_parts import ReadOnlyFile


def read_journal(path: Path) -> Trace:
    """What the journal holds now, sealed parts included; raises an InputError when it cannot be read."""
    journal = Journal(path)
    is_running = not journal.is_closed and journal.is_process_alive()
    entries = JournalEntries(journal)
    entries.update()
    reader = _WindowReader(journal, JournalFacts(entries.facts, str(path)))
    reader.look()
    entries.update()  # ids that records of the windows just looked at use were written before them
    facts = JournalFacts(entries.facts, str(path))
    tables = make_tables(journal, entries, facts)
    events = PartEvents(reader.parts, tables.row_counts())
    ended_by = journal.ended_by or ("running" if is_running else "killed")
    return make_trace(
        path, journal, entries, tables, facts, events, reader.windows, ended_by=ended_by, running=is_running
    )


@dataclass(frozen=True, slots=True)
class _ColumnsPart:
    """Events of a window that was still open, copied."""

    event_count: int
    where: str
    held: Mapping[str, Column]

    def columns(self, names: Sequence[str], group: int) -> Mapping[str, Column]:
        return {name: self.held[name] for name in names}


@dataclass(frozen=True, slots=True)
class _WindowPart:
    """Events of a full window, read again when their turn comes: from the journal, or from its part by then."""

    event_count: int
    where: str
    reader: _WindowReader
    window: Window
    first_mark: int

    def columns(self, names: Sequence[str], group: int) -> Mapping[str, Column]:
        found = self.reader.window_events(self.window, self.first_mark)
        if found is not None:
            return {name: found.columns[name] for name in names}
        sealed = self.reader.journal.window(self.window.number)
        return self.reader.sealed_part(sealed, self.event_count).columns(names, group)


class _WindowReader:
    """The record windows of a journal as parts."""

    def __init__(self, journal: Journal, facts: JournalFacts) -> None:
        self.journal = journal
        self.parts: list[EventPart] = []
        self.windows: list[PartWindow] = []
        self._superseded: Superseded = facts.superseded
        self._target = facts.target or target_of(journal.path)
        self._part_file: ReadOnlyFile | None = None
        self._mark_count = 0

    def look(self) -> None:
        """Fixes what is to be read: a part for each window in use."""
        for window in self.journal.windows(WindowKind.RECORDS):
            found = None
            if window.state is not WindowState.SEALED:
                found = self.window_events(window, self._mark_count)
            if found is None:
                self._add_sealed(self.journal.window(window.number))
                continue
            event_count = found.window.row_count
            where = f"{self.journal.path}, window {window.number}"
            if window.state is WindowState.FULL:
                self._add(_WindowPart(event_count, where, self, window, self._mark_count), found.window)
            else:
                self._add(_ColumnsPart(event_count, where, found.columns), found.window)

    def window_events(self, window: Window, first_mark: int) -> WindowEvents | None:
        """The events of a window; None when it is sealed."""
        found = self.journal.read_records(window)
        if found is None:
            return None
        started_ns = self.journal.started_monotonic_ns
        return window_events(window, found, started_ns=started_ns, superseded=self._superseded, first_mark=first_mark)

    def sealed_part(self, window: Window, event_count: int) -> ParquetPart:
        """The part of a sealed window."""
        file = self._open_part_file()
        where = f"{file.path}, part at byte {window.part_offset}"
        return ParquetPart(event_count, partial(_part_content, file, window.part_offset), where)

    def _add_sealed(self, window: Window) -> None:
        if window.part_bytes == 0:  # nothing in it became an event
            return
        file = self._open_part_file()
        member, content = read_part(file, window.part_offset)
        part_window = decode_window(content, f"{file.path}, {member.name}")
        self._add(self.sealed_part(window, part_window.row_count), part_window)

    def _add(self, part: EventPart, window: PartWindow) -> None:
        self.parts.append(part)
        self.windows.append(window)
        self._mark_count += len(window.marks)

    def _open_part_file(self) -> ReadOnlyFile:
        """The growing trace, or the finished one when it was renamed meanwhile."""
        if self._part_file is None:
            part_path = part_of(self._target)
            for path in (part_path, self._target):
                if path.exists():
                    self._part_file = ReadOnlyFile(path)
                    break
            else:
                raise TraceNotFound(
                    f"{part_path} does not exist: it holds the sealed part of the recording {self.journal.path}."
                )
        return self._part_file


def _part_content(file: ReadOnlyFile, data_offset: int) -> bytes:
    return read_part(file, data_offset)[1]
