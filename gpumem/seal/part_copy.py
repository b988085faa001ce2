"""The parts of a growing trace copied into another file, without the events that a recorded state replaces.

Owns: that copy. It is needed where such events were sealed before the state was known, or where the trace shall stand
in another folder than its journal. Must not know: journals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpumem.trace.event_parts import ParquetPart, PartWindow, encode_events
from gpumem.trace.file import event_part, part_member
from gpumem.trace.model import EVENT_COLUMNS, Column
from gpumem.trace.record_columns import Superseded, is_superseded, without_superseded
from gpumem.trace.zip_parts import Member, ReadOnlyFile, ZipWriter


def has_superseded(source: ZipWriter, windows: Sequence[PartWindow], superseded: Superseded) -> bool:
    """Whether any part holds events that the state found replaces."""
    file = ReadOnlyFile(source.path)
    return any(
        is_superseded(_columns(file, member, window, ["device"]), window, superseded).any()
        for member, window in zip(source.members, windows, strict=True)
        if window.first_record < superseded.end
    )


def copy_parts(
    source: ZipWriter, windows: Sequence[PartWindow], superseded: Superseded, path: Path, *, named: Path
) -> tuple[ZipWriter, list[PartWindow]]:
    """A growing trace at `path` (in errors: `named`) with the parts of `source` less superseded events.

    Parts that have none left are left out.
    """
    writer = ZipWriter(path, named=named)
    kept_windows: list[PartWindow] = []
    file = ReadOnlyFile(source.path)
    for member, window in zip(source.members, windows, strict=True):
        if window.first_record < superseded.end:
            columns = _columns(file, member, window, list(EVENT_COLUMNS))
            kept = without_superseded(columns, window, superseded)
            kept_window = kept.window
            content: bytes | memoryview = encode_events(kept.columns, kept_window)
        else:
            kept_window, content = window, _part(file, member, window).read()
        if kept_window.row_count:
            writer.append(part_member(len(kept_windows)), content)
            kept_windows.append(kept_window)
    return writer, kept_windows


def _part(file: ReadOnlyFile, member: Member, window: PartWindow) -> ParquetPart:
    return event_part(file, member, window.row_count)


def _columns(file: ReadOnlyFile, member: Member, window: PartWindow, names: Sequence[str]) -> Mapping[str, Column]:
    return _part(file, member, window).columns(names, 0)
