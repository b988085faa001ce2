"""Replays every recording that PyTorch made, decision by decision, and holds the replayed heap to PyTorch's own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpumem.abi.policy import HeapColumns, ReplayAssumption, ReplayResult
from gpumem.vocabulary import EventKind
from pytorch_recordings import Recording, events_of, heap_of, read_recording, replay_recording
from recorded_snapshots import FACTS, NAMES

NOT_WHOLLY_RECORDED = {"trunc", "graph_lifecycle", "mempools", "toggle"}
WHOLE = [name for name in NAMES if name not in NOT_WHOLLY_RECORDED]
POOLS = {"graph", "mempool"}


def assert_same_heap(replayed: HeapColumns, recorded: HeapColumns, *, last_requests: bool) -> None:
    for name in ("address", "bytes", "stream", "pool_first", "pool_second", "is_small", "is_expandable"):
        assert np.array_equal(getattr(replayed.segments, name), getattr(recorded.segments, name)), name
    for name in ("address", "bytes", "state"):
        assert np.array_equal(getattr(replayed.blocks, name), getattr(recorded.blocks, name)), name
    # A free block keeps what its last owner had asked for; before a history begins nobody knows that.
    counts = np.ones(len(recorded.blocks.state), bool) if last_requests else recorded.blocks.state != 0
    assert np.array_equal(replayed.blocks.requested_bytes[counts], recorded.blocks.requested_bytes[counts])


def assert_pytorch_figures(result: ReplayResult, recording: Recording) -> None:
    facts = FACTS.get(recording.name)
    if facts is None:
        return
    assert result.allocated_bytes_end == facts["alloc"]
    assert result.reserved_bytes_end == facts["reserved"]
    assert result.reserved_bytes_peak == facts["max_reserved"]
    assert result.allocated_bytes_peak == facts["max_alloc"]
    assert result.alloc_retries == facts.get("retries", result.alloc_retries)
    assert result.ooms == facts.get("num_ooms", result.ooms)


@pytest.mark.parametrize("name", WHOLE)
def test_every_decision_is_predicted_and_the_heap_ends_as_recorded(name: str) -> None:
    recording = read_recording(name)
    with replay_recording(recording) as replay:
        result = replay.result(0)
        assert result.exact, result
        assert_same_heap(replay.heap(0), heap_of(recording.segments), last_requests=True)
        assert_pytorch_figures(result, recording)
        allowed = ReplayAssumption.EMPTY_CACHE
        if name in POOLS:
            allowed |= ReplayAssumption.POOLS
        if name == "exhaust":
            allowed |= ReplayAssumption.DRIVER_REFUSED
        assert result.assumptions | allowed == allowed


@pytest.mark.parametrize("name", WHOLE)
def test_without_a_known_limit_every_address_is_exact_and_the_limit_is_bracketed(name: str) -> None:
    recording = read_recording(name)
    with replay_recording(recording, limit_known=False) as replay:
        result = replay.result(0)
        assert result.exact, result
        assert_same_heap(replay.heap(0), heap_of(recording.segments), last_requests=True)
        if name != "exhaust":
            assert result.limit_bytes_min <= recording.limit_bytes < result.limit_bytes_max or (
                recording.limit_bytes == 2**64 - 1
            )


@pytest.mark.parametrize(
    ("name", "assumed"),
    [
        ("graph_lifecycle", ReplayAssumption.LOST_POOLS),
        ("mempools", ReplayAssumption.POOLS),
        ("toggle", ReplayAssumption.SETTINGS_CHANGED),
    ],
)
def test_what_was_not_recorded_is_inferred_and_said(name: str, assumed: ReplayAssumption) -> None:
    recording = read_recording(name)
    with replay_recording(recording) as replay:
        result = replay.result(0)
        assert result.exact, result
        assert result.assumptions & assumed
        assert_same_heap(replay.heap(0), heap_of(recording.segments), last_requests=True)


def test_a_truncated_history_replays_from_what_was_live() -> None:
    recording = read_recording("trunc")
    with replay_recording(recording) as replay:
        result = replay.result(0)
        assert result.exact, result
        assert_same_heap(replay.heap(0), heap_of(recording.segments), last_requests=False)
        assert result.allocated_bytes_end == FACTS["trunc"]["alloc"]
        assert result.reserved_bytes_end == FACTS["trunc"]["reserved"]
        # The peak fell before the history began: it is not known, only bounded from below.
        assert result.allocated_bytes_peak <= FACTS["trunc"]["max_alloc"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_history_cut_anywhere_replays_exactly(name: str) -> None:
    recording = read_recording(name)
    dice = random.Random(name)
    for _ in range(12):
        cut = dice.randrange(1, len(recording.trace))
        with replay_recording(recording, first_entry=cut, limit_known=dice.random() < 0.5) as replay:
            result = replay.result(0)
            assert result.exact, (cut, result)
            assert_same_heap(replay.heap(0), heap_of(recording.segments), last_requests=False)


@pytest.mark.parametrize("name", ["streams23_1", "fuzz_cap_split", "pending"])
def test_events_fed_in_pieces_give_the_same_details(name: str) -> None:
    recording = read_recording(name)
    with replay_recording(recording) as whole, replay_recording(recording, batch_events=7) as pieces:
        one, many = whole.take(), pieces.take()
        assert np.array_equal(one.block_bytes, many.block_bytes)
        assert np.array_equal(one.split_bytes, many.split_bytes)
        assert np.array_equal(one.flags, many.flags)
        assert whole.result(0) == pieces.result(0)


@pytest.mark.parametrize("name", ["gpt", "fuzz_expandable", "streams"])
def test_details_add_up_to_the_heap(name: str) -> None:
    recording = read_recording(name)
    events, _ = events_of(recording.trace)
    with replay_recording(recording) as replay:
        details = replay.take()
        assert len(details.block_bytes) == len(events.kind)
        allocs = events.kind == EventKind.ALLOC
        frees = (events.kind == EventKind.FREE) | (events.kind == EventKind.FREE_REQUESTED)
        allocated = details.block_bytes[allocs].sum() - details.block_bytes[frees].sum()
        assert allocated == replay.result(0).allocated_bytes_end
        assert (details.block_bytes[allocs] >= events.requested_bytes[allocs]).all()


def test_a_changed_address_is_named_as_the_first_difference() -> None:
    recording = read_recording("gpt")
    trace = [dict(entry) for entry in recording.trace]
    changed = next(i for i, entry in enumerate(trace) if i > 500 and entry["action"] == "alloc")
    trace[changed]["addr"] += 512
    damaged = Recording("gpt", trace, recording.segments, recording.settings)
    with replay_recording(damaged) as replay:
        result = replay.result(0)
        assert not result.exact
        assert (result.expected_kind, result.got_kind) == (EventKind.ALLOC, EventKind.ALLOC)
        assert result.expected_address == result.got_address + 512
        assert result.reason == "the address differs"
