"""PyTorch's recordings, read by the importer, replay to the heap that their files end with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem.abi.policy import NO_BEHAVIOUR, Behaviour, HeapColumns, ReplayAssumption
from gpumem.abi.torch_release import behaviour_of
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
from gpumem.importers.pytorch_snapshot_end import end_heaps
from gpumem.simulate.recorded_device import are_pools_recorded, device_options, devices_of
from gpumem.simulate.replay import TraceReplay, replay_trace
from recorded_snapshots import FACTS, NAMES, recording_path

NEEDS_END = {"mempools": "no_split", "graph_lifecycle": "pools", "graph": "pools"}


def replay(path: Path, *, with_end: bool) -> tuple[TraceReplay, HeapColumns]:
    snapshot = read_pytorch_snapshot(path)
    trace, ends = snapshot.trace, end_heaps(snapshot)
    settings, version = trace.meta.settings, trace.meta.versions.get("torch")
    options = [
        device_options(trace, device, settings=settings, limit_bytes=None, torch_version=version)
        for device in devices_of(trace)
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
    replayed, recorded = replay(recording_path(name), with_end=True)
    assert replayed.exact, replayed.results[0]
    assert replayed.results[0].decisions == replayed.results[0].events
    assert_same_places(replayed.heaps[0], recorded)
    if name in FACTS and name != "trunc":
        assert replayed.results[0].allocated_bytes_peak == FACTS[name]["max_alloc"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_END])
def test_the_trace_alone_is_enough_where_no_pool_must_be_told(name: str) -> None:
    replayed, recorded = replay(recording_path(name), with_end=False)
    assert replayed.exact, replayed.results[0]
    assert_same_places(replayed.heaps[0], recorded)


@pytest.mark.parametrize(
    ("name", "behaviour"),
    [
        ("requests_2_6", NO_BEHAVIOUR),
        ("requests_2_12", Behaviour.OLDEST_BLOCK_FIRST),
        ("requests_2_13", Behaviour.OLDEST_BLOCK_FIRST | Behaviour.OLDEST_SEGMENT_FIRST),
        ("requests_2_14", Behaviour.OLDEST_BLOCK_FIRST | Behaviour.OLDEST_SEGMENT_FIRST),
    ],
)
def test_recordings_of_other_releases_are_exact_in_their_own_manner(name: str, behaviour: Behaviour) -> None:
    path = recording_path(f"releases/{name}")
    replayed, recorded = replay(path, with_end=False)
    assert replayed.exact, replayed.results[0]
    assert replayed.results[0].events == 1158
    assert_same_places(replayed.heaps[0], recorded)
    assert behaviour_of(read_pytorch_snapshot(path).trace.meta.versions.get("torch")) == behaviour


def test_a_graph_s_pool_that_is_gone_is_known_by_the_order_in_which_its_segments_went() -> None:
    path = recording_path("releases/graph_2_6")
    replayed, recorded = replay(path, with_end=True)
    assert replayed.exact, replayed.results[0]
    assert replayed.results[0].device_frees == 4
    assert replayed.results[0].assumptions & ReplayAssumption.LOST_POOLS
    assert_same_places(replayed.heaps[0], recorded)


@pytest.mark.parametrize(
    ("name", "released"), [("pool_limit_2_11", 0), ("pool_limit_2_14", 2)], ids=["forbidden", "allowed"]
)
def test_a_refusal_inside_a_pool_of_the_program_s_own_releases_what_its_release_did(name: str, released: int) -> None:
    replayed, recorded = replay(recording_path(f"releases/{name}"), with_end=True)
    assert replayed.exact, replayed.results[0]
    assert (replayed.results[0].device_frees, replayed.results[0].ooms) == (released, 2)
    assert_same_places(replayed.heaps[0], recorded)


def test_blocks_from_before_the_history_get_their_bytes_from_the_trace_alone() -> None:
    replayed, _ = replay(recording_path("trunc"), with_end=False)
    assert replayed.results[0].allocated_bytes_end == FACTS["trunc"]["alloc"]
    assert not replayed.results[0].assumptions & ReplayAssumption.SLACK
