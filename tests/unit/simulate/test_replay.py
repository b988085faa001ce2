"""Following a trace: details of every event, a heap taken over in mid-run, the first difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem.abi.policy import NO_LIMIT, DeviceOptions, HeapColumns
from gpumem.simulate.replay import REPLAY_COLUMNS, TraceFollower, replay_trace
from gpumem.trace.model import EVENT_COLUMNS, ColumnEvents, InitialBlock, StreamRow, Trace
from gpumem.vocabulary import BlockState, EventFlag, StackId
from pytorch_recordings import Recording, events_of, read_recording
from trace_builder import TraceBuilder

STATES = [BlockState.FREE, BlockState.ALLOCATED, BlockState.PENDING]


def trace_of(recording: Recording) -> Trace:
    """The recording as a trace; stream row 0 is "none", as everywhere."""
    events, handles = events_of(recording.trace)
    columns = {name: np.zeros(len(events.kind), kind) for name, kind in EVENT_COLUMNS.items()}
    for name in (name for name in REPLAY_COLUMNS if name != "flags"):
        columns[name] = getattr(events, name).astype(EVENT_COLUMNS[name])
    columns["pool"][:] = 0
    columns["stream"] += 1
    streams = [StreamRow(row + 1, 0, int(handle)) for row, handle in enumerate(handles)]
    return replace(TraceBuilder().build(), events=ColumnEvents(columns), streams=streams, pools=())


@pytest.mark.parametrize("name", ["streams23_1", "decode", "fuzz_streams"])
def test_a_heap_taken_over_in_mid_run_replays_to_the_same_end(name: str) -> None:
    recording = read_recording(name)
    trace = trace_of(recording)
    options = [DeviceOptions(0, recording.settings, NO_LIMIT, 150_109_880_320)]
    whole = replay_trace(trace, options, pools_recorded=True)
    assert whole.exact

    middle = trace.event_count // 2
    first = TraceFollower(trace, options, pools_recorded=True)
    for batch in trace.event_batches(REPLAY_COLUMNS, end_event=middle):
        first.feed(batch)
    settled = len(first.take().flags)
    heap = first.results().heaps[0]
    first.close()

    blocks = _initial_blocks(trace, heap)
    columns = {key: values[settled:] for key, values in trace.events.columns.items()}  # type: ignore[attr-defined]
    rest = replace(trace, events=ColumnEvents(columns), initial_blocks=blocks)
    ended = replay_trace(rest, options, pools_recorded=True)
    assert ended.exact, ended.results[0]
    for part in ("segments", "blocks"):
        for field in ("address", "bytes"):
            left, right = getattr(ended.heaps[0], part), getattr(whole.heaps[0], part)
            assert np.array_equal(getattr(left, field), getattr(right, field))
    assert ended.results[0].reserved_bytes_end == whole.results[0].reserved_bytes_end


def _initial_blocks(trace: Trace, heap: HeapColumns) -> list[InitialBlock]:
    """The blocks of a heap that was followed, as a recording begun there would list them."""
    rows = {row.handle: row.stream for row in trace.streams}
    owners = np.searchsorted(heap.segments.address, heap.blocks.address, side="right") - 1
    return [
        InitialBlock(
            device=0,
            segment_address=int(heap.segments.address[owner]),
            segment_bytes=int(heap.segments.bytes[owner]),
            stream=rows[int(heap.segments.stream[owner])],
            pool=0,
            expandable=bool(heap.segments.is_expandable[owner]),
            address=int(heap.blocks.address[i]),
            block_bytes=int(heap.blocks.bytes[i]),
            requested_bytes=int(heap.blocks.requested_bytes[i]),
            state=STATES[heap.blocks.state[i]],
            stack=StackId(0),
        )
        for i, owner in enumerate(owners)
    ]


def test_details_say_hits_and_splits() -> None:
    trace = trace_of(read_recording("decode"))
    follower = TraceFollower(trace, [DeviceOptions(0, "", NO_LIMIT)], pools_recorded=True)
    for batch in trace.event_batches(REPLAY_COLUMNS):
        follower.feed(batch)
    details = follower.finish()
    result = follower.results().results[0]
    follower.close()
    assert len(details.flags) == trace.event_count
    assert int(((details.flags & EventFlag.CACHE_HIT) != 0).sum()) == result.cache_hits
    assert int(((details.flags & EventFlag.SPLIT) != 0).sum()) == result.splits
    assert result.cache_hits + result.device_allocs == 2856
