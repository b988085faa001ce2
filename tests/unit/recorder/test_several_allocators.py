"""Allocators of ours with settings of their own in one recording: each is followed by itself, on its device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import gpumem
from gpumem import abi
from gpumem.abi.allocator import DeviceKind, create_allocator
from gpumem.allocator import Allocator
from gpumem.analyses.replay import DeviceReplay, Wish, find_replay
from gpumem.errors import OutOfMemoryError
from gpumem.recorder import own_allocators
from gpumem.render.json_replay import render_replay as render_json
from gpumem.render.terminal.replay import render_replay
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.trace.model import AllocatorFacts, Trace
from gpumem.vocabulary import NUMBERS_SHARED, DeviceOrdinal, EventFlag, EventKind
from narrow_page import NARROW, NARROWEST, check_narrow

MIB = 1 << 20
SPLIT = "max_split_size_mb:20"
POWER = "roundup_power2_divisions:4"


def work(gpu: Allocator) -> None:
    """Requests that each of the settings here serves with other blocks."""
    first, second = gpu.alloc(30 * MIB), gpu.alloc(700_000)
    gpu.free(first)
    gpu.alloc(21 * MIB)
    gpu.alloc(11 * MIB)
    gpu.free(second)


def served(settings: str) -> tuple[int, int]:
    """The peaks of allocated and reserved bytes of one allocator that does the work alone, unrecorded."""
    with Allocator("simulated", settings=settings) as gpu:
        work(gpu)
        stats = gpu.stats()
    return stats.allocated_bytes_peak, stats.reserved_bytes_peak


def followed(device: DeviceReplay) -> tuple[int | None, int]:
    assert device.check.exact
    assert device.check.decision_count == device.check.event_count > 0
    assert device.followed == device.recorded
    return device.recorded.allocated_bytes_peak, device.recorded.reserved_bytes_peak


def blocks(trace: Trace, device: int) -> list[int]:
    """Bytes of the device's blocks, in the order of their allocs."""
    columns = ("kind", "device", "block_bytes")
    return [
        int(block_bytes)
        for batch in trace.event_batches(columns)
        for kind, ordinal, block_bytes in zip(*(batch[name] for name in columns), strict=True)
        if (kind, ordinal) == (EventKind.ALLOC, device)
    ]


def test_each_device_is_followed_under_its_allocator_s_settings(tmp_path: Path) -> None:
    lines = ["", SPLIT, POWER, "expandable_segments:True"]
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        gpus = [Allocator("simulated", index, settings=line) for index, line in enumerate(lines)]
        for gpu in gpus:
            work(gpu)
    for gpu in gpus:
        gpu.close()
    trace = gpumem.open(tmp_path / "t.gpumem")
    found = find_replay(trace, Wish({})).devices
    assert [(one.facts.device, one.recorded_settings, one.allocator_count) for one in found] == [
        (index, line, 1) for index, line in enumerate(lines)
    ]
    assert [followed(one) for one in found] == [served(line) for line in lines]
    assert blocks(trace, 0) == [30 * MIB, 700_416, 21 * MIB, 12 * MIB]
    assert blocks(trace, 1) == [30 * MIB, 700_416, 30 * MIB, 12 * MIB]
    assert blocks(trace, 2) == [32 * MIB, 786_432, 24 * MIB, 12 * MIB]
    assert not any("settings" in note for note in trace.meta.notes)


def test_other_settings_are_tried_on_top_of_each_device_s(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        gpus = [Allocator("simulated", 0, settings=POWER), Allocator("simulated", 1, settings=f"{SPLIT},{POWER}")]
        for gpu in gpus:
            work(gpu)
    for gpu in gpus:
        gpu.close()
    found = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({"max_split_size_mb": "30"})).devices
    assert [one.settings for one in found] == [f"{POWER},max_split_size_mb:30"] * 2
    peaks = [
        (one.what_if.figures.allocated_bytes_peak, one.what_if.figures.reserved_bytes_peak)
        for one in found
        if one.what_if
    ]
    assert peaks == [served(f"{POWER},max_split_size_mb:30")] * 2
    assert [one.what_if.caveats for one in found if one.what_if] == [(), ()]


def test_allocators_that_follow_one_another_on_a_device_are_followed_each_by_itself(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        for line in ("", SPLIT, POWER, SPLIT):
            with Allocator("simulated", settings=line) as gpu:
                work(gpu)
    trace = gpumem.open(tmp_path / "t.gpumem")
    findings = find_replay(trace, Wish({}))
    assert {one.recorded_settings: followed(one) for one in findings.devices} == {
        line: served(line) for line in ("", SPLIT, POWER)
    }
    assert {one.facts.device for one in findings.devices} == {0}
    requests = {one.recorded_settings: one.request_count for one in findings.devices}
    assert requests == {"": 4, SPLIT: 8, POWER: 4}
    shown = json.loads(render_json(findings))
    assert (shown["settings"], shown["recorded_settings"]) == (None, None)
    assert sorted(one["recorded_settings"] for one in shown["devices"]) == sorted(["", SPLIT, POWER])
    assert [one["allocator_count"] for one in shown["devices"]] == [3] * 3
    numbers = [one["allocator_number"] for one in shown["devices"]]
    assert len(set(numbers)) == 3
    text = render_replay(findings, Page(160, UNICODE)).plain
    assert text.splitlines()[0].endswith(" · recorded with 3 lines of settings")
    for number, one in zip(numbers, findings.devices, strict=True):
        assert f"Exact on device 0 (gpumem's allocator {number}):" in text
        line = one.recorded_settings or "PyTorch's default settings"
        assert f"settings        recorded with {line}\n" in text
    for page in (NARROW, NARROWEST):
        check_narrow(render_replay(replace(findings, path="t.gpumem"), page), page)


def test_allocators_at_work_on_a_device_at_once_are_followed_each_by_itself(tmp_path: Path) -> None:
    lines = {7: "", 9: SPLIT}
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        gpus = []
        for number, line in lines.items():
            abi.record_fact(f"allocator:0:{number}", json.dumps({"settings": line, "capacity_bytes": 1 << 30}))
            made = create_allocator(DeviceKind.SIMULATED, device=0, settings=line, memory_bytes=1 << 30, number=number)
            gpus.append(made)
        abi.record_fact("own_allocator", json.dumps({"settings": ""}))
        held = [[gpu.alloc(byte_count, 0)[1] for gpu in gpus] for byte_count in (30 * MIB, 700_000)]
        for pair in held:
            for gpu, address in zip(gpus, pair, strict=True):
                gpu.free(address)
        again = [[gpu.alloc(byte_count, 0)[1] for gpu in gpus] for byte_count in (21 * MIB, 11 * MIB)]
        assert held[0][0] == held[0][1]  # on simulated devices of their own: addresses say nothing
        assert again[0] == [held[0][0], held[0][1]]
    peaks = [gpu.statistics().all.allocated_bytes.peak for gpu in gpus]
    for gpu in gpus:
        gpu.close()
    first, second = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({})).devices
    assert [(one.allocator.number, one.recorded_settings) for one in (first, second)] == list(lines.items())
    assert [followed(one)[0] for one in (first, second)] == peaks
    assert peaks[0] < peaks[1]


def test_a_smaller_card_of_an_earlier_allocator_is_remembered(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        with Allocator("simulated", memory_bytes=64 * MIB) as small, pytest.raises(OutOfMemoryError):
            small.alloc(65 * MIB)
        with Allocator("simulated", settings="per_process_memory_fraction:0.25", memory_bytes=256 * MIB) as limited:
            limited.alloc(60 * MIB)
            with pytest.raises(OutOfMemoryError):
                limited.alloc(10 * MIB)
        with Allocator("simulated", memory_bytes=1 << 30) as large:
            large.alloc(65 * MIB)
    found = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({})).devices
    assert {(one.memory_bytes, one.limit.limit_bytes): one.recorded.oom_count for one in found} == {
        (64 * MIB, None): 1,
        (256 * MIB, 64 * MIB): 1,
        (1 << 30, None): 0,
    }
    assert [one.check.exact for one in found] == [True] * 3


def test_a_device_is_the_largest_card_that_it_was_and_has_a_limit_that_all_had(tmp_path: Path) -> None:
    for number, (shares, limit) in enumerate(((("0.5", "0.25"), None), (("0.25", "0.5"), 16 * MIB))):
        path = tmp_path / f"{number}.gpumem"
        with gpumem.record(path, stacks=False):
            for memory_bytes, share in zip((64 * MIB, 32 * MIB), shares, strict=True):
                line = f"per_process_memory_fraction:{share}"
                with Allocator("simulated", settings=line, memory_bytes=memory_bytes) as gpu:
                    gpu.alloc(1)
        (device,) = gpumem.open(path).meta.devices
        assert (device.capacity_bytes, device.memory_limit_bytes) == (64 * MIB, limit)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False), Allocator("simulated", memory_bytes=8 * MIB) as gpu:
        gpu.alloc(1)
    (device,) = gpumem.open(tmp_path / "t.gpumem").meta.devices
    assert device.capacity_bytes == 8 * MIB


def test_one_device_s_allocators_are_chosen_by_the_device(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        other = Allocator("simulated", 1)
        other.alloc(1)
        for line in ("", SPLIT):
            with Allocator("simulated", settings=line) as gpu:
                work(gpu)
    other.close()
    trace = gpumem.open(tmp_path / "t.gpumem")
    for wanted, count in ((0, 2), (1, 1)):
        found = find_replay(trace, Wish({}), devices=[DeviceOrdinal(wanted)]).devices
        assert [one.facts.device for one in found] == [wanted] * count


def test_allocators_beyond_those_that_can_be_told_apart_are_refused_and_no_figure_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {own_allocators._Setup(None, f"max_split_size_mb:{20 + count}"): count for count in range(NUMBERS_SHARED)}
    monkeypatch.setattr(own_allocators, "_setups", taken)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        for line in ("", SPLIT):
            with Allocator("simulated", settings=line) as gpu:
                work(gpu)
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert [one.number for one in trace.meta.allocators] == [NUMBERS_SHARED]
    for wish in (Wish({}), Wish({"expandable_segments": "True"})):
        (device,) = find_replay(trace, wish).devices
        assert (device.check.exact, device.followed, device.what_if) == (None, None, None)
        assert (
            device.check.refusal == "More allocators with settings of their own were recorded than can be told apart."
        )
        shown = json.loads(render_json(find_replay(trace, wish)))["devices"][0]
        assert (shown["reserved_bytes_peak"], shown["allocated_bytes_peak"]) == (None, None)


def test_ours_in_pytorch_s_place_is_named_on_each_of_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpumem.record(tmp_path / "none.gpumem", stacks=False):
        own_allocators.record_torch_devices([0])
    monkeypatch.setattr(own_allocators, "_torch_settings", SPLIT)
    monkeypatch.setattr(own_allocators, "_torch_version", "2.13.0")
    number = own_allocators.number_in_torch_place(SPLIT)
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        own_allocators.record_torch_devices([0, 1])
    assert gpumem.open(tmp_path / "none.gpumem").meta.allocators == ()
    named = gpumem.open(tmp_path / "t.gpumem").meta.allocators
    assert named == tuple(AllocatorFacts(device, number, SPLIT, torch_version="2.13.0") for device in (0, 1))


def test_events_say_whose_they_are(tmp_path: Path) -> None:
    with gpumem.record(tmp_path / "t.gpumem", stacks=False):
        for line in ("", SPLIT):
            with Allocator("simulated", settings=line) as gpu:
                gpu.alloc(1)
    trace = gpumem.open(tmp_path / "t.gpumem")
    numbers = {one.settings: one.number for one in trace.meta.allocators}
    (batch,) = trace.event_batches(("flags",))
    seen = list(dict.fromkeys((batch["flags"] >> 8).tolist()))
    assert seen == [numbers[""], numbers[SPLIT]]
    assert all(flags & EventFlag.OWN_ALLOCATOR for flags in batch["flags"].tolist())
