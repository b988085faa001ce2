"""Random traces, and a plain model of the heap: a dictionary changed event by event.

Owns: what property tests of several parts draw from. Must not know: the streaming heap that is tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from gpumem.trace.model import EventBatch, Trace
from gpumem.vocabulary import NO_DEVICE, BlockState, EventIndex, EventKind
from trace_builder import KiB, MiB, TraceBuilder


@dataclass(frozen=True)
class CutEvents:
    """A trace's events in batches of `length`."""

    trace: Trace
    length: int

    @property
    def event_count(self) -> int:
        return self.trace.event_count

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        for first in range(first_event, end_event, self.length):
            yield from self.trace.event_batches(
                columns, first_event=first, end_event=min(end_event, first + self.length)
            )


@dataclass
class PlainHeap:
    """What a reader with a pencil would keep for one device."""

    held: int = 0
    pending: int = 0
    reserved: int = 0
    live: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    ranges: set[tuple[int, int]] = field(default_factory=set)

    def apply(self, event: int, row: dict[str, int], amount: int) -> None:
        kind, address, segment_bytes = row["kind"], row["address"], row["requested_bytes"]
        if kind == EventKind.ALLOC:
            self.live[address] = (event, amount, False)
            self.held += amount
        elif kind == EventKind.FREE:
            self.held -= self.live.pop(address)[1]
        elif kind == EventKind.FREE_REQUESTED:
            made, _, _ = self.live[address]
            self.live[address] = (made, amount, True)
            self.held, self.pending = self.held - amount, self.pending + amount
        elif kind == EventKind.FREE_COMPLETED:
            self.pending -= self.live.pop(address)[1]
        elif kind in (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP):
            self.ranges.add((address, segment_bytes))
            self.reserved += segment_bytes
        elif kind in (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP):
            self.ranges.remove((address, segment_bytes))
            self.reserved -= segment_bytes


def plain_states(trace: Trace, *, known: bool) -> dict[int, list[PlainHeap]]:
    """Per device, the plain heap before the first event and after each one."""
    names = ["kind", "device", "address", "requested_bytes", "block_bytes"]
    batch = next(trace.event_batches(names), EventBatch(EventIndex(0), 0, {name: np.zeros(0) for name in names}))
    heaps: dict[int, PlainHeap] = {}
    for block in trace.initial_blocks:
        heap = heaps.setdefault(block.device, PlainHeap())
        amount = (block.block_bytes or 0) if known else block.requested_bytes
        heap.ranges.add((block.segment_address, block.segment_bytes))
        heap.reserved = sum(length for _, length in heap.ranges)
        if block.state is not BlockState.FREE:
            heap.live[block.address] = (-1, amount, block.state is BlockState.PENDING)
            if block.state is BlockState.PENDING:
                heap.pending += amount
            else:
                heap.held += amount
    devices = (set(batch["device"].tolist()) | set(heaps)) - {NO_DEVICE}
    for device in devices:
        heaps.setdefault(device, PlainHeap())
    states = {device: [copy(heaps[device])] for device in devices}
    for event in range(trace.event_count):
        row = {name: int(batch[name][event]) for name in batch.columns}
        if row["device"] != NO_DEVICE:
            heaps[row["device"]].apply(event, row, row["block_bytes" if known else "requested_bytes"])
        for device in devices:
            states[device].append(copy(heaps[device]))
    return states


def copy(heap: PlainHeap) -> PlainHeap:
    return replace(heap, live=dict(heap.live), ranges=set(heap.ranges))


OPERATIONS = ["alloc", "alloc", "alloc", "free", "free", "later", "done", "segment", "release", "map", "unmap", "mark"]


@st.composite
def traces(draw: st.DrawFn) -> tuple[Trace, int, bool]:
    known = draw(st.booleans())
    builder = TraceBuilder(block_bytes_known=known)
    devices = draw(st.sampled_from([[0], [0, 1], [3]]))
    for device in devices:
        builder.on(device=device)
        if draw(st.booleans()):
            builder.initial(f"i{device}", 3000, segment=f"initial {device}")
            builder.initial(f"p{device}", 700, segment=f"initial {device}", state=BlockState.PENDING)
        else:
            builder.segment(20 * MiB, f"first {device}")
    for number in range(draw(st.integers(0, 60))):
        device = draw(st.sampled_from(devices))
        builder.on(device=device)
        step(builder, device, draw(st.sampled_from(OPERATIONS)), number, draw(st.integers(1, 300 * KiB)))
    return builder.build(), draw(st.integers(1, 9)), known


def step(builder: TraceBuilder, device: int, operation: str, number: int, amount: int) -> None:
    """One random operation, where the state of the builder allows it."""
    here = {name: block for name, block in builder.blocks.items() if block.place[0] == device and block.live}
    asked = {name for name in here if name in builder.free_asked}
    empty = [
        name
        for name, home in builder.segments.items()
        if home.live
        and home.place[0] == device
        and not any(home.address <= block.address < home.address + home.segment_bytes for block in here.values())
    ]
    spare = [name for name in empty if "first" not in name and "initial" not in name]
    free = sorted(set(here) - asked)
    if operation == "alloc":
        builder.alloc(f"b{number}", amount, stack=[("train.py", number % 5 + 1, "f")])
    elif operation == "free" and free:
        builder.free(free[amount % len(free)])
    elif operation == "later" and free:
        builder.free_requested(free[amount % len(free)])
    elif operation == "done" and asked:
        builder.free_completed(sorted(asked)[0])
    elif operation == "segment":
        builder.segment(2 * MiB, f"whole {number}")
    elif operation == "map":
        builder.map(2 * MiB, f"range {number}")
    elif operation == "release" and [name for name in spare if name.startswith("whole")]:
        builder.release(next(name for name in spare if name.startswith("whole")))
    elif operation == "unmap" and [name for name in spare if name.startswith("range")]:
        builder.unmap(next(name for name in spare if name.startswith("range")))
    elif operation == "mark":
        builder.mark("m")
