"""A trace in which nothing repeats: random bytes, lifetimes, stacks and names, the worst that a page can be made of.

Owns: making it as whole columns, so that it may be large. Must not know: pages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpumem.trace.model import (
    EVENT_COLUMNS,
    ColumnEvents,
    DeviceFacts,
    FrameTable,
    Mark,
    Reading,
    ScopeTable,
    StackTable,
    StreamRow,
    ThreadRow,
    Trace,
    TraceMeta,
)
from gpumem.trace.stack_links import link_stacks
from gpumem.vocabulary import EventIndex, EventKind, MarkKind, TraceSource

SEGMENT_ADDRESS = 1 << 44
DURATION_NS = 10**12


def busy_trace(alloc_count: int, *, rank: int = 0, stack_count: int = 3000, frame_count: int = 10_000) -> Trace:
    """One segment, in which every allocation has a place of its own; nine of ten are freed."""
    random = np.random.default_rng(rank)
    requested = random.integers(1, 1 << 26, alloc_count)
    block = -(-requested // 512) * 512
    address = SEGMENT_ADDRESS + np.cumsum(block) - block
    made_ns = np.sort(random.integers(0, DURATION_NS, alloc_count))
    is_freed = random.random(alloc_count) < 0.9
    freed_ns = (made_ns + random.integers(1, DURATION_NS // 10, alloc_count))[is_freed]
    order = np.argsort(np.concatenate([[0], made_ns, freed_ns]), kind="stable")
    stack = random.integers(1, stack_count, alloc_count)
    kinds = [[EventKind.SEGMENT_ALLOC], np.full(alloc_count, EventKind.ALLOC), np.full(len(freed_ns), EventKind.FREE)]
    values = {
        "time_ns": np.concatenate([[0], made_ns, freed_ns]),
        "kind": np.concatenate(kinds),
        "address": np.concatenate([[SEGMENT_ADDRESS], address, address[is_freed]]),
        "requested_bytes": np.concatenate([[block.sum()], requested, requested[is_freed]]),
        "block_bytes": np.concatenate([[0], block, block[is_freed]]),
        "stack": np.concatenate([[0], stack, stack[is_freed]]),
        "stream": np.ones(len(order)),
        "thread": np.ones(len(order)),
    }
    nothing = np.zeros(len(order))
    columns = {name: values.get(name, nothing)[order].astype(dtype) for name, dtype in EVENT_COLUMNS.items()}
    frames, stacks = _frames_and_stacks(random, stack_count, frame_count)
    return Trace(
        Path(f"busy.rank{rank}.gpumem"),
        _meta(rank, int(values["time_ns"].max())),
        ColumnEvents(columns),
        frames,
        stacks,
        ScopeTable(np.zeros(1, np.uint32), [""]),
        [StreamRow(0, 0, 0), StreamRow(1, 0, 0)],
        [],
        [ThreadRow(0, 0, ""), ThreadRow(1, 1000, "main")],
        [_reading(random, int(time_ns), columns["time_ns"]) for time_ns in np.linspace(0, DURATION_NS, 2000)],
        [Mark(MarkKind.STEP, "", step, EventIndex(step), int(columns["time_ns"][step])) for step in range(alloc_count)],
    )


def _meta(rank: int, duration_ns: int) -> TraceMeta:
    card = DeviceFacts(0, name="NVIDIA H200", capacity_bytes=140 << 30)
    return TraceMeta(
        TraceSource.NATIVE,
        program="busy.py",
        rank=rank,
        devices=(card,),
        duration_ns=duration_ns,
        block_bytes_known=True,
    )


def _frames_and_stacks(
    random: np.random.Generator, stack_count: int, frame_count: int
) -> tuple[FrameTable, StackTable]:
    depths = random.integers(5, 40, stack_count)
    flat = random.integers(1, frame_count, int(depths.sum())).astype(np.uint32)
    words = ["".join(map(chr, letters)) for letters in random.integers(97, 123, (frame_count, 25))]
    files = ["", *(f"/home/anna/{word}/model.py" for word in words[1:])]
    table = FrameTable(files, np.arange(frame_count, dtype=np.uint32), ["", *words[:0:-1]])
    return table, link_stacks(flat, depths.astype(np.int64))


def _reading(random: np.random.Generator, time_ns: int, times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Reading:
    used, process = (int(figure) for figure in random.integers(1 << 30, 100 << 30, 2))
    event = EventIndex(int(np.searchsorted(times, time_ns, side="right")) - 1)
    return Reading(time_ns, event, 0, 150 << 30, used, (150 << 30) - used, 1 << 29, process, None, {})
