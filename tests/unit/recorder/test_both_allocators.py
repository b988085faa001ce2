"""PyTorch's own allocator and gpumem's in one recording: each block with its own bytes, each run followed by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import gpumem
from gpumem import abi
from gpumem.allocator import Allocator
from gpumem.analyses.replay import Wish, find_replay
from gpumem.analyses.summary import summarise_trace
from gpumem.recorder import recording
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal, EventFlag, EventKind, TraceSource

MIB = 1 << 20
TORCH_SEGMENT = 0x10_0000_0000
CARD = {"uuid": "GPU-1", "nvml_index": None, "name": "H200", "capacity_bytes": 140 << 30, "memory_limit_bytes": None}
COLUMNS = ("kind", "flags", "address", "requested_bytes", "block_bytes")


def start_torch() -> None:
    """What torch_hook does when CUDA starts."""
    abi.record_fact("device:0", json.dumps(CARD))
    recording.note_torch_devices()
    abi.record_fact("settings", json.dumps(""))
    abi.record_fact("versions", json.dumps({"torch": "2.11.0"}))
    abi.record_fact("source", json.dumps("native"))
    recording.note_cuda_started({DeviceOrdinal(0): "GPU-1", DeviceOrdinal(1): "GPU-2"})


def train() -> None:
    """What PyTorch's tracker hands over of two tensors, one of them freed."""
    for kind, address, requested_bytes in (
        (EventKind.SEGMENT_ALLOC, TORCH_SEGMENT, 2 * MIB),
        (EventKind.ALLOC, TORCH_SEGMENT, 1000),
        (EventKind.ALLOC, TORCH_SEGMENT + 1024, 2000),
        (EventKind.FREE_REQUESTED, TORCH_SEGMENT, 1000),
        (EventKind.FREE_COMPLETED, TORCH_SEGMENT, 1000),
    ):
        abi.record_event(kind, device=0, address=address, requested_bytes=requested_bytes)


def torch_first(gpu: Callable[[], Allocator]) -> Allocator:
    start_torch()
    own = gpu()
    own.alloc(30 * MIB)
    train()
    return own


def torch_last(gpu: Callable[[], Allocator]) -> Allocator:
    own = gpu()
    own.alloc(30 * MIB)
    start_torch()
    train()
    return own


def torch_around(gpu: Callable[[], Allocator]) -> Allocator:
    start_torch()
    train()
    own = gpu()
    own.alloc(30 * MIB)
    return own


@pytest.mark.parametrize("order", [torch_first, torch_last, torch_around])
def test_blocks_of_both_are_known_and_pytorch_s_run_is_followed_exactly(
    tmp_path: Path, order: Callable[[Callable[[], Allocator]], Allocator]
) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        own = order(lambda: Allocator("simulated", settings="max_split_size_mb:64"))
        own.free(own.alloc(100))
    own.close()
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert (trace.meta.source, trace.meta.settings, trace.meta.block_bytes_known) == (TraceSource.NATIVE, "", True)
    assert trace.meta.devices[0].name == "H200"
    assert blocks_of(trace, own=False) == [("ALLOC", 1000, 1024), ("ALLOC", 2000, 2048), ("FREE", 1000, 1024)]
    assert blocks_of(trace, own=True) == [("ALLOC", 30 * MIB, 30 * MIB), ("ALLOC", 100, 512), ("FREE", 100, 512)]
    (device,) = summarise_trace(trace).devices
    assert device.allocated_bytes is not None
    assert device.allocated_bytes.end == 2048 + 30 * MIB
    assert device.reserved_bytes.end == 2 * MIB + 32 * MIB
    torch_s, ours = find_replay(trace, Wish({})).devices
    assert [one.facts.device for one in (torch_s, ours)] == [0, 0]
    assert [one.allocator_count for one in (torch_s, ours)] == [2, 2]
    assert [one.recorded_settings for one in (torch_s, ours)] == ["", "max_split_size_mb:64"]
    assert torch_s.allocator.number is None
    check = torch_s.check
    assert (check.exact, check.decision_count, check.event_count) == (True, 4, 4)
    assert (ours.check.exact, ours.check.decision_count, ours.check.event_count) == (True, 5, 5)
    figures = [(one.recorded.reserved_bytes_peak, one.recorded.allocated_bytes_peak) for one in (torch_s, ours)]
    assert figures == [(2 * MIB, 1024 + 2048), (32 * MIB, 30 * MIB + 512)]
    assert [one.followed == one.recorded for one in (torch_s, ours)] == [True, True]


@pytest.mark.parametrize("order", [torch_first, torch_last, torch_around])
def test_other_settings_are_tried_on_each_allocator_s_requests_alone(
    tmp_path: Path, order: Callable[[Callable[[], Allocator]], Allocator]
) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        own = order(lambda: Allocator("simulated", settings="max_split_size_mb:64", memory_bytes=1 << 30))
    own.close()
    found = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({"expandable_segments": "True"})).devices
    assert [one.settings for one in found] == [
        "expandable_segments:True",
        "max_split_size_mb:64,expandable_segments:True",
    ]
    assert [one.memory_bytes for one in found] == [140 << 30, 1 << 30]
    assert [one.request_count for one in found] == [2, 1]
    peaks = [one.what_if and one.what_if.figures.reserved_bytes_peak for one in found]
    assert peaks == [2 * MIB, 40 * MIB]
    said = "The device had other allocators: what they held at the same time is not taken off its memory here."
    assert [said in one.what_if.caveats for one in found if one.what_if] == [True, True]


def test_blocks_that_ours_held_before_the_recording_are_not_pytorch_s(tmp_path: Path) -> None:
    own = Allocator("simulated", memory_bytes=1 << 30)
    kept, freed = own.alloc(30 * MIB), own.alloc(1000)
    own.free(freed)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        start_torch()
        train()
        own.free(kept)
        own.alloc(1000)
    own.close()
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert trace.meta.block_bytes_known
    assert {block.flags for block in trace.initial_blocks} == {EventFlag.OWN_ALLOCATOR | own_number(trace) << 8}
    checks = [one.check for one in find_replay(trace, Wish({})).devices]
    assert [(check.exact, check.decision_count, check.event_count) for check in checks] == [(True, 4, 4), (True, 2, 2)]


def test_a_state_of_pytorch_s_replaces_no_event_of_ours(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        own = Allocator("simulated")
        own.alloc(30 * MIB)
        start_torch()
        train()
        state = {"snapshot_event": abi.count_records(), "devices": [0], "segments": []}
        abi.record_fact("initial_state", json.dumps(state))
    own.close()
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert blocks_of(trace, own=False) == []
    assert blocks_of(trace, own=True) == [("ALLOC", 30 * MIB, 30 * MIB)]


def own_number(trace: Trace) -> int:
    (one,) = trace.meta.allocators
    return one.number


def test_recording_of_ours_alone_names_its_settings_and_device(tmp_path: Path) -> None:
    with (
        gpumem.record(tmp_path / "t.gpumem", stacks=False),
        Allocator("simulated", settings="max_split_size_mb:64") as gpu,
    ):
        gpu.alloc(1)
    meta = gpumem.open(tmp_path / "t.gpumem").meta
    assert (meta.source, meta.settings) == (TraceSource.GPUMEM, "max_split_size_mb:64")
    assert meta.devices[0].name == "simulated device"


def blocks_of(trace: Trace, *, own: bool) -> list[tuple[str, int, int]]:
    """Kind, requested and block bytes of one allocator's allocs and frees."""
    found = []
    for batch in trace.event_batches(COLUMNS):
        for kind, flags, _, requested_bytes, block_bytes in zip(
            *(batch[name].tolist() for name in COLUMNS), strict=True
        ):
            if kind in (EventKind.ALLOC, EventKind.FREE) and bool(flags & EventFlag.OWN_ALLOCATOR) is own:
                found.append((EventKind(kind).name, requested_bytes, block_bytes))
    return found
