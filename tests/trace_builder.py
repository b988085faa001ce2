"""Traces written by hand, event by event, for tests.

    trace = TraceBuilder().segment(2 * MiB).alloc("a", 512 * KiB).free("a").mark("x").step().build()

Owns: turning named blocks and segments into the columns and tables of a Trace in memory. Must not know: files, reports.
Each event comes one millisecond after the one before. Blocks are placed first fit in the segments of the current
device, stream and pool (`on(...)`), so freed addresses are used again, as an allocator does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpumem.trace import model
from gpumem.trace.model import EVENT_COLUMNS, DeviceFacts, InitialBlock, Mark, PoolRow, Reading, StreamRow, ThreadRow
from gpumem.vocabulary import NO_DEVICE, BlockState, EventIndex, EventKind, MarkKind, StackId, TraceSource

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
MS = 1_000_000
ROUND_BYTES = 512
FIRST_ADDRESS = 0x7F00_0000_0000

StackText = Sequence[tuple[str, int, str]]
Place = tuple[int, int, int]


@dataclass
class BlockMade:
    place: Place
    address: int
    requested_bytes: int
    block_bytes: int
    stack: int
    live: bool = True


@dataclass
class SegmentMade:
    place: Place
    address: int
    segment_bytes: int
    live: bool = True


class TraceBuilder:
    """Collects events; `build()` gives the Trace."""

    def __init__(self, *, block_bytes_known: bool = False, **meta: Any) -> None:
        meta.setdefault("source", TraceSource.NATIVE)
        self.meta = model.TraceMeta(program="train.py", block_bytes_known=block_bytes_known, **meta)
        self.rows: list[dict[str, int]] = []
        self.time_ns = 0
        self.device, self.stream, self.pool, self.thread, self.scope_row = 0, 0, 0, 0, 0
        self.blocks: dict[str, BlockMade] = {}
        self.segments: dict[str, SegmentMade] = {}
        self.next_address: dict[int, int] = {}
        self.frames: dict[tuple[str, int, str], int] = {("", 0, ""): 0}
        self.stacks: dict[tuple[int, int], int] = {(0, 0): 0}
        self.scopes: dict[tuple[int, str], int] = {(0, ""): 0}
        self.streams: list[StreamRow] = [StreamRow(0, 0, 0)]
        self.pools: list[PoolRow] = [PoolRow(0, 0, 0)]
        self.threads: list[ThreadRow] = [ThreadRow(0, 0, "")]
        self.marks: list[Mark] = []
        self.readings: list[Reading] = []
        self.initial_blocks: list[InitialBlock] = []
        self.facts: dict[int, DeviceFacts] = {}
        self.free_asked: set[str] = set()
        self.on()

    # ---- where and when ----

    def on(
        self, *, device: int = 0, stream: int = 0, pool: tuple[int, int] | None = None, thread: str = "main"
    ) -> Self:
        """Later events fall on this device, raw stream handle, private pool and thread."""
        self.device = device
        self.facts.setdefault(device, DeviceFacts(device, name="NVIDIA H200", capacity_bytes=140 * GiB))
        found = [row.stream for row in self.streams[1:] if (row.device, row.handle) == (device, stream)]
        self.stream = found[0] if found else len(self.streams)
        if not found:
            self.streams.append(StreamRow(self.stream, device, stream))
        pools = [row.pool for row in self.pools[1:] if (row.first, row.second) == pool]
        self.pool = 0 if pool is None else pools[0] if pools else len(self.pools)
        if pool is not None and not pools:
            self.pools.append(PoolRow(self.pool, *pool))
        threads = [row.thread for row in self.threads[1:] if row.name == thread]
        self.thread = threads[0] if threads else len(self.threads)
        if not threads:
            self.threads.append(ThreadRow(self.thread, 1000 + self.thread, thread))
        return self

    def scope(self, *names: str) -> Self:
        """Later events fall in this scope, outermost name first; none without names."""
        self.scope_row = 0
        for name in names:
            self.scope_row = self.scopes.setdefault((self.scope_row, name), len(self.scopes))
        return self

    def wait(self, nanoseconds: int) -> Self:
        """Time passes."""
        self.time_ns += nanoseconds
        return self

    def device_facts(self, device: int = 0, **facts: Any) -> Self:
        """What is known of a device."""
        self.facts[device] = replace(self.facts.get(device, DeviceFacts(device)), **facts)
        return self

    # ---- segments ----

    def segment(self, segment_bytes: int, name: str | None = None) -> Self:
        """The driver gives a segment."""
        return self._obtain(EventKind.SEGMENT_ALLOC, segment_bytes, name, gap_bytes=2 * MiB)

    def map(self, mapped_bytes: int, name: str | None = None) -> Self:
        """An expandable segment grows by a range that follows the one before on this device."""
        return self._obtain(EventKind.SEGMENT_MAP, mapped_bytes, name, gap_bytes=0)

    def release(self, name: str) -> Self:
        """A segment goes back to the driver."""
        return self._give_back(EventKind.SEGMENT_FREE, name)

    def unmap(self, name: str) -> Self:
        """A mapped range goes back to the driver."""
        return self._give_back(EventKind.SEGMENT_UNMAP, name)

    # ---- blocks ----

    def alloc(
        self, name: str, requested_bytes: int, *, stack: StackText = (), block_bytes: int | None = None, flags: int = 0
    ) -> Self:
        """A block is handed out; `name` is the test's word for it."""
        rounded = max(ROUND_BYTES, -(-requested_bytes // ROUND_BYTES) * ROUND_BYTES)
        made = block_bytes if block_bytes is not None else rounded
        place = (self.device, self.stream, self.pool)
        block = BlockMade(place, self._first_fit(place, made), requested_bytes, made, self._stack_row(stack))
        self.blocks[name] = block
        return self._block_event(EventKind.ALLOC, block, flags=flags)

    def free(self, name: str, *, flags: int = 0) -> Self:
        """A block is freed and returned at once."""
        self.blocks[name].live = False
        return self._block_event(EventKind.FREE, self.blocks[name], flags=flags)

    def free_requested(self, name: str) -> Self:
        """A block is freed but another stream still uses it."""
        self.free_asked.add(name)
        return self._block_event(EventKind.FREE_REQUESTED, self.blocks[name])

    def free_completed(self, name: str) -> Self:
        """The deferred free is over."""
        self.free_asked.discard(name)
        self.blocks[name].live = False
        return self._block_event(EventKind.FREE_COMPLETED, self.blocks[name])

    def initial(
        self,
        name: str,
        requested_bytes: int,
        *,
        segment: str = "initial",
        segment_bytes: int = 20 * MiB,
        state: BlockState = BlockState.ALLOCATED,
        expandable: bool = False,
        stack: StackText = (),
    ) -> Self:
        """A block that was there before the recording, in its segment."""
        place = (self.device, self.stream, self.pool)
        if segment not in self.segments:
            self.segments[segment] = SegmentMade(place, self._new_address(segment_bytes, 2 * MiB), segment_bytes)
        home = self.segments[segment]
        rounded = max(ROUND_BYTES, -(-requested_bytes // ROUND_BYTES) * ROUND_BYTES)
        block = BlockMade(place, self._first_fit(place, rounded), requested_bytes, rounded, self._stack_row(stack))
        block.live = state is not BlockState.FREE
        if state is BlockState.PENDING:
            self.free_asked.add(name)
        self.blocks[name] = block
        self.initial_blocks.append(
            InitialBlock(
                self.device, home.address, home.segment_bytes, self.stream, self.pool, expandable, block.address,
                rounded, requested_bytes, state, StackId(block.stack),
            )
        )  # fmt: skip
        return self

    # ---- the rest ----

    def oom(self, requested_bytes: int, *, limit: int = 0, free: int = 0, total: int = 140 * GiB) -> Self:
        """A request cannot be served."""
        return self._event(
            EventKind.OOM, address=free, requested_bytes=requested_bytes, block_bytes=limit, split_bytes=total
        )

    def empty_cache(self) -> Self:
        """The program asks for unused segments to be returned."""
        return self._event(EventKind.EMPTY_CACHE)

    def mark(self, name: str) -> Self:
        """The program's own mark."""
        return self._mark(MarkKind.MARK, name, None)

    def step(self, name: str = "") -> Self:
        """The end of a step, numbered from 0."""
        return self._mark(MarkKind.STEP, name, sum(mark.kind is MarkKind.STEP for mark in self.marks))

    def reading(self, **figures: Any) -> Self:
        """NVML is read, after the event before; fields not given are None."""
        names = ("total", "used", "free", "reserved", "process", "other_processes")
        values = {f"{name}_bytes": figures.pop(f"{name}_bytes", None) for name in names}
        after = EventIndex(len(self.rows) - 1)
        self.readings.append(Reading(self.time_ns, after, self.device, **values, **figures))
        return self

    def address_of(self, name: str) -> int:
        """Where a block lies."""
        return self.blocks[name].address

    def segment_address(self, name: str) -> int:
        """Where a segment or mapped range lies."""
        return self.segments[name].address

    def build(self) -> model.Trace:
        """The Trace; the builder may go on afterwards."""
        columns = {
            name: np.array([row.get(name, 0) for row in self.rows], dtype=dtype)
            for name, dtype in EVENT_COLUMNS.items()
        }
        frames, stacks, scopes = list(self.frames), list(self.stacks), list(self.scopes)
        facts = tuple(self.facts[device] for device in sorted(self.facts))
        return model.Trace(
            path=Path("train.4711.gpumem"),
            meta=replace(self.meta, devices=self.meta.devices or facts, duration_ns=self.time_ns),
            events=model.ColumnEvents(columns),
            frames=model.FrameTable([f[0] for f in frames], rows_of(frames, 1), [f[2] for f in frames]),
            stacks=model.StackTable(rows_of(stacks, 0), rows_of(stacks, 1)),
            scopes=model.ScopeTable(rows_of(scopes, 0), [s[1] for s in scopes]),
            streams=tuple(self.streams),
            pools=tuple(self.pools),
            threads=tuple(self.threads),
            readings=tuple(self.readings),
            marks=tuple(self.marks),
            initial_blocks=tuple(self.initial_blocks),
        )

    # ---- inside ----

    def _event(self, kind: EventKind, **columns: int) -> Self:
        self.time_ns += MS
        here = {"device": self.device, "stream": self.stream, "pool": self.pool, "thread": self.thread}
        self.rows.append(here | {"time_ns": self.time_ns, "kind": kind, "scope": self.scope_row} | columns)
        return self

    def _block_event(self, kind: EventKind, block: BlockMade, *, flags: int = 0) -> Self:
        device, stream, pool = block.place
        known = block.block_bytes if self.meta.block_bytes_known else 0
        return self._event(
            kind, device=device, stream=stream, pool=pool, address=block.address, stack=block.stack,
            requested_bytes=block.requested_bytes, block_bytes=known, flags=flags,
        )  # fmt: skip

    def _mark(self, kind: MarkKind, name: str, step: int | None) -> Self:
        position = EventIndex(len(self.rows))
        self._event(kind_of_mark(kind), device=NO_DEVICE, stream=0, pool=0, address=len(self.marks))
        self.marks.append(Mark(kind, name, step, position, self.time_ns))
        return self

    def _obtain(self, kind: EventKind, segment_bytes: int, name: str | None, *, gap_bytes: int) -> Self:
        place = (self.device, self.stream, self.pool)
        address = self._new_address(segment_bytes, gap_bytes)
        self.segments[name or f"segment {len(self.segments)}"] = SegmentMade(place, address, segment_bytes)
        return self._event(kind, address=address, requested_bytes=segment_bytes)

    def _give_back(self, kind: EventKind, name: str) -> Self:
        made = self.segments[name]
        made.live = False
        device, stream, pool = made.place
        columns = {"address": made.address, "requested_bytes": made.segment_bytes}
        return self._event(kind, device=device, stream=stream, pool=pool, **columns)

    def _new_address(self, segment_bytes: int, gap_bytes: int) -> int:
        address = self.next_address.get(self.device, FIRST_ADDRESS) + gap_bytes
        self.next_address[self.device] = address + segment_bytes
        return address

    def _first_fit(self, place: Place, block_bytes: int) -> int:
        taken = sorted((b.address, b.block_bytes) for b in self.blocks.values() if b.live and b.place[0] == place[0])
        for home in (home for home in self.segments.values() if home.live and home.place == place):
            at, end = home.address, home.address + home.segment_bytes
            for address, length in taken:
                if at <= address < end:
                    if address - at >= block_bytes:
                        return at
                    at = address + length
            if end - at >= block_bytes:
                return at
        raise AssertionError(f"no segment of {place} has {block_bytes} bytes free: add .segment(...) first")

    def _stack_row(self, stack: StackText) -> int:
        row = 0
        for frame in reversed(stack):
            frame_row = self.frames.setdefault(tuple(frame), len(self.frames))
            row = self.stacks.setdefault((row, frame_row), len(self.stacks))
        return row


def kind_of_mark(kind: MarkKind) -> EventKind:
    return EventKind.STEP if kind is MarkKind.STEP else EventKind.MARK


def rows_of(table: Sequence[tuple[Any, ...]], position: int) -> npt.NDArray[np.uint32]:
    return np.array([row[position] for row in table], dtype=np.uint32)
