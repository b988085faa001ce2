"""Block details filled in: as events stream past, up to a difference, and for the heap at a truncated start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem.abi.policy import NO_LIMIT, DeviceOptions
from gpumem.heap.scan import scan_trace
from gpumem.importers.pytorch_snapshot import PytorchSnapshot, read_pytorch_snapshot
from gpumem.simulate.fill import EventFiller
from gpumem.simulate.fill_snapshot import fill_snapshot
from gpumem.simulate.replay import EventFollower
from gpumem.trace.model import EVENT_COLUMNS, Column, ColumnEvents, StreamRow, Trace
from gpumem.vocabulary import NO_DEVICE, BlockState, EventKind
from recorded_snapshots import FACTS, recording_path
from trace_builder import KiB, MiB


def columns_of(trace: Trace) -> dict[str, Column]:
    assert isinstance(trace.events, ColumnEvents)
    return dict(trace.events.columns)


def with_columns(snapshot: PytorchSnapshot, **changed: Column) -> PytorchSnapshot:
    events = ColumnEvents(columns_of(snapshot.trace) | changed)
    return replace(snapshot, trace=replace(snapshot.trace, events=events))


def rows(count: int, **values: object) -> dict[str, Column]:
    """`count` events of device 0 on stream row 1; `values` are columns or numbers."""
    columns = {name: np.zeros(count, dtype) for name, dtype in EVENT_COLUMNS.items()}
    columns["stream"][:] = 1
    for name, value in values.items():
        columns[name][:] = value  # type: ignore[call-overload]
    return columns


def followed_devices(*devices: int) -> EventFiller:
    follower = EventFollower(pools_recorded=True)
    follower.know_rows([StreamRow(0, 0, 0), StreamRow(1, 0, 0)], [])
    for device in devices:
        follower.add_device(DeviceOptions(device, "", NO_LIMIT, 80 << 30), None)
    return EventFiller(follower, held_rows_max=8)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_details_are_the_same_however_events_are_cut(step: int) -> None:
    snapshot = read_pytorch_snapshot(recording_path("pending"))
    whole = columns_of(fill_snapshot(snapshot))
    columns = columns_of(snapshot.trace)
    follower = EventFollower(pools_recorded=False)
    follower.know_rows(snapshot.trace.streams, snapshot.trace.pools)
    follower.add_device(DeviceOptions(0), None)
    filler = EventFiller(follower)
    for first in range(0, snapshot.trace.event_count, step):
        filler.feed({name: column[first : first + step] for name, column in columns.items()})
    filler.finish()
    for name in EVENT_COLUMNS:
        assert np.array_equal(np.concatenate([one[name] for one in filler.ready]), whole[name]), name


def test_blocks_are_known_up_to_the_first_difference_and_null_from_there() -> None:
    snapshot = read_pytorch_snapshot(recording_path("gpt"))
    columns = columns_of(snapshot.trace)
    changed = int(np.flatnonzero(columns["kind"] == EventKind.ALLOC)[300])
    addresses = columns["address"].copy()
    addresses[changed] += 512
    trace = fill_snapshot(with_columns(snapshot, address=addresses))
    assert not trace.meta.block_bytes_known
    assert trace.meta.devices[0].block_bytes_known_until == changed
    filled, whole = columns_of(trace), columns_of(fill_snapshot(snapshot))
    assert np.array_equal(filled["block_bytes"][:changed], whole["block_bytes"][:changed])
    assert not filled["block_bytes"][changed:].any()
    (note,) = [note for note in trace.meta.notes if f"up to event {changed} only" in note]
    assert "the address differs" in note
    assert scan_trace(trace)[0].requested_peak.peak_bytes > 0


def test_events_that_no_allocator_made_are_left_as_they_are() -> None:
    snapshot = read_pytorch_snapshot(recording_path("gpt"))
    trace = fill_snapshot(with_columns(snapshot, requested_bytes=columns_of(snapshot.trace)["requested_bytes"] + 1))
    assert trace.meta.devices[0].block_bytes_known_until == 0
    assert not columns_of(trace)["block_bytes"].any()


def test_heap_that_replay_does_not_end_with_is_said_and_nothing_is_filled_in() -> None:
    snapshot = read_pytorch_snapshot(recording_path("decode"))
    last = snapshot.trace.event_count - 1
    columns = {name: column[:last] for name, column in columns_of(snapshot.trace).items()}
    cut = replace(snapshot, trace=replace(snapshot.trace, events=ColumnEvents(columns)))
    trace = fill_snapshot(cut)
    assert trace.meta.block_bytes_known == (columns_of(snapshot.trace)["kind"][last] == EventKind.SNAPSHOT)


def test_heap_at_a_truncated_start_tiles_its_segments_and_adds_up_to_pytorchs_end() -> None:
    trace = fill_snapshot(read_pytorch_snapshot(recording_path("trunc")))
    assert trace.meta.block_bytes_known
    sums: dict[int, int] = {}
    for block in trace.initial_blocks:
        assert block.block_bytes is not None
        sums[block.segment_address] = sums.get(block.segment_address, 0) + block.block_bytes
    assert sums == {block.segment_address: block.segment_bytes for block in trace.initial_blocks}
    assert sum(block.state is BlockState.ALLOCATED for block in trace.initial_blocks) == 241
    assert scan_trace(trace)[0].end.held_bytes == FACTS["trunc"]["alloc"]


def test_oom_keeps_its_figures_and_marks_their_rows() -> None:
    filler = followed_devices(0)
    columns = rows(3, kind=[EventKind.SEGMENT_ALLOC, EventKind.ALLOC, EventKind.MARK], device=[0, 0, NO_DEVICE])
    columns["address"][:] = [0x7F0000000000, 0x7F0000000000, 5]
    columns["requested_bytes"][:] = [2 * MiB, 100 * KiB, 0]
    filler.feed(columns)
    filler.finish()
    (filled,) = filler.ready
    assert filled["block_bytes"].tolist() == [0, 100 * KiB, 0]
    assert filled["split_bytes"].tolist() == [0, 2 * MiB - 100 * KiB, 0]
    assert filled["address"].tolist()[2] == 5


def test_device_that_returned_its_segments_and_rests_does_not_hold_up_another() -> None:
    filler = followed_devices(0, 1)
    start = rows(4, kind=[EventKind.SEGMENT_ALLOC, EventKind.ALLOC, EventKind.FREE, EventKind.SEGMENT_FREE], device=1)
    start["address"][:] = 0x7E0000000000
    start["requested_bytes"][:] = [2 * MiB, 512, 512, 2 * MiB]
    filler.feed(start)
    assert not filler.ready, "an alloc may follow for which the segment was returned"
    begin = rows(2, kind=[EventKind.SEGMENT_ALLOC, EventKind.ALLOC], address=0x7F0000000000)
    begin["requested_bytes"][:] = [2 * MiB, 512]
    filler.feed(begin)
    assert not filler.ready
    for _ in range(4):
        filler.feed(rows(2, kind=[EventKind.FREE, EventKind.ALLOC], address=0x7F0000000000, requested_bytes=512))
    assert len(filler.ready) == 6
    filler.finish()
    assert all(one["block_bytes"].max() == 512 for one in filler.ready)
