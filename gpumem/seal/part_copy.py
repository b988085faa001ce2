"""The parts of a growing trace followed again, or copied into another file without what a recorded state replaces.

Owns: both. A copy is needed where such events were sealed before the state was known, where blocks were filled in by
facts that changed since, or where the trace shall stand in another folder than its journal. Must not know: journals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpumem.seal.journal_filler import JournalFiller
from gpumem.simulate.replay import REPLAY_COLUMNS
from gpumem.trace.event_parts import ParquetPart, PartWindow, encode_events
from gpumem.trace.file import event_part, part_member
from gpumem.trace.model import EVENT_COLUMNS, Column
from gpumem.trace.record_columns import Superseded, WindowEvents, is_superseded, without_superseded
from gpumem.trace.zip_parts import Member, ReadOnlyFile, ZipWriter


def has_superseded(source: ZipWriter, windows: Sequence[PartWindow], superseded: Superseded) -> bool:
    """Whether any part holds events that the state found replaces."""
    file = ReadOnlyFile(source.path)
    return any(
        is_superseded(_columns(file, member, window, ["device", "flags"]), window, superseded).any()
        for member, window in zip(source.members, windows, strict=True)
        if window.first_record < superseded.end
    )


def follow_parts(
    source: ZipWriter, windows: Sequence[PartWindow], superseded: Superseded, filler: JournalFiller
) -> None:
    """Has `filler` follow the events of all parts, less superseded ones, without wanting them back."""
    file = ReadOnlyFile(source.path)
    for member, window in zip(source.members, windows, strict=True):
        filler.feed(_kept(file, member, window, superseded, REPLAY_COLUMNS).columns, is_wanted=False)


def copy_parts(
    source: ZipWriter,
    windows: Sequence[PartWindow],
    superseded: Superseded,
    filler: JournalFiller,
    path: Path,
    *,
    named: Path,
) -> tuple[ZipWriter, list[PartWindow]]:
    """A growing trace at `path` (in errors: `named`) with the parts of `source` less superseded events.

    Parts that were filled under other facts than those of `filler`, a new one, are filled again. Parts that have no
    event left are left out.
    """
    copy = _PartCopy(ZipWriter(path, named=named), filler)
    stale = [number for number, window in enumerate(windows) if window.fill_key != filler.key]
    stale_end = max(stale, default=-1) + 1
    file = ReadOnlyFile(source.path)
    for number, (member, window) in enumerate(zip(source.members, windows, strict=True)):
        if window.fill_key != filler.key:
            copy.fill(_kept(file, member, window, superseded, list(EVENT_COLUMNS)))
            continue
        is_followed = number < stale_end or copy.is_waiting
        if window.first_record < superseded.end:
            kept = _kept(file, member, window, superseded, list(EVENT_COLUMNS))
            copy.add(kept.window, encode_events(kept.columns, kept.window), kept.columns if is_followed else None)
        else:
            columns = _columns(file, member, window, REPLAY_COLUMNS) if is_followed else None
            copy.add(window, _part(file, member, window).read(), columns)
    return copy.finish()


class _PartCopy:
    """Parts on their way into a new file, in order: some wait until what their events lack is known."""

    def __init__(self, writer: ZipWriter, filler: JournalFiller) -> None:
        self._writer = writer
        self._filler = filler
        self._waiting: deque[tuple[PartWindow, bytes | memoryview | None]] = deque()
        self._windows: list[PartWindow] = []

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def fill(self, kept: WindowEvents) -> None:
        """A part to be filled anew."""
        self._waiting.append((replace(kept.window, fill_key=self._filler.key), None))
        self._filler.feed(kept.columns)
        self._write_ready()

    def add(self, window: PartWindow, content: bytes | memoryview, followed: Mapping[str, Column] | None) -> None:
        """A part that is right as it is; `followed` are its events where others before it need them."""
        self._waiting.append((window, content))
        if followed is not None:
            self._filler.feed(followed, is_wanted=False)
        self._write_ready()

    def finish(self) -> tuple[ZipWriter, list[PartWindow]]:
        """The file and the windows of its parts."""
        self._filler.finish()
        self._write_ready()
        assert not self._waiting, "a finished filler has given everything back"
        return self._writer, self._windows

    def _write_ready(self) -> None:
        while self._waiting:
            window, content = self._waiting[0]
            if content is None:
                if not self._filler.ready:
                    return
                content = encode_events(self._filler.ready.popleft(), window)
            self._waiting.popleft()
            if window.row_count:
                self._writer.append(part_member(len(self._windows)), content)
                self._windows.append(window)


def _kept(
    file: ReadOnlyFile, member: Member, window: PartWindow, superseded: Superseded, names: Sequence[str]
) -> WindowEvents:
    """The events of a part less superseded ones."""
    columns = _columns(file, member, window, names)
    if window.first_record >= superseded.end:
        return WindowEvents(dict(columns), window)
    return without_superseded(columns, window, superseded)


def _part(file: ReadOnlyFile, member: Member, window: PartWindow) -> ParquetPart:
    return event_part(file, member, window.row_count)


def _columns(file: ReadOnlyFile, member: Member, window: PartWindow, names: Sequence[str]) -> Mapping[str, Column]:
    return _part(file, member, window).columns(names, 0)
