"""Makes a large trace of a recorded one: its balanced pairs again and again, for measuring readers and reports.

    python benchmarks/make_trace.py [--sample train.gpumem] [--events 10000000] -o large.gpumem
    python benchmarks/make_trace.py --events 200000 --live-stacks 30000 -o stacks.gpumem

The sample comes first, whole. Then its balanced pairs are repeated (allocations freed within the sample, whose place
nothing lives in at its end) until there are enough events: times shifted on, every eighth repetition with other sizes,
the end of a step after each. Without a sample, training steps of about 3,000 events and 600 stacks are made up; with
--live-stacks as many more, each of which allocates one block that is never freed. Those of two traces are the same as
far as both have them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpumem.importers.open import open_trace
from gpumem.trace.file import write_trace
from gpumem.trace.model import (
    EVENT_COLUMNS,
    Column,
    ColumnEvents,
    DeviceFacts,
    EventBatch,
    FrameTable,
    Mark,
    PoolRow,
    ScopeTable,
    StreamRow,
    ThreadRow,
    Trace,
    TraceMeta,
)
from gpumem.trace.stack_links import link_stacks
from gpumem.vocabulary import NO_DEVICE, EventIndex, EventKind, MarkKind, TraceSource

Columns = dict[str, Column]
Rows = npt.NDArray[np.int64]
OTHER_SIZES_EVERY = 8
STEP_EVENTS = 3000
STACKS = 600
FRAMES = 2000
SEGMENT_BYTES = 20 << 20


@dataclass(frozen=True, slots=True)
class RepeatedEvents:
    """The sample's events, then repetitions of `pairs`, each ended by a step."""

    sample: Columns
    pairs: Columns
    repetitions: int
    first_mark: int

    @property
    def event_count(self) -> int:
        return len(self.sample["kind"]) + self.repetitions * len(self.pairs["kind"])

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        """The whole trace, one repetition a batch (a range is not asked for here)."""
        assert (first_event, end_event) == (0, self.event_count)
        yield EventBatch(EventIndex(0), len(self.sample["kind"]), {name: self.sample[name] for name in columns})
        first = len(self.sample["kind"])
        for number in range(self.repetitions):
            chosen = self.repetition(number)
            yield EventBatch(EventIndex(first), len(chosen["kind"]), {name: chosen[name] for name in columns})
            first += len(chosen["kind"])

    def repetition(self, number: int) -> Columns:
        """The columns of one repetition."""
        chosen = dict(self.pairs)
        chosen["time_ns"] = self.pairs["time_ns"] + self.time_shift(number)
        if number % OTHER_SIZES_EVERY == OTHER_SIZES_EVERY - 1:
            for name in ("requested_bytes", "block_bytes"):  # smaller ones, so that they fit where the others were
                smaller = self.pairs[name] - self.pairs[name] // np.uint64(8)
                chosen[name] = np.where(self.pairs["device"] == NO_DEVICE, self.pairs[name], smaller)
        for name, value in (("address", self.first_mark + number), ("requested_bytes", number)):
            chosen[name] = chosen[name].copy()
            chosen[name][-1] = value
        return chosen

    def time_shift(self, number: int) -> int:
        """Nanoseconds that a repetition comes after the sample."""
        return int((number + 1) * (self.sample["time_ns"].max() + 1_000_000))


def make_large_trace(sample: Trace, event_count: int) -> Trace:
    """A trace of about `event_count` events made of `sample`."""
    batches = list(sample.event_batches(list(EVENT_COLUMNS)))
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in EVENT_COLUMNS}
    pairs = {name: np.append(column, column[:1]) for name, column in find_balanced_pairs(columns).items()}
    end_of_step = dict.fromkeys(EVENT_COLUMNS, 0) | {"kind": EventKind.STEP, "device": NO_DEVICE}
    for name, value in end_of_step.items():
        pairs[name][-1] = value
    pairs["time_ns"][-1] = columns["time_ns"].max()
    repetitions = max(0, event_count - len(columns["kind"])) // len(pairs["kind"])
    events = RepeatedEvents(columns, pairs, repetitions, len(sample.marks))
    first = len(columns["kind"]) - 1
    marks = [
        Mark(
            MarkKind.STEP,
            "",
            number,
            EventIndex(first + (number + 1) * len(pairs["kind"])),
            int(pairs["time_ns"][-1]) + events.time_shift(number),
        )
        for number in range(repetitions)
    ]
    duration_ns = max(sample.meta.duration_ns, marks[-1].time_ns if marks else 0)
    meta = replace(sample.meta, duration_ns=duration_ns)
    return replace(sample, meta=meta, events=events, marks=[*sample.marks, *marks])


def find_balanced_pairs(columns: Columns) -> Columns:
    """The allocations that are freed within the columns, with their frees, where nothing lives at the end."""
    live: dict[tuple[int, int], int] = {}
    pair_of: dict[int, int] = {}
    rows = zip(columns["kind"].tolist(), columns["device"].tolist(), columns["address"].tolist(), strict=True)
    for event, (kind, device, address) in enumerate(rows):
        if kind == EventKind.ALLOC:
            live[device, address] = event
        elif kind == EventKind.FREE and (device, address) in live:
            pair_of[live.pop((device, address))] = event
    kept = np.array(sorted([*pair_of, *pair_of.values()]), np.int64)
    ends = np.array(sorted(live.values()), np.int64)
    starts = columns["address"].astype(np.int64)
    stops = starts + np.maximum(columns["requested_bytes"], 1).astype(np.int64)
    if len(ends):
        order = ends[np.argsort(starts[ends])]
        before = np.searchsorted(starts[order], stops[kept], "left") - 1
        free = (before < 0) | (np.maximum.accumulate(stops[order])[np.maximum(before, 0)] <= starts[kept])
        allocs_kept = set(kept[free].tolist())
        kept = np.array(
            sorted(e for a, f in pair_of.items() if a in allocs_kept and f in allocs_kept for e in (a, f)), np.int64
        )
    return {name: column[kept] for name, column in columns.items()}


def make_sample(step_count: int = 4, live_stacks: int = 0) -> Trace:
    """Training steps made up: balanced, with sizes, stacks and gaps in time as training has them."""
    random, random_live = np.random.default_rng(11), np.random.default_rng(12)
    random_sizes = np.random.default_rng(13)
    columns = {name: [] for name in EVENT_COLUMNS}  # type: dict[str, list[int]]
    heap = _Heap(columns)
    sizes = np.sort(random.integers(1, 3000, 150) * 512 + random.integers(0, 512, 150))
    calls = list(
        zip(random.choice(sizes, STEP_EVENTS // 2), random.integers(1, STACKS + 1, STEP_EVENTS // 2), strict=True)
    )
    for _ in range(200):
        heap.alloc(int(random.choice(sizes)) * 4, 1)  # parameters, never freed
    for number, size in enumerate(random_sizes.choice(sizes, live_stacks).tolist()):
        heap.alloc(size, STACKS + 1 + number)
    for step in range(step_count):
        waiting: list[int] = []
        for request, stack in calls:
            waiting.append(heap.alloc(int(request), int(stack)))
            while len(waiting) > 400 or (waiting and random.random() < 0.35):
                heap.free(waiting.pop(), int(random.integers(1, STACKS + 1)))
        while waiting:
            heap.free(waiting.pop(), int(random.integers(1, STACKS + 1)))
        heap.event(EventKind.STEP, NO_DEVICE, step, step, 0)
    count = len(columns["kind"])
    columns["time_ns"] = np.cumsum(random.gamma(0.7, 4000, count).astype(np.int64)).tolist()
    arrays: Columns = {name: np.array(values, EVENT_COLUMNS[name]) for name, values in columns.items()}
    steps = np.flatnonzero(arrays["kind"] == EventKind.STEP)
    marks = [Mark(MarkKind.STEP, "", n, EventIndex(int(e)), int(arrays["time_ns"][e])) for n, e in enumerate(steps)]
    stacks = [_frames_of_stack(random, depth) for depth in random.integers(20, 41, STACKS)]
    for _ in range(live_stacks):
        stacks.append(_frames_of_stack(random_live, int(random_live.integers(20, 41))))
    return _as_trace(arrays, marks, stacks)


class _Heap:
    """Addresses by size, used again last in first out, as a caching allocator's are."""

    def __init__(self, columns: dict[str, list[int]]) -> None:
        self._columns = columns
        self._free: dict[int, list[int]] = {}
        self._size_of: dict[int, tuple[int, int]] = {}
        self._next = 0x7F0000000000
        self._end = self._next

    def alloc(self, request: int, stack: int) -> int:
        block = -(-request // 512) * 512
        if self._free.get(block):
            address = self._free[block].pop()
        else:
            if self._next + block > self._end:
                segment = max(SEGMENT_BYTES, -(-block // SEGMENT_BYTES) * SEGMENT_BYTES)
                self._next = self._end = self._end + (2 << 20)
                self.event(EventKind.SEGMENT_ALLOC, 0, self._end, segment, stack)
                self._end += segment
            address, self._next = self._next, self._next + block
        self._size_of[address] = request, block
        self.event(EventKind.ALLOC, 0, address, request, stack)
        return address

    def free(self, address: int, stack: int) -> None:
        request, block = self._size_of[address]
        self._free.setdefault(block, []).append(address)
        self.event(EventKind.FREE, 0, address, request, stack)

    def event(self, kind: EventKind, device: int, address: int, requested_bytes: int, stack: int) -> None:
        values = {"kind": kind, "device": device, "address": address, "requested_bytes": requested_bytes}
        values |= {"stack": stack, "stream": int(device == 0), "thread": 1 + int(kind == EventKind.FREE)}
        for name, column in self._columns.items():
            column.append(values.get(name, 0))


def _frames_of_stack(random: np.random.Generator, depth: int) -> Rows:
    """The frames of a stack, innermost first: outer ones are few, inner ones many, as in programs."""
    level = np.arange(depth)[::-1]
    return np.minimum(1 + level * 8 + random.integers(0, 1 + level // 4), FRAMES - 1)


def _as_trace(columns: Columns, marks: list[Mark], stacks: Sequence[Rows]) -> Trace:
    files = ["", *(f"/home/anna/train/module_{n % 40}.py" for n in range(1, FRAMES))]
    lines = np.arange(FRAMES, dtype=np.uint32) % 700
    device = DeviceFacts(0, uuid="GPU-0", nvml_index=0, name="made up", capacity_bytes=80 << 30)
    return Trace(
        path=Path("sample.gpumem"),
        meta=TraceMeta(
            source=TraceSource.NATIVE, program="train.py", devices=(device,), duration_ns=int(columns["time_ns"].max())
        ),
        events=ColumnEvents(columns),
        frames=FrameTable(files, lines, ["", *(f"function_{n}" for n in range(1, FRAMES))]),
        stacks=link_stacks(np.concatenate(stacks).astype(np.uint32), np.array([len(one) for one in stacks])),
        scopes=ScopeTable(np.zeros(1, np.uint32), [""]),
        streams=[StreamRow(0, 0, 0), StreamRow(1, 0, 0)],
        pools=[PoolRow(0, 0, 0)],
        threads=[ThreadRow(0, 0, ""), ThreadRow(1, 100, "main"), ThreadRow(2, 101, "autograd")],
        marks=marks,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a large trace of a sample.")
    parser.add_argument("--sample", type=Path, help="a .gpumem; made up without it")
    parser.add_argument("--live-stacks", type=int, default=0, help="stacks more, of one block each, where made up")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    sample = open_trace(options.sample) if options.sample else make_sample(live_stacks=options.live_stacks)
    trace = make_large_trace(sample, options.events)
    write_trace(trace, options.output, force=True)
    file_bytes = options.output.stat().st_size
    print(f"{options.output}: {trace.event_count:,} events, {file_bytes / trace.event_count:.2f} bytes an event")


if __name__ == "__main__":
    main()
