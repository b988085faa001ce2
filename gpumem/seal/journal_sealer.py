"""One journal sealed: full windows to parts while its process runs, a finished trace at the end.

Owns: the window states from FULL to SEALED, the growing part file and the holes punched into the journal. There is one
sealer of a journal at a time, by a lock on it. Must not know: which journals a run has and when they end (seal/run.py).

To seal a window: write its part behind the last published end, store offset and length in the window's entry, store
SEALED, only then punch. A sealer that is killed anywhere leaves a part file whose published end the next one takes it
back to. The target appears complete or never.

Replay fills in what the events do not say of their blocks. It needs what follows to settle a window's last events, so a
window that was read may wait for the next one; a new sealer follows the sealed parts again to where the last one was.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gpumem.errors import InputError, OutputUnwritable, TraceNotFound, TraceTruncated
from gpumem.seal.journal_filler import JournalFiller, fill_key
from gpumem.seal.linux import punch_hole, rename_to_free_name
from gpumem.seal.part_copy import copy_parts, follow_parts, has_superseded
from gpumem.simulate.fill import filled_meta
from gpumem.trace.entries import JournalEntries
from gpumem.trace.event_parts import PartEvents, PartWindow, decode_window, encode_events
from gpumem.trace.file import append_tables, event_part, part_member, read_meta, read_part
from gpumem.trace.journal import Journal, Window, part_of, target_of
from gpumem.trace.journal_facts import JournalFacts
from gpumem.trace.journal_layout import RECORD, WindowKind, WindowState
from gpumem.trace.journal_trace import make_tables, make_trace
from gpumem.trace.model import Column
from gpumem.trace.record_columns import Superseded, window_events
from gpumem.trace.zip_parts import ReadOnlyFile, ZipWriter
from gpumem.vocabulary import TraceSource


class JournalBusy(InputError):
    """Another process seals this journal."""


@dataclass(frozen=True, slots=True)
class FinishedTrace:
    """A journal that became a trace; `wanted_path` was taken when `path` is another one."""

    journal: Path
    path: Path
    wanted_path: Path
    pid: int
    event_count: int
    ended_by: str


class JournalSealer:
    """The one sealer of a journal, from opening to `close` or `finish`."""

    def __init__(self, path: Path) -> None:
        """Locks the journal; raises JournalBusy when it is locked, and what Journal raises."""
        self.path = path
        self._lock = _lock(path)
        try:
            self.journal = Journal(path, writable=True)
            self._entries = JournalEntries(self.journal)
            self._writer: ZipWriter | None = None
            self._parts: list[PartWindow] = []
            self._next_window = 0
            self._waiting: deque[tuple[Window, PartWindow]] = deque()
            self._mark_count = 0
            self._filler: JournalFiller | None = None
            self._state_facts = 0
            self._known_superseded = Superseded()
            self._fact_count = -1
            self._fill_key = ""
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def target(self) -> Path:
        """Where the trace is to stand."""
        self._entries.update()
        return JournalFacts(self._entries.facts, str(self.path)).target or target_of(self.path)

    def fact(self, key: str) -> str | None:
        """What the process has said under `key` so far, as JSON; None where it has said nothing."""
        self._entries.update()
        return self._entries.facts.get(key)

    def seal_full_windows(self) -> int:
        """Seals the full windows that nothing open stands before; returns how many. Raises OutputUnwritable."""
        return self._seal_windows(only_full=True)

    def finish(self, ended_by: str, *, target: Path | None = None, replace: bool = False) -> FinishedTrace:
        """Seals what is left, writes the tables and gives the trace its name; the journal is removed.

        A target that exists is kept unless `replace`: the trace is then finished as NAME.1.gpumem and so on.
        """
        wanted = target or self.target
        finished = self._find_finished(wanted)
        if finished is None:
            self._give_unused_back()
            self._seal_windows(only_full=False)
            finished = self._finish(ended_by, wanted, replace)
        self.path.unlink(missing_ok=True)
        part_of(self.target).unlink(missing_ok=True)
        self.close()
        return finished

    def discard(self) -> None:
        """Removes the journal and what was sealed of it."""
        self.path.unlink(missing_ok=True)
        part_of(self.target).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Lets go of the journal as it is; a part file that got nothing, for want of room, is not left behind."""
        if self._writer is not None:
            self._writer.close()
            if not self._writer.members:
                self._writer.path.unlink(missing_ok=True)
        if self._filler is not None:
            self._filler.close()
        os.close(self._lock)
        self.journal.close()

    def _seal_windows(self, *, only_full: bool) -> int:
        sealed_count = 0
        for window in self.journal.windows(WindowKind.RECORDS, self._next_window):
            if window.state is WindowState.OPEN and only_full:
                break
            if self._writer is None:
                self._writer = self._open_part()
            if window.state is not WindowState.SEALED:
                self._take_in(window)
            self._next_window = window.number + 1
            sealed_count += self._seal_ready()
        if not only_full and self._filler is not None:
            self._filler.finish()
        return sealed_count + self._seal_ready()

    def _open_part(self) -> ZipWriter:
        """The part file, taken back to its published end; what it holds is known again."""
        path = part_of(self.target)
        sealed = [w for w in self.journal.windows(WindowKind.RECORDS) if w.state is WindowState.SEALED]
        published = max((window.part_offset + window.part_bytes for window in sealed), default=0)
        if published and not path.exists():
            raise TraceTruncated(f"{path} is gone: it held the sealed part of the recording {self.path}.")
        writer = ZipWriter(path, cut_offset=published if path.exists() else None)
        file = ReadOnlyFile(path)
        for window in sealed:
            self._punch(window)
            if window.part_bytes:
                member, content = read_part(file, window.part_offset)
                where = f"{path}, {member.name}"
                self._parts.append(decode_window(content, where))
        file.close()
        self._mark_count = sum(len(part.marks) for part in self._parts)
        return writer

    def _take_in(self, window: Window) -> None:
        """Reads a window's events and has replay follow them; the window waits until they are settled."""
        found = self.journal.read_records(window)
        assert found is not None, "only the holder of the lock seals"
        self._entries.update()
        filler = self._current_filler()
        made = window_events(
            window,
            found,
            started_ns=self.journal.started_monotonic_ns,
            superseded=self._superseded(),
            first_mark=self._mark_count,
        )
        self._mark_count += len(made.window.marks)
        self._waiting.append((window, replace(made.window, fill_key=filler.key)))
        filler.feed(made.columns)

    def _seal_ready(self) -> int:
        """Seals the windows whose events are settled; how many."""
        sealed_count = 0
        while self._filler is not None and self._filler.ready:
            assert self._writer is not None, "it is opened before anything is read"
            self._seal(self._writer, *self._waiting[0], self._filler.ready[0])
            self._waiting.popleft()
            self._filler.ready.popleft()
            sealed_count += 1
        return sealed_count

    def _seal(self, writer: ZipWriter, window: Window, made: PartWindow, columns: Mapping[str, Column]) -> None:
        entry = self.journal.entries[window.number : window.number + 1]
        offset = byte_count = 0
        if made.row_count:
            member = writer.append(part_member(len(self._parts)), encode_events(columns, made))
            offset, byte_count = member.data_offset, member.byte_count
            self._parts.append(made)
        entry["part_offset"], entry["part_bytes"] = offset, byte_count
        self.journal.header["part_published_bytes"] = writer.end_offset
        entry["state"] = WindowState.SEALED
        self._punch(window)

    def _current_filler(self) -> JournalFiller:
        """The filler that goes by the facts known now; one that went by others has sealed what it held."""
        facts = JournalFacts(self._entries.facts, str(self.path))
        if self._entries.fact_count != self._fact_count:
            self._fact_count = self._entries.fact_count
            self._fill_key = fill_key(facts)
        if self._filler is not None and self._filler.key == self._fill_key:
            return self._filler
        if self._filler is not None:
            self._filler.finish()
            self._seal_ready()
            self._filler.close()
        self._filler = JournalFiller(self._entries, facts)
        assert self._writer is not None, "it is opened before anything is followed"
        follow_parts(self._writer, self._parts, self._superseded(), self._filler)
        return self._filler

    def _superseded(self) -> Superseded:
        """What the state found replaces; read again only when there are new facts of it, as they may be large."""
        facts = {key: text for key, text in self._entries.facts.items() if key.startswith("initial_state")}
        if len(facts) != self._state_facts:
            self._state_facts = len(facts)
            self._known_superseded = JournalFacts(facts, str(self.path)).superseded
        return self._known_superseded

    def _give_unused_back(self) -> None:
        """Frees what windows reserved beyond what they hold: on a full disk, the room that the last parts need."""
        for number in range(self.journal.window_count):
            window = self.journal.window(number)
            used = window.taken * RECORD.itemsize if window.kind is WindowKind.RECORDS else window.taken
            used = 0 if window.state is WindowState.FREE else min(used, window.byte_count)
            if used < window.byte_count:
                punch_hole(self._lock, window.offset + used, window.byte_count - used)

    def _punch(self, window: Window) -> None:
        punch_hole(self._lock, window.offset, window.byte_count)

    def _finish(self, ended_by: str, wanted: Path, replace_target: bool) -> FinishedTrace:
        facts = JournalFacts(self._entries.facts, str(self.path))
        tables = make_tables(self.journal, self._entries, facts)
        writer, windows = self._final_parts(facts, wanted)
        part_events = [window.row_count for window in windows]
        file = ReadOnlyFile(writer.path)
        members = zip(writer.members, part_events, strict=True)
        events = PartEvents([event_part(file, *member) for member in members], tables.row_counts())
        trace = make_trace(wanted, self.journal, self._entries, tables, facts, events, windows, ended_by=ended_by)
        if trace.meta.source is TraceSource.NATIVE:
            filled = filled_meta(trace.meta, self._current_filler().fills(), trace.event_count)
            trace = replace(trace, meta=filled)
        append_tables(writer, trace, part_events)
        writer.finish()
        path = _give_name(writer.path, wanted, replace=replace_target)
        return FinishedTrace(self.path, path, wanted, self.journal.pid, trace.event_count, ended_by)

    def _final_parts(self, facts: JournalFacts, wanted: Path) -> tuple[ZipWriter, list[PartWindow]]:
        """The file that shall get the target's name and its parts: the growing one, or a copy where that has events
        that the state found replaces or that were filled under other facts, or stands in another folder."""
        if self._writer is None:
            self._writer = self._open_part()
        superseded = facts.superseded
        followed = self._current_filler()
        followed.finish()
        same_folder = self._writer.path.parent.resolve() == wanted.parent.resolve()
        is_current = all(part.fill_key == followed.key for part in self._parts)
        if same_folder and is_current and not has_superseded(self._writer, self._parts, superseded):
            return self._writer, self._parts
        copy_path = wanted.with_name(f".{wanted.name}.{self.journal.pid}.finishing")
        copy_path.unlink(missing_ok=True)
        filler = JournalFiller(self._entries, facts)
        try:
            return copy_parts(self._writer, self._parts, superseded, filler, copy_path, named=wanted)
        finally:
            filler.close()

    def _find_finished(self, wanted: Path) -> FinishedTrace | None:
        """The trace of this journal that a sealer finished before it was killed, or None."""
        for path in _names(wanted):
            if not path.exists():
                return None
            try:
                meta, part_events = read_meta(path)
            except InputError:
                continue  # something else has the name
            journal = self.journal
            ours = (journal.run_id, journal.pid, journal.started_monotonic_ns)
            if (meta.run_id, meta.pid, meta.started_monotonic_ns) == ours and meta.ended_by != "running":
                return FinishedTrace(self.path, path, wanted, journal.pid, sum(part_events), meta.ended_by)
        return None


def _lock(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TraceNotFound(f"{path} does not exist.") from None
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise JournalBusy(f"{path} is being sealed by another process; wait until it has finished.") from None
    os.close(descriptor)
    raise TraceNotFound(f"{path} was finished meanwhile.")


def _give_name(source: Path, wanted: Path, *, replace: bool) -> Path:
    try:
        if replace:
            source.replace(wanted)
            return wanted
        return next(path for path in _names(wanted) if rename_to_free_name(source, path))
    except OSError as error:
        raise OutputUnwritable(f"{wanted} cannot be written: {error.strerror}.") from error


def _names(wanted: Path) -> Iterator[Path]:
    """`NAME.gpumem`, then `NAME.1.gpumem` and so on."""
    yield wanted
    for number in count(1):
        yield wanted.with_name(f"{wanted.stem}.{number}{wanted.suffix}")
