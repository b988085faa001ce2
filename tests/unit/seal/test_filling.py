"""Sealing fills in what native events do not say, whoever was killed and whatever came to be known late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpumem.heap.scan import scan_trace
from gpumem.heap.state import heap_at
from gpumem.seal.importing import import_trace
from gpumem.seal.journal_sealer import JournalSealer
from gpumem.trace.file import read_trace, write_trace
from gpumem.trace.model import EVENT_COLUMNS, Column, ColumnEvents, Trace
from gpumem.vocabulary import BlockState, EventIndex, EventKind
from recorded_journal import RecordedJournal
from recorded_snapshots import FACTS, recorded_values

STATES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING: "active_pending_free",
    BlockState.FREE: "inactive",
}


def columns_of(trace: Trace) -> dict[str, Column]:
    batches = list(trace.event_batches(list(EVENT_COLUMNS)))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in EVENT_COLUMNS}


def assert_as_pytorch_said(path: Path, name: str) -> Trace:
    trace = read_trace(path)
    assert trace.meta.block_bytes_known, trace.meta.notes
    (scan,) = scan_trace(trace)
    facts = FACTS[name]
    assert (scan.end.held_bytes, scan.end.reserved_bytes) == (facts["alloc"], facts["reserved"])
    return trace


@pytest.mark.parametrize("name", ["streams23_1", "fuzz_split", "fuzz_expandable"])
def test_sealed_blocks_are_those_that_pytorch_handed_out(tmp_path: Path, name: str) -> None:
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", name)
    sealer = JournalSealer(recorded.maker.path)
    while recorded.next_event < recorded.trace.event_count:
        recorded.write(1000)
        sealer.seal_full_windows()
    recorded.maker.close()
    trace = assert_as_pytorch_said(sealer.finish("exit").path, name)
    (scan,) = scan_trace(trace)
    assert (scan.held_peak.peak_bytes, scan.reserved_peak.peak_bytes) == (
        FACTS[name]["max_alloc"],
        FACTS[name]["max_reserved"],
    )
    (heap,) = heap_at(trace, EventIndex(trace.event_count - 1))
    found = [(block.address, block.block_bytes, STATES[block.state]) for one in heap.segments for block in one.blocks]
    segments = sorted(recorded_values(name)["segments"], key=lambda one: one["address"])
    assert found == [(one["address"], one["size"], one["state"]) for segment in segments for one in segment["blocks"]]


@pytest.mark.parametrize("seed", range(3))
def test_killed_sealers_lose_nothing_of_what_is_filled_in(tmp_path: Path, seed: int) -> None:
    name = "fuzz_streams"
    whole = RecordedJournal(tmp_path / "whole.gpumem.journal", name)
    whole.write()
    whole.maker.close()
    expected = columns_of(read_trace(JournalSealer(whole.maker.path).finish("exit").path))

    random = np.random.default_rng(seed)
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", name)
    while recorded.next_event < recorded.trace.event_count:
        recorded.write(int(random.integers(1, 700)))
        sealer = JournalSealer(recorded.maker.path)
        sealer.seal_full_windows()
        sealer.close()  # what it held is lost with it, as when it is killed
    recorded.maker.kill()
    trace = assert_as_pytorch_said(JournalSealer(recorded.maker.path).finish("killed").path, name)
    for column in ("block_bytes", "split_bytes", "flags", "kind", "address"):
        assert np.array_equal(columns_of(trace)[column], expected[column]), column


def test_window_waits_until_the_request_that_its_last_events_belong_to_is_known(tmp_path: Path) -> None:
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", "fuzz_cap")
    kinds = columns_of(recorded.trace)["kind"]
    event = int(np.flatnonzero(kinds == EventKind.SEGMENT_ALLOC)[5])
    for _ in range(-(event + 1) % 64):
        recorded.maker.mark("before")
    recorded.write(event + 1)
    windows = recorded.maker.raw.record_count // 64
    sealer = JournalSealer(recorded.maker.path)
    assert sealer.seal_full_windows() == windows - 1
    recorded.write(1)
    assert sealer.seal_full_windows() == 0, "the window of the alloc is open"
    recorded.write(63)
    assert sealer.seal_full_windows() == 2
    sealer.close()
    recorded.maker.close()


def initial_state(trace: Trace, event: int, position: int) -> dict[str, Any]:
    """What PyTorch's memory_snapshot() shows after `event` of a filled trace."""
    (heap,) = heap_at(trace, EventIndex(event))
    segments = [
        {
            "device": 0,
            "address": one.segment.address,
            "total_size": one.segment.segment_bytes,
            "stream": trace.streams[one.segment.stream].handle,
            "segment_pool_id": [0, 0],
            "is_expandable": one.segment.expandable,
            "blocks": [
                {
                    "address": block.address,
                    "size": block.block_bytes,
                    "requested_size": block.requested_bytes or 0,
                    "state": STATES[block.state],
                    "frames": [],
                }
                for block in one.blocks
            ],
        }
        for one in heap.segments
    ]
    return {"snapshot_event": position, "devices": [0], "segments": segments}


@pytest.mark.parametrize("told", ["before sealing", "while sealing", "at the end"])
def test_recording_begun_in_mid_run_goes_on_from_the_heap_it_found(tmp_path: Path, told: str) -> None:
    name, half = "streams23_1", 4000
    whole = RecordedJournal(tmp_path / "whole.gpumem.journal", name)
    whole.write()
    whole.maker.close()
    filled = read_trace(JournalSealer(whole.maker.path).finish("exit").path)
    last = settled_before(filled, half)

    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", name, first_event=last - 200)
    recorded.write(201)  # heard before the state was taken: superseded by it
    state = initial_state(filled, last, recorded.maker.raw.record_count)
    if told == "before sealing":
        recorded.maker.fact("initial_state", state)
    sealer = JournalSealer(recorded.maker.path)
    sealer.seal_full_windows()
    recorded.write(1000)
    sealer.seal_full_windows()
    if told == "while sealing":
        recorded.maker.fact("initial_state", state)
    recorded.write()
    if told != "at the end":
        sealer.seal_full_windows()
    else:
        recorded.maker.fact("initial_state", state)
    recorded.maker.close()
    trace = assert_as_pytorch_said(sealer.finish("exit").path, name)
    expected = {key: column[last + 1 :] for key, column in columns_of(filled).items()}
    for column in ("block_bytes", "split_bytes", "flags", "address"):
        assert np.array_equal(columns_of(trace)[column], expected[column]), column
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("a")] == ["a.gpumem"]


def settled_before(trace: Trace, event: int) -> int:
    """The last event up to `event` that no request after it explains: a free or an alloc."""
    kinds = columns_of(trace)["kind"][:event]
    return int(np.flatnonzero(np.isin(kinds, [EventKind.ALLOC, EventKind.FREE]))[-1])


def test_facts_that_change_while_sealing_have_everything_filled_in_by_the_last_ones(tmp_path: Path) -> None:
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", "fuzz_split")
    recorded.maker.fact("settings", "")
    sealer = JournalSealer(recorded.maker.path)
    recorded.write(3000)
    sealer.seal_full_windows()
    recorded.maker.fact("settings", recorded.trace.meta.settings)
    recorded.write()
    sealer.seal_full_windows()
    recorded.maker.close()
    assert_as_pytorch_said(sealer.finish("exit").path, "fuzz_split")


def test_import_fills_a_trace_sealed_without_and_leaves_a_filled_one_alone(tmp_path: Path) -> None:
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", "fuzz_split")
    recorded.write()
    recorded.maker.close()
    filled = JournalSealer(recorded.maker.path).finish("exit").path
    trace = read_trace(filled)
    write_trace(without_details(trace), tmp_path / "bare.gpumem")
    made = import_trace(tmp_path / "bare.gpumem", tmp_path / "again.gpumem", force=False)
    again = assert_as_pytorch_said(made.path, "fuzz_split")
    for name, column in columns_of(trace).items():
        assert np.array_equal(columns_of(again)[name], column), name
    assert import_trace(filled, tmp_path / "copy.gpumem", force=False).event_count == trace.event_count


def without_details(trace: Trace) -> Trace:
    """The trace as it was before anything was filled in."""
    columns = columns_of(trace)
    blank = {name: np.zeros_like(columns[name]) for name in ("block_bytes", "split_bytes", "flags")}
    meta = replace(trace.meta, block_bytes_known=False)
    return replace(trace, meta=meta, events=ColumnEvents(columns | blank))


def test_unlike_events_are_sealed_as_they_are_with_a_sentence(tmp_path: Path) -> None:
    recorded = RecordedJournal(tmp_path / "a.gpumem.journal", "gpt")
    recorded.maker.fact("settings", "no_such_setting:1")
    recorded.write(500)
    recorded.maker.close()
    trace = read_trace(JournalSealer(recorded.maker.path).finish("exit").path)
    assert not trace.meta.block_bytes_known
    assert trace.meta.devices[0].block_bytes_known_until == 0
    (note,) = trace.meta.notes
    assert note.startswith("Device 0: block sizes are not known. ")
    assert "no_such_setting" in note
