"""Columns and heaps that no allocator made, through the native replay and what-if: recordings spoilt by a seed.

Everything comes of a random.Random, so a seed names a case. What must hold: the process lives, each call ends, and what
comes back has the length it should.
"""

from __future__ import annotations

import functools
import random

import numpy as np

from gpumem.abi.policy import NO_LIMIT, DeviceOptions, EventColumns, HeapColumns, Replay
from gpumem.abi.what_if import AddressOrder, WhatIf, WhatIfOptions
from gpumem.errors import UsageError
from pytorch_recordings import events_of, heap_of, read_recording, slice_events

BASES = (
    "pending", "mempools", "split_edges64", "graph", "graph_lifecycle", "toggle", "oom", "trunc", "edge_expandable",
    "gc_splits03", "exhaust",
)  # fmt: skip
SETTINGS = (
    "", "expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4", "expandable_segments:True,max_split_size_mb:48", "throw_on_cudamalloc_oom:True",
    "per_process_memory_fraction:0.3", "backend:cudaMallocAsync", "max_split_size_mb:18446744073709551615",
)  # fmt: skip
ODD_NUMBERS = (
    0,
    1,
    2,
    255,
    511,
    512,
    513,
    1 << 20,
    (2 << 20) + 512,
    20 << 20,
    1 << 40,
    1 << 57,
    1 << 60,
    1 << 63,
    2**64 - 1,
)


@functools.cache
def base(name: str) -> tuple[EventColumns, np.ndarray, HeapColumns]:
    recording = read_recording(name)
    events, streams = events_of(recording.trace)
    return events, streams, heap_of(recording.segments)


def replay_case(seed: int) -> str:
    """Runs a case through everything; a word for how it went."""
    dice = random.Random(seed)
    events, streams, heap = base(dice.choice(BASES))
    first = dice.randrange(len(events.kind)) if dice.random() < 0.3 else 0
    events = spoilt_events(dice, slice_events(events, first, len(events.kind)))
    heap = spoilt_heap(dice, heap)
    outcome = follow(dice, events, streams, heap, is_cut=first > 0)
    serve(dice, events, streams)
    return outcome


def follow(dice: random.Random, events: EventColumns, streams: np.ndarray, heap: HeapColumns, *, is_cut: bool) -> str:
    with Replay() as replay:
        replay.add_streams(streams)
        pool_ids = np.array([0, *(dice.choice((0, 1, 2, 2**64 - 1)) for _ in range(3))], np.uint64)
        replay.add_pools(pool_ids, pool_ids[::-1].copy())
        try:
            replay.add_device(
                DeviceOptions(
                    0,
                    dice.choice(SETTINGS),
                    dice.choice((None, NO_LIMIT, *ODD_NUMBERS, 2_000_000_000)),
                    dice.choice((None, *ODD_NUMBERS, 150_109_880_320)),
                    truncated=is_cut or dice.random() < 0.3,
                    check_each_event=dice.random() < 0.2,
                )
            )
        except UsageError:
            return "settings"
        adoption = dice.random()
        if adoption < 0.6 and replay.adopt_from_end(0, heap, events):
            return "no start"
        if adoption > 0.8 and not replay.adopt(0, heap):
            return "no heap"
        taken = 0
        piece = dice.choice((1, 7, 1 << 20))
        for begin in range(0, len(events.kind), piece):
            replay.feed(slice_events(events, begin, begin + piece))
            if dice.random() < 0.3:
                taken += len(replay.take().flags)
        replay.finish()
        taken += len(replay.take().flags)
        assert taken == len(events.kind), "every event has its details in the end"
        result = replay.result(0)
        assert len(replay.empty_caches(0)) == result.empty_cache_count
        replay.heap(0)
        return "exact" if result.exact else "differs"


def serve(dice: random.Random, events: EventColumns, streams: np.ndarray) -> None:
    memory_bytes = dice.choice((*ODD_NUMBERS, 1 << 30, 80 << 30))
    limit_bytes = dice.choice((NO_LIMIT, *ODD_NUMBERS))
    order = dice.choice(list(AddressOrder))
    try:
        run = WhatIf(WhatIfOptions(dice.choice(SETTINGS), memory_bytes, limit_bytes, address_order=order))
    except UsageError:
        return
    with run:
        run.add_streams(streams)
        run.add_empty_caches(np.sort(np.array([dice.randrange(4000) for _ in range(3)], np.uint64)))
        run.feed(events)
        result = run.result()
        assert len(run.oom_positions()) == result.ooms
        assert result.reserved_bytes_end <= result.reserved_bytes_peak <= memory_bytes


def spoilt_events(dice: random.Random, events: EventColumns) -> EventColumns:
    """The events with some rows repeated, left out or exchanged, and some cells of other values."""
    rows = np.arange(len(events.kind))
    for _ in range(dice.choice((0, 0, 0, 1, 3))):
        at, count = dice.randrange(len(rows)), dice.randrange(1, 6)
        change = dice.randrange(3)
        if change == 0:
            rows = np.delete(rows, slice(at, at + count))
        elif change == 1:
            rows = np.insert(rows, dice.randrange(len(rows)), rows[at : at + count])
        else:
            other = dice.randrange(len(rows))
            rows[at], rows[other] = rows[other], rows[at]
        if not len(rows):
            rows = np.zeros(1, np.int64)
    columns = [getattr(events, name)[rows].copy() for name in EventColumns.__slots__]
    for _ in range(dice.choice((0, 0, 0, 1, 2, 8, 40))):
        column = dice.choice(columns)
        column[dice.randrange(len(column))] = odd_number(dice, column)
    return EventColumns(*columns)


def spoilt_heap(dice: random.Random, heap: HeapColumns) -> HeapColumns:
    """The heap with some cells of other values."""
    parts = []
    for part in (heap.segments, heap.blocks):
        parts.append({name: getattr(part, name).copy() for name in type(part).__slots__})
    for _ in range(dice.choice((0, 0, 0, 1, 2, 8))):
        column = dice.choice(list(dice.choice(parts).values()))
        if len(column):
            column[dice.randrange(len(column))] = odd_number(dice, column)
    return HeapColumns(type(heap.segments)(**parts[0]), type(heap.blocks)(**parts[1]))


def odd_number(dice: random.Random, column: np.ndarray) -> int:
    """A number that the column can hold: odd, or another row's, or near it."""
    way = dice.random()
    bound = int(np.iinfo(column.dtype).max)
    if way < 0.4:
        return dice.choice(ODD_NUMBERS) & bound
    other = int(dice.choice(column.tolist()))
    if way < 0.7:
        return other
    return (other + dice.choice((-1, 1, 512, -512, 1 << 20, 2 << 20, -(2 << 20)))) & bound
