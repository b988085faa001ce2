"""Everything of a Trace but its events, out of a journal: tables, readings, marks and meta.

Owns: how entries and facts of a journal become the tables of a trace, for the sealer at the end of a run and for
readers at any time. Must not know: parts and files, windows' states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpumem import __version__
from gpumem.errors import TraceTruncated
from gpumem.trace.entries import JournalEntries
from gpumem.trace.event_parts import PartWindow
from gpumem.trace.journal import Journal
from gpumem.trace.journal_facts import FoundBlock, FrameKey, JournalFacts
from gpumem.trace.journal_layout import READING_FIGURES
from gpumem.trace.line_table import find_line
from gpumem.trace.model import (
    BYTES_LIMIT,
    EventSource,
    FrameTable,
    InitialBlock,
    Mark,
    PoolRow,
    Reading,
    ScopeTable,
    StackTable,
    StreamRow,
    ThreadRow,
    Trace,
)
from gpumem.trace.record_columns import RowPositions
from gpumem.trace.stack_links import link_stacks
from gpumem.vocabulary import EventIndex, MarkKind, StackId, TraceSource

_NO_FRAME: FrameKey = ("", 0, "")
_LINE_MAX = 0xFFFFFFFF
_NOT_SAID = "not available"


@dataclass(frozen=True, slots=True)
class JournalTables:
    """The tables of a trace that its entries give."""

    frames: FrameTable
    stacks: StackTable
    scopes: ScopeTable
    streams: Sequence[StreamRow]
    pools: Sequence[PoolRow]
    threads: Sequence[ThreadRow]
    initial_blocks: Sequence[InitialBlock]

    def row_counts(self) -> dict[str, int]:
        """Rows of the tables that event columns name."""
        return {
            "stack": len(self.stacks.parents),
            "scope": len(self.scopes.parents),
            "stream": len(self.streams),
            "pool": len(self.pools),
            "thread": len(self.threads),
        }


def make_tables(journal: Journal, entries: JournalEntries, facts: JournalFacts) -> JournalTables:
    """The tables that the entries give; raises TraceTruncated when they do not fit together."""
    streams, pools = entries.stream_rows(), entries.pool_rows()
    found = facts.found_blocks()
    frames, stacks = _stacks_and_frames(journal, entries, found)
    first_found = len(entries.stack_frames()[1]) + 1
    blocks = place_found_blocks(found, streams, pools, first_stack=first_found)
    scopes, threads = entries.scope_table(), entries.thread_rows()
    return JournalTables(frames, stacks, scopes, streams, pools, threads, blocks)


def place_found_blocks(
    found: Sequence[FoundBlock], streams: list[StreamRow], pools: list[PoolRow], *, first_stack: int = 0
) -> list[InitialBlock]:
    """The blocks that recording found, naming rows; streams and pools that have none yet get one.

    Stacks are rows from `first_stack` on, one a block.
    """
    by_stream, by_pool = _Streams(streams), _Pools(pools)
    return [
        _initial_block(block, by_stream.row(block), by_pool.row(block), first_stack + number)
        for number, block in enumerate(found)
    ]


def make_trace(
    path: Path,
    journal: Journal,
    entries: JournalEntries,
    tables: JournalTables,
    facts: JournalFacts,
    events: EventSource,
    windows: Sequence[PartWindow],
    *,
    ended_by: str,
    running: bool = False,
) -> Trace:
    """The trace of a journal whose events come from `events`, made of `windows`."""
    readings = list(_readings(journal, entries, facts, windows, events.event_count))
    marks = list(_marks(entries, windows))
    last_times = [window.last_time_ns for window in windows] + [reading.time_ns for reading in readings]
    source = facts.meta().source
    meta = facts.meta(
        pid=journal.pid,
        run_id=journal.run_id,
        started_unix_ns=journal.started_unix_ns,
        started_monotonic_ns=journal.started_monotonic_ns,
        duration_ns=max(last_times, default=0),
        ended_by=ended_by,
        block_bytes_known=source is TraceSource.GPUMEM,
        running=running,
        records_lost=sum(window.records_lost for window in windows),
        produced_by=f"gpumem {__version__}",
    )
    return Trace(
        path=path,
        meta=meta,
        events=events,
        frames=tables.frames,
        stacks=tables.stacks,
        scopes=tables.scopes,
        streams=tables.streams,
        pools=tables.pools,
        threads=tables.threads,
        readings=readings,
        marks=marks,
        initial_blocks=tables.initial_blocks,
    )


def _stacks_and_frames(
    journal: Journal, entries: JournalEntries, found: Sequence[FoundBlock]
) -> tuple[FrameTable, StackTable]:
    """Frames by distinct line, stacks by id; behind them one stack for each block found."""
    flat, depths = entries.stack_frames()
    rows_of: dict[FrameKey, int] = {_NO_FRAME: 0}
    keys = flat[:, 0].astype(np.uint64) << np.uint64(32) | flat[:, 1].astype(np.uint64)
    distinct, places = np.unique(keys, return_inverse=True)
    pairs = [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in distinct]
    lines = _resolve(journal, entries, pairs)
    frame_rows = np.array([rows_of.setdefault(line, len(rows_of)) for line in lines], np.uint32)
    flat_rows = frame_rows[places.reshape(-1)] if len(pairs) else np.zeros(0, np.uint32)
    found_rows = [rows_of.setdefault(frame, len(rows_of)) for block in found for frame in block.frames]
    all_rows = np.concatenate([flat_rows, np.array(found_rows, np.uint32)])
    all_depths = np.concatenate([depths, np.array([len(block.frames) for block in found], np.int64)])
    files, numbers, functions = zip(*rows_of, strict=True)
    table = FrameTable(list(files), np.array(numbers, np.uint32), list(functions))
    return table, link_stacks(all_rows, all_depths)


def _resolve(journal: Journal, entries: JournalEntries, pairs: Iterable[tuple[int, int]]) -> Iterator[FrameKey]:
    """File, line and function of each (code, instruction offset)."""
    for code_id, instruction in pairs:
        code = entries.codes.get(code_id)
        if code is None:
            raise TraceTruncated(f"{journal.path} is damaged: a stack names code {code_id}, which it has not.")
        line = find_line(code.line_table, code.first_line, instruction)
        file, function = entries.strings.get(code.file, ""), entries.strings.get(code.name, "")
        yield file, min(max(line, 0), _LINE_MAX), function


def _readings(
    journal: Journal, entries: JournalEntries, facts: JournalFacts, windows: Sequence[PartWindow], event_count: int
) -> Iterator[Reading]:
    rows = entries.readings
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    events = np.minimum(RowPositions(windows).rows_before(rows["event"]), event_count) - 1
    reasons_of: dict[int, Mapping[str, str]] = {}
    for event, (time_ns, _, *figures, device, unavailable) in zip(events.tolist(), rows.tolist(), strict=True):
        known = {
            name: None if unavailable >> bit & 1 or figure >= BYTES_LIMIT else figure
            for bit, (name, figure) in enumerate(zip(READING_FIGURES, figures, strict=True))
        }
        reasons: dict[str, str] = {}
        if None in known.values():
            said = reasons_of.setdefault(device, facts.unavailable_reasons(device))
            reasons = {name: said.get(name, _NOT_SAID) for name, figure in known.items() if figure is None}
        since_start_ns = max(0, time_ns - journal.started_monotonic_ns)
        yield Reading(since_start_ns, EventIndex(event), device, **known, unavailable=reasons)


def _marks(entries: JournalEntries, windows: Sequence[PartWindow]) -> Iterator[Mark]:
    first_row = 0
    for window in windows:
        for mark in window.marks:
            is_step = mark.step >= 0
            yield Mark(
                MarkKind.STEP if is_step else MarkKind.MARK,
                entries.strings.get(mark.name, ""),
                mark.step if is_step else None,
                EventIndex(first_row + mark.row),
                mark.time_ns,
            )
        first_row += window.row_count


def _initial_block(block: FoundBlock, stream: int, pool: int, stack: int) -> InitialBlock:
    return InitialBlock(
        device=block.device,
        segment_address=block.segment_address,
        segment_bytes=block.segment_bytes,
        stream=stream,
        pool=pool,
        expandable=block.expandable,
        address=block.address,
        block_bytes=block.block_bytes,
        requested_bytes=block.requested_bytes,
        state=block.state,
        stack=StackId(stack if block.frames else 0),
        flags=block.code,
    )


class _Streams:
    """Streams by row; those that only a found block has come behind the recorded ones."""

    def __init__(self, rows: list[StreamRow]) -> None:
        self.rows = rows
        self._row_of = {(row.device, row.handle): row.stream for row in rows[1:]}

    def row(self, block: FoundBlock) -> int:
        key = (block.device, block.stream)
        if key not in self._row_of:
            self._row_of[key] = len(self.rows)
            self.rows.append(StreamRow(len(self.rows), *key))
        return self._row_of[key]


class _Pools:
    """Private pools by row, found ones behind the recorded ones; the default pools are row 0."""

    def __init__(self, rows: list[PoolRow]) -> None:
        self.rows = rows
        self._row_of = {(row.first, row.second): row.pool for row in rows}

    def row(self, block: FoundBlock) -> int:
        if block.pool not in self._row_of:
            self._row_of[block.pool] = len(self.rows)
            self.rows.append(PoolRow(len(self.rows), *block.pool))
        return self._row_of[block.pool]
