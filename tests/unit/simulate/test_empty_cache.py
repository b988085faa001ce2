"""Recorded empty_cache calls are decisions: what they complete and release is held to the recording."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpumem
from gpumem.abi.policy import NO_LIMIT, DeviceOptions, ReplayResult
from gpumem.allocator import Allocator
from gpumem.analyses.replay import Wish, find_replay
from gpumem.simulate.replay import REPLAY_COLUMNS, TraceFollower
from gpumem.trace.model import EVENT_COLUMNS, ColumnEvents, Trace
from gpumem.vocabulary import EventKind

MIB = 1 << 20


def record(folder: Path, settings: str = "") -> Trace:
    """A program whose third call of empty_cache waits for a stream and gives two segments back."""
    path = folder / "t.gpumem"
    with (
        gpumem.record(path, stacks=False),
        Allocator("simulated", settings=settings, memory_bytes=1 << 30) as gpu,
    ):
        assert gpu._native is not None
        gpu._native.hold_streams(True)
        gpu.empty_cache()
        kept = gpu.alloc(1000)
        gpu.empty_cache()
        first, second = gpu.alloc(30 * MIB), gpu.alloc(50 * MIB)
        gpu.record_stream(first, 7)
        gpu.free(first)
        gpu.free(second)
        gpu.empty_cache()
        gpu.free(gpu.alloc(40 * MIB))
        gpu.free(kept)
    return gpumem.open(path)


def follow(trace: Trace, batch_rows: int = 1 << 20) -> ReplayResult:
    follower = TraceFollower(trace, [DeviceOptions(0, trace.meta.settings, NO_LIMIT, 1 << 30)], pools_recorded=True)
    try:
        for first in range(0, trace.event_count, batch_rows):
            for batch in trace.event_batches(
                REPLAY_COLUMNS, first_event=first, end_event=min(first + batch_rows, trace.event_count)
            ):
                follower.feed(batch)
                follower.take()
        follower.finish()
        return follower.results().results[0]
    finally:
        follower.close()


def without(trace: Trace, row: int) -> Trace:
    """The trace with one event left out."""
    batches = list(trace.event_batches(tuple(EVENT_COLUMNS)))
    columns = {name: np.delete(np.concatenate([batch[name] for batch in batches]), row) for name in EVENT_COLUMNS}
    return replace(trace, events=ColumnEvents(columns))


def kinds_of(trace: Trace) -> list[EventKind]:
    return [EventKind(kind) for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 1 << 20])
def test_every_followed_event_is_a_decision_wherever_batches_end(
    tmp_path: Path, settings: str, batch_rows: int
) -> None:
    trace = record(tmp_path, settings)
    kinds = kinds_of(trace)
    result = follow(trace, batch_rows)
    assert kinds.count(EventKind.EMPTY_CACHE) == 4
    assert (result.exact, result.reason, result.assumptions, result.empty_cache_count) == (True, "", 0, 0)
    assert result.decisions == result.events == len(kinds) - kinds.count(EventKind.SEGMENT_REQUEST)


def test_a_release_more_or_less_than_recorded_is_a_difference(tmp_path: Path) -> None:
    trace = record(tmp_path)
    kinds = kinds_of(trace)
    call = [row for row, kind in enumerate(kinds) if kind is EventKind.EMPTY_CACHE][2]
    assert kinds[call + 1 : call + 4] == [EventKind.FREE_COMPLETED, EventKind.SEGMENT_FREE, EventKind.SEGMENT_FREE]
    # The request to the driver that follows next is none of the allocator's decisions.
    less = follow(without(trace, call + 3))
    assert (less.exact, less.reason, less.difference_position) == (False, "another event follows", call + 4)
    # Without the free the block is still held, and cannot have gone back.
    freed = max(row for row in range(call) if kinds[row] is EventKind.FREE)
    more = follow(without(trace, freed))
    assert (more.exact, more.reason) == (False, "the call gave more back when recorded")
    assert more.difference_position == call + 2


def test_a_recording_of_random_calls_is_exact_with_nothing_left_undecided(tmp_path: Path) -> None:
    chance = random.Random(5)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False), Allocator("simulated", memory_bytes=1 << 30) as gpu:
        live: list[int] = []
        for _ in range(600):
            if chance.random() < 0.55:
                live.append(gpu.alloc(round(2 ** chance.uniform(4, 23))))
            elif live:
                gpu.free(live.pop(chance.randrange(len(live))))
            if chance.random() < 0.1:
                gpu.empty_cache()
    findings = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({}))
    check = findings.devices[0].check
    assert check.exact
    assert check.decision_count == check.event_count > 700
    assert check.not_recorded == ()
