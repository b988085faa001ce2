"""The trace file NAME.gpumem: an uncompressed ZIP of Parquet parts, tables and meta.json.

Owns: which members a trace has, reading them lazily, writing them whole. Must not know: journals and sealing (they
add parts while a run goes on and then call `append_tables`), what the events mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np

from gpumem.errors import OutputUnwritable, TargetExists, TraceForeign, TraceTruncated
from gpumem.trace import tables
from gpumem.trace.event_parts import ParquetPart, PartEvents, encode_events
from gpumem.trace.meta import decode_meta, encode_meta
from gpumem.trace.model import EVENT_COLUMNS, Column, Trace, TraceMeta
from gpumem.trace.zip_parts import (
    Member,
    ReadOnlyFile,
    ZipReader,
    ZipWriter,
    find_member,
    member_header_bytes,
    read_member,
)

META_MEMBER = "meta.json"
PART_ROWS = 1 << 18
"""Events in a part written here: as many as a journal's window has; a reader holds a few parts' columns at a time."""


def part_member(number: int) -> str:
    """Name of the member that holds event part `number`."""
    return f"events/{number:06d}.parquet"


def read_part(file: ReadOnlyFile, data_offset: int) -> tuple[Member, bytes]:
    """The event part whose bytes begin at `data_offset` of a growing trace; raises TraceTruncated if none."""
    member = find_member(file, data_offset - member_header_bytes(part_member(0)))
    return member, read_member(file, member)


def table_member(name: str) -> str:
    """Name of the member that holds table `name`."""
    return f"{name}.parquet"


def read_trace(path: Path) -> Trace:
    """The trace in `path`: tables read now, events when asked for.

    Raises TraceNotFound, TraceForeign, TraceTruncated or TraceVersionUnsupported.
    """
    archive = ZipReader(path)
    meta, part_events = _meta_of(archive)

    def content(name: str) -> tuple[bytes, str]:
        member = table_member(name)
        return archive.read(member), f"{path}, {member}"

    frames = tables.decode_frames(*content("frames"))
    stacks = tables.decode_stacks(*content("stacks"), len(frames.files))
    scopes = tables.decode_scopes(*content("scopes"))
    streams = tables.decode_streams(*content("streams"))
    pools = tables.decode_pools(*content("pools"))
    threads = tables.decode_threads(*content("threads"))
    row_counts = {"stack": len(stacks.parents), "scope": len(scopes.parents)}
    event_count = sum(part_events)
    row_counts |= {"stream": len(streams), "pool": len(pools), "thread": len(threads)}
    return Trace(
        path=path,
        meta=meta,
        events=PartEvents(list(_parts(archive, part_events)), row_counts),
        frames=frames,
        stacks=stacks,
        scopes=scopes,
        streams=streams,
        pools=pools,
        threads=threads,
        readings=tables.decode_readings(*content("readings"), event_count),
        marks=tables.decode_marks(*content("marks"), event_count),
        initial_blocks=tables.decode_initial_blocks(*content("initial_blocks")),
    )


def read_meta(path: Path) -> tuple[TraceMeta, list[int]]:
    """The facts of the trace in `path` and the events of each of its parts; raises what `read_trace` raises."""
    return _meta_of(ZipReader(path))


def write_trace(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Writes `trace` to `path` under a temporary name, then renames it.

    Raises TargetExists unless `force`, and OutputUnwritable.
    """
    with TraceWriter(path, force=force) as writer:
        for batch in trace.event_batches(list(EVENT_COLUMNS)):
            writer.append(batch.columns)
        writer.finish(trace)


class TraceWriter:
    """A trace written event by event under a temporary name; a context manager that leaves nothing half written."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Raises TargetExists unless `force`, and OutputUnwritable."""
        if path.exists() and not force:
            raise TargetExists(path)
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
        self._writer = ZipWriter(self._temporary, named=path)
        self._part_events: list[int] = []
        self._waiting: list[Mapping[str, Column]] = []
        self._waiting_count = 0

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def append(self, columns: Mapping[str, Column]) -> None:
        """The next events (all of EVENT_COLUMNS); they are written a part at a time."""
        offset, count = 0, len(columns["kind"])
        while offset < count:
            end = min(count, offset + PART_ROWS - self._waiting_count)
            self._waiting.append({name: columns[name][offset:end] for name in EVENT_COLUMNS})
            self._waiting_count, offset = self._waiting_count + end - offset, end
            if self._waiting_count == PART_ROWS:
                self._write_part()

    def finish(self, trace: Trace) -> None:
        """Writes the tables and facts of `trace` behind the events, then gives the file its name."""
        if self._waiting:
            self._write_part()
        append_tables(self._writer, trace, self._part_events)
        self._writer.finish()
        _rename(self._temporary, self._path)

    def _write_part(self) -> None:
        columns = {name: np.concatenate([piece[name] for piece in self._waiting]) for name in EVENT_COLUMNS}
        self._writer.append(part_member(len(self._part_events)), encode_events(columns))
        self._part_events.append(self._waiting_count)
        self._waiting, self._waiting_count = [], 0


def append_tables(writer: ZipWriter, trace: Trace, part_events: Sequence[int]) -> None:
    """Writes the members behind the event parts: the tables of `trace`, then meta.json."""
    for name, content in tables.encode_tables(trace).items():
        writer.append(table_member(name), content)
    writer.append(META_MEMBER, encode_meta(trace.meta, part_events))


def _meta_of(archive: ZipReader) -> tuple[TraceMeta, list[int]]:
    if META_MEMBER not in archive.members:
        raise TraceForeign(f"{archive.path} is a ZIP file but no trace: it has no {META_MEMBER}.")
    return decode_meta(archive.read(META_MEMBER), str(archive.path))


def _parts(archive: ZipReader, part_events: Sequence[int]) -> Iterator[ParquetPart]:
    for number, event_count in enumerate(part_events):
        member = archive.members.get(part_member(number))
        if member is None:
            raise TraceTruncated(f"{archive.path} is damaged: {part_member(number)} is missing.")
        yield event_part(archive.file, member, event_count)


def event_part(file: ReadOnlyFile, member: Member, event_count: int) -> ParquetPart:
    """The part in `member` of `file`, to stream."""
    return ParquetPart(event_count, partial(read_member, file, member), f"{file.path}, {member.name}")


def _rename(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written: {error.strerror}.") from error
