"""A PyTorch snapshot's trace with its blocks filled in by replay, which ends in the snapshot's own segments.

Owns: replaying a snapshot whole, from the heap at its start where its history begins in mid-run, and holding the heap
at the end against the file. Must not know: how the file was encoded, reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpumem.abi.policy import EventDetails, HeapColumns
from gpumem.importers.pytorch_snapshot import PytorchSnapshot
from gpumem.importers.pytorch_snapshot_end import end_heaps
from gpumem.simulate.end_heap import find_heap_difference
from gpumem.simulate.fill import DeviceFill, describe_fills, filled_meta, unfollowed, with_details
from gpumem.simulate.recorded_device import device_options, devices_of, recorded_limit
from gpumem.simulate.replay import REPLAY_COLUMNS, TraceFollower, TraceReplay
from gpumem.simulate.start_blocks import find_start_blocks
from gpumem.trace.model import Column, ColumnEvents, InitialBlock, Trace


def fill_snapshot(snapshot: PytorchSnapshot) -> Trace:
    """The snapshot's trace with block bytes, splits and flags, as far as replay reproduces its events."""
    trace = snapshot.trace
    assert isinstance(trace.events, ColumnEvents), "an importer holds its events whole"
    settings, version = trace.meta.settings, trace.meta.versions.get("torch")
    devices = [
        device_options(trace, one, settings=settings, limit_bytes=recorded_limit(trace, one), torch_version=version)
        for one in devices_of(trace)
    ]
    ends = end_heaps(snapshot)
    follower = TraceFollower(trace, devices, pools_recorded=snapshot.pools_recorded, end_heaps=ends)
    try:
        begun = sorted({block.device for block in trace.initial_blocks} - set(follower.refusals))
        starts = {device: follower.heap(device) for device in begun}
        for batch in trace.event_batches(REPLAY_COLUMNS):
            follower.feed(batch)
        details = follower.finish()
        fills = _judge(follower.results(), ends)
    finally:
        follower.close()
    return replace(
        trace,
        meta=filled_meta(trace.meta, fills, trace.event_count),
        events=ColumnEvents(with_details(trace.events.columns, details)),
        initial_blocks=_initial_blocks(trace, starts, trace.events.columns, details),
    )


def _judge(replayed: TraceReplay, ends: Mapping[int, HeapColumns]) -> list[DeviceFill]:
    """What is known of each device's blocks: nothing where replay ends in another heap than the file shows."""
    fills = []
    for fill in describe_fills(replayed):
        end = ends.get(fill.device)
        if fill.known_until is None and end is not None:
            heap = replayed.heaps[fill.device]
            difference = find_heap_difference(heap, end, last_requests=False)
            if difference:
                fill = unfollowed(fill.device, f"Replayed to their end, its events leave another heap: {difference}")
        fills.append(fill)
    return fills


def _initial_blocks(
    trace: Trace, starts: Mapping[int, HeapColumns], columns: Mapping[str, Column], details: EventDetails
) -> Sequence[InitialBlock]:
    """The blocks at the start: all of them where replay knows that heap, else those that the importer found."""
    made: list[InitialBlock] = []
    for device in sorted({block.device for block in trace.initial_blocks}):
        found = [block for block in trace.initial_blocks if block.device == device]
        start = starts.get(device)
        made += found if start is None else find_start_blocks(device, start, found, trace, columns, details)
    return made
