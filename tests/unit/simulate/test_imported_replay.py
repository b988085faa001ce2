"""PyTorch's recordings, read by the importer, replay to the heap that their files end with."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.abi.policy import HeapColumns, ReplayAssumption
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
from gpumem.importers.pytorch_snapshot_end import end_heaps
from gpumem.simulate.recorded_device import are_pools_recorded, device_options, devices_of
from gpumem.simulate.replay import TraceReplay, replay_trace
from recorded_snapshots import FACTS, NAMES, recording_path

NEEDS_END = {"mempools": "no_split", "graph_lifecycle": "pools", "graph": "pools"}


def replay(name: str, *, with_end: bool) -> tuple[TraceReplay, HeapColumns]:
    snapshot = read_pytorch_snapshot(recording_path(name))
    trace, ends = snapshot.trace, end_heaps(snapshot)
    options = [
        device_options(trace, device, settings=trace.meta.settings, limit_bytes=None) for device in devices_of(trace)
    ]
    given = ends if with_end else None
    return replay_trace(trace, options, pools_recorded=are_pools_recorded(trace), end_heaps=given), ends[0]


def assert_same_places(replayed: HeapColumns, recorded: HeapColumns) -> None:
    for field in ("address", "bytes", "stream", "is_small", "is_expandable"):
        assert np.array_equal(getattr(replayed.segments, field), getattr(recorded.segments, field)), field
    for field in ("address", "bytes", "state"):
        assert np.array_equal(getattr(replayed.blocks, field), getattr(recorded.blocks, field)), field


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_is_exact_and_ends_as_its_file_does(name: str) -> None:
    replayed, recorded = replay(name, with_end=True)
    assert replayed.exact, replayed.results[0]
    assert replayed.results[0].decisions == replayed.results[0].events
    assert_same_places(replayed.heaps[0], recorded)
    if name in FACTS and name != "trunc":
        assert replayed.results[0].allocated_bytes_peak == FACTS[name]["max_alloc"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_END])
def test_the_trace_alone_is_enough_where_no_pool_must_be_told(name: str) -> None:
    replayed, recorded = replay(name, with_end=False)
    assert replayed.exact, replayed.results[0]
    assert_same_places(replayed.heaps[0], recorded)


def test_blocks_from_before_the_history_get_their_bytes_from_the_trace_alone() -> None:
    replayed, _ = replay("trunc", with_end=False)
    assert replayed.results[0].allocated_bytes_end == FACTS["trunc"]["alloc"]
    assert not replayed.results[0].assumptions & ReplayAssumption.SLACK
