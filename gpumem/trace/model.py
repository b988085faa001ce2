"""A trace in memory: event columns read in batches, small tables whole, the facts of its meta.json.

Owns: the shape that every reader and importer produces and every analysis takes. Must not know: files
(trace/file.py), journals (trace/journal.py), what an event means to the heap (heap/).

EVENT_COLUMNS gives the columns of an event; a batch holds each as one numpy array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpumem.units import counted, format_duration
from gpumem.vocabulary import BlockState, EventIndex, FrameId, MarkKind, StackId, TraceSource

EVENT_COLUMNS: Mapping[str, np.dtype[np.generic]] = {
    "time_ns": np.dtype(np.int64),  # since the recording's start
    "kind": np.dtype(np.uint8),  # EventKind
    "device": np.dtype(np.uint8),  # ordinal; 255 for marks and steps
    "stream": np.dtype(np.uint16),  # row of streams
    "pool": np.dtype(np.uint16),  # row of pools, 0 default or not known
    "thread": np.dtype(np.uint16),  # row of threads
    "flags": np.dtype(np.uint16),  # EventFlag bits
    "address": np.dtype(np.uint64),  # oom: free bytes; mark, step: row of marks
    "requested_bytes": np.dtype(np.uint64),  # segment events: the segment's or range's bytes
    "block_bytes": np.dtype(np.uint64),  # 0 where not known (null in the file); oom: limit
    "split_bytes": np.dtype(np.uint64),  # bytes split off; oom: total
    "stack": np.dtype(np.uint32),  # row of stacks, 0 none
    "scope": np.dtype(np.uint32),  # row of scopes, 0 none
}

BYTES_LIMIT = 1 << 63
TIME_NS_LIMIT = 1 << 62
"""No figure in bytes and no time is as great: a file that says so is damaged."""


def limit_of(column: str) -> int | None:
    """What every figure of a column stays below, by the unit in its name."""
    return TIME_NS_LIMIT if column.endswith("_ns") else BYTES_LIMIT if column.endswith("_bytes") else None


Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events, one array per requested column, all of length `count`."""

    first_event: EventIndex
    count: int
    columns: Mapping[str, Column]

    def __getitem__(self, column: str) -> npt.NDArray[np.int64]:
        """The column's array (typed loosely: integers of the width EVENT_COLUMNS gives)."""
        return self.columns[column]  # type: ignore[return-value]


class EventSource(Protocol):
    """Where a trace's events come from: a file, a journal, or memory."""

    @property
    def event_count(self) -> int: ...

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        """Batches of events [first_event, end_event) in order, each with just `columns`."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of code that was running."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Frames by row; row 0 is a placeholder."""

    files: Sequence[str]
    lines: npt.NDArray[np.uint32]
    functions: Sequence[str]
    _made: dict[int, Frame] = field(default_factory=dict, repr=False, compare=False)
    """Frames that were asked for: the same one serves every stack that it is in."""

    def frame(self, row: FrameId) -> Frame:
        """The frame of a row."""
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = Frame(self.files[row], int(self.lines[row]), self.functions[row])
        return made


@dataclass(frozen=True, slots=True)
class StackTable:
    """Stacks by row as parent links: row r is frame `frames[r]` called from stack `parents[r]`; row 0 is empty."""

    parents: npt.NDArray[np.uint32]
    frames: npt.NDArray[np.uint32]

    def frames_of(self, stack: StackId) -> list[FrameId]:
        """Frame rows of a stack, innermost first; empty for 0."""
        rows: list[FrameId] = []
        row = int(stack)
        while row:
            rows.append(FrameId(int(self.frames[row])))
            row = int(self.parents[row])
        return rows


@dataclass(frozen=True, slots=True)
class ScopeTable:
    """Scopes by row: `names[r]` inside scope `parents[r]`; row 0 is no scope."""

    parents: npt.NDArray[np.uint32]
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream: its device and raw handle (0 is the legacy default stream)."""

    stream: int
    device: int
    handle: int


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A private pool's id as PyTorch gives it: (n, 0) a CUDA graph's, (0, n) a MemPool's."""

    pool: int
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread that caused events."""

    thread: int
    system_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One NVML reading of one device; None where a figure was not available, `unavailable` says why."""

    time_ns: int
    event: EventIndex
    device: int
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int | None
    other_processes_bytes: int | None
    unavailable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mark:
    """A named instant, or the end of a step; the state is the one after `event`."""

    kind: MarkKind
    name: str
    step: int | None
    event: EventIndex
    time_ns: int


@dataclass(frozen=True, slots=True)
class InitialBlock:
    """A block that existed before the recording began, in its segment."""

    device: int
    segment_address: int
    segment_bytes: int
    stream: int
    pool: int
    expandable: bool
    address: int
    block_bytes: int | None
    requested_bytes: int
    state: BlockState
    stack: StackId
    flags: int = 0
    """EventFlag bits that say whose block it is, as those of events do."""


@dataclass(frozen=True, slots=True)
class AllocatorFacts:
    """One of gpumem's own allocators: what its events' flags number it, and what it was given."""

    device: int
    number: int
    settings: str
    capacity_bytes: int | None = None
    """None: capacity and limit are the device's."""
    memory_limit_bytes: int | None = None
    torch_version: str | None = None
    """The PyTorch that it follows; None: 2.11."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of a device: None where it could not be learned."""

    device: int
    uuid: str | None = None
    nvml_index: int | None = None
    name: str | None = None
    capacity_bytes: int | None = None
    memory_limit_bytes: int | None = None
    torch_allocated_bytes_end: int | None = None
    torch_allocated_bytes_peak: int | None = None
    torch_reserved_bytes_end: int | None = None
    torch_reserved_bytes_peak: int | None = None
    block_bytes_known_until: int | None = None
    """Of a trace whose block bytes are not all known: this device's are, of the events before this one."""


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """The facts of meta.json."""

    source: TraceSource
    program: str = ""
    command_line: Sequence[str] = ()
    pid: int | None = None
    rank: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: str | None = ""
    """The allocator's line of settings, empty for the defaults; None: not in the recording."""
    devices: Sequence[DeviceFacts] = ()
    allocators: Sequence[AllocatorFacts] = ()
    """Gpumem's own; others, and ours in PyTorch's place, have the recording's settings and their device's limit."""
    run_id: str | None = None
    started_unix_ns: int | None = None
    started_monotonic_ns: int | None = None
    duration_ns: int = 0
    history_truncated: bool = False
    ended_by: str = "exit"
    block_bytes_known: bool = False
    running: bool = False
    records_lost: int = 0
    stacks_off: str | None = None
    notes: Sequence[str] = ()
    produced_by: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """A recording, whatever it was read from."""

    path: Path
    meta: TraceMeta
    events: EventSource
    frames: FrameTable
    stacks: StackTable
    scopes: ScopeTable
    streams: Sequence[StreamRow] = ()
    pools: Sequence[PoolRow] = ()
    threads: Sequence[ThreadRow] = (ThreadRow(0, 0, ""),)
    readings: Sequence[Reading] = ()
    marks: Sequence[Mark] = ()
    initial_blocks: Sequence[InitialBlock] = ()

    def __repr__(self) -> str:
        """One line, whatever the trace holds: an interpreter shows it."""
        return f"<Trace {self.path}: {counted(self.event_count, 'event')} in {format_duration(self.meta.duration_ns)}>"

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return self.events.event_count

    def knows_blocks(self, device: int) -> bool:
        """Whether the bytes of all blocks of a device are known."""
        if self.meta.block_bytes_known:
            return True
        until = (one.block_bytes_known_until for one in self.meta.devices if one.device == device)
        return (next(until, None) or 0) >= max(1, self.event_count)

    def event_batches(
        self, columns: Sequence[str], *, first_event: int = 0, end_event: int | None = None
    ) -> Iterator[EventBatch]:
        """Batches of events [first_event, end_event) with just `columns`, in order."""
        end = self.event_count if end_event is None else min(end_event, self.event_count)
        return self.events.batches(columns, max(0, first_event), end)

    def stack_frames(self, stack: StackId) -> list[Frame]:
        """The frames of a stack, innermost first."""
        return [self.frames.frame(row) for row in self.stacks.frames_of(stack)]


@dataclass(frozen=True, slots=True)
class ColumnEvents:
    """Events held in memory as whole columns (all of EVENT_COLUMNS, equal lengths)."""

    columns: Mapping[str, Column]

    @property
    def event_count(self) -> int:
        return len(self.columns["kind"])

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        if end_event > first_event:
            chosen = {name: self.columns[name][first_event:end_event] for name in columns}
            yield EventBatch(EventIndex(first_event), end_event - first_event, chosen)
