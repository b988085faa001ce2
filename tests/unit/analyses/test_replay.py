"""What a replay finds: the first difference, why a run cannot be followed, what other cards make of its requests."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explained_traces import unrecorded_trace
from gpumem.analyses.replay import ReplayFindings, Wish, find_replay
from gpumem.analyses.replay_limit import LimitSource
from gpumem.errors import AllocatorNotRecorded, UsageError
from gpumem.importers.open_end import open_with_end
from gpumem.render.json_replay import render_replay as render_json
from gpumem.render.terminal.replay import render_replay
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.simulate.settings_line import parse_assignments, set_in_line
from gpumem.vocabulary import DeviceOrdinal, EventKind
from recorded_snapshots import FACTS, SAMPLES, recorded_values, recording_path
from trace_builder import GiB, MiB

Values = dict[str, Any]
CARD_BYTES = 150_109_880_320


def replay(path: Path, wish: Wish | None = None, *, device: int | None = None) -> ReplayFindings:
    opened = open_with_end(path)
    return find_replay(
        opened.trace,
        wish or Wish({}),
        end_heaps=opened.end_heaps,
        pools_recorded=opened.pools_recorded,
        devices=None if device is None else [DeviceOrdinal(device)],
    )


@pytest.fixture
def spoilt(tmp_path: Path) -> Callable[[Values], Path]:
    def write(values: Values) -> Path:
        path = tmp_path / "spoilt.pickle"
        path.write_bytes(pickle.dumps(values))
        return path

    return write


def test_first_difference_names_event_site_and_both_addresses(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("gpt")
    allocs = [entry for entry in values["device_traces"][0] if entry["action"] == "alloc"]
    moved = next(entry for entry in allocs[400:] if entry["frames"])
    moved["addr"] += 512
    findings = replay(spoilt(values))
    check = findings.devices[0].check
    assert findings.differs
    assert check.exact is False
    assert check.first_difference is not None
    expected, got = check.first_difference.expected, check.first_difference.got
    assert expected is not None
    assert got is not None
    assert (expected.kind, got.kind) == (EventKind.ALLOC, EventKind.ALLOC)
    assert (expected.address, got.address) == (moved["addr"], moved["addr"] - 512)
    assert check.first_difference.site is not None
    assert check.first_difference.stack[0].file == moved["frames"][0]["filename"]
    assert check.decision_count < check.event_count or check.decision_count > 400
    assert findings.devices[0].followed is None


def test_a_what_if_of_a_run_that_parts_says_how_many_decisions_were_followed(
    spoilt: Callable[[Values], Path],
) -> None:
    values = recorded_values("gpt")
    [entry for entry in values["device_traces"][0] if entry["action"] == "alloc"][400]["addr"] += 512
    findings = replay(spoilt(values), Wish({}, gpu_memory_bytes=8 * GiB))
    decision_count = findings.devices[0].check.decision_count
    assert decision_count > 400
    said = f"followed exactly for its first {decision_count} decisions only, so the figures are less sure"
    assert said in render_replay(findings, Page(160, UNICODE)).plain


def test_a_snapshot_without_a_history_is_not_called_exact(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("gpt")
    values["device_traces"] = [[]]
    text = render_replay(replay(spoilt(values)), Page(160, UNICODE)).plain
    assert "Nothing was recorded on device 0 that the allocator, run again, could be held to.\n" in text
    assert "0 of 0 recorded events" not in text


def test_another_block_at_the_end_is_named(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("oom")
    block = next(block for segment in values["segments"] for block in segment["blocks"] if block["state"] == "inactive")
    block["requested_size"] += 1
    check = replay(spoilt(values)).devices[0].check
    assert check.exact is False
    assert check.first_difference is None
    assert check.heap is not None
    assert check.heap.difference is not None
    assert f"block at 0x{block['address']:x} has requested_bytes {block['requested_size']} in the file" in (
        check.heap.difference
    )


def test_a_recording_without_segment_events_is_refused(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("decode")
    trace = values["device_traces"][0]
    values["device_traces"][0] = [entry for entry in trace if not entry["action"].startswith("segment")]
    values["segments"] = []
    findings = replay(spoilt(values))
    check = findings.devices[0].check
    assert check.exact is None
    assert check.refusal == "The recording holds no segment events; without them no decision can be checked."
    assert not findings.differs


def test_settings_of_another_allocator_are_refused(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("decode")
    values["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    check = replay(spoilt(values)).devices[0].check
    assert check.exact is None
    assert check.refusal is not None
    assert "is not PyTorch's own allocator" in check.refusal


def test_settings_that_the_file_lacks_are_assumed_and_never_shown_as_recorded(
    spoilt: Callable[[Values], Path],
) -> None:
    values = recorded_values("decode")
    said = "The allocator's settings are not in the recording: PyTorch's default ones were assumed."
    recorded = replay(spoilt(values))
    assert said not in recorded.devices[0].check.not_recorded
    del values["allocator_settings"]
    findings = replay(spoilt(values))
    (device,) = findings.devices
    assert (device.settings, device.recorded_settings, device.check.exact) == ("", None, True)
    assert said in device.check.not_recorded
    head = render_replay(findings, Page(160, UNICODE)).plain.splitlines()[0]
    assert head.endswith(" · settings not in the recording: PyTorch's defaults assumed")
    shown = [json.loads(render_json(one)) for one in (recorded, findings)]
    assert [one["recorded_settings"] for one in shown] == ["", None]
    assert [one["devices"][0]["settings_basis"] for one in shown] == ["recorded", "assumed"]


def test_other_settings_are_tried_on_top_of_those_assumed(spoilt: Callable[[Values], Path]) -> None:
    values = recorded_values("decode")
    del values["allocator_settings"]
    findings = replay(spoilt(values), Wish({"max_split_size_mb": "64"}))
    assert (findings.devices[0].settings, findings.devices[0].recorded_settings) == ("max_split_size_mb:64", None)
    assert "With max_split_size_mb:64, device 0 would serve" in render_replay(findings, Page(160, UNICODE)).plain


def test_devices_are_followed_side_by_side(spoilt: Callable[[Values], Path]) -> None:
    values, other = recorded_values("decode"), recorded_values("streams")
    values["device_traces"] = [values["device_traces"][0], other["device_traces"][0]]
    values["segments"] += [segment | {"device": 1} for segment in other["segments"]]
    path = spoilt(values)
    findings = replay(path)
    assert [device.check.exact for device in findings.devices] == [True, True]
    peaks = [device.recorded.reserved_bytes_peak for device in findings.devices]
    assert peaks == [FACTS["decode"]["max_reserved"], FACTS["streams"]["max_reserved"]]
    (alone,) = replay(path, device=1).devices
    assert (alone.facts.device, alone.check.exact) == (1, True)
    wished = replay(path, Wish({"expandable_segments": "True"}))
    assert [device.what_if is not None for device in wished.devices] == [True, True]


def test_a_smaller_card_refuses_requests_by_site() -> None:
    findings = replay(recording_path("resnet"), Wish({}, gpu_memory_bytes=700 * MiB))
    (device,) = findings.devices
    found = device.what_if
    assert found is not None
    assert found.refused_count == sum(one.request_count for one in found.refused_by_site) > 0
    assert found.figures.reserved_bytes_peak <= 700 * MiB
    assert found.figures.oom_count == found.refused_count
    assert device.request_count == 2755
    assert (device.memory_bytes, device.limit.source) == (700 * MiB, LimitSource.NONE)
    assert {one.site and one.site.file for one in found.refused_by_site} == {None, "workload.py"}


def test_a_larger_limit_serves_what_ran_out_of_memory() -> None:
    (device,) = replay(recording_path("oom"), Wish({}, memory_limit_bytes=4 * GiB)).devices
    assert device.what_if is not None
    assert (device.recorded.oom_count, device.what_if.served_count, device.what_if.refused_count) == (1, 1, 0)


def test_the_bracket_of_an_unknown_limit_holds_in_a_what_if() -> None:
    (device,) = replay(recording_path("oom"), Wish({"max_split_size_mb": "64"})).devices
    assert device.limit.source is LimitSource.TRACE
    assert device.limit.limit_bytes == device.limit.at_least_bytes
    assert device.what_if is not None
    assert device.what_if.served_count == 0


def test_another_limit_than_the_recorded_one_is_tried() -> None:
    path = SAMPLES / "out_of_memory.gpumem"
    assert not replay(path, Wish({}, memory_limit_bytes=1 * GiB)).is_what_if
    findings = replay(path, Wish({}, memory_limit_bytes=2 * GiB))
    assert findings.is_what_if
    assert findings.devices[0].what_if is not None
    assert findings.devices[0].what_if.served_count == 1


def test_garbage_collection_needs_the_limit() -> None:
    (device,) = replay(recording_path("fuzz_gc"), Wish({"max_split_size_mb": "512"})).devices
    assert device.what_if is not None
    assert device.what_if.caveats[0].startswith("Without a memory limit PyTorch collects no garbage")
    (device,) = replay(
        recording_path("fuzz_gc"), Wish({}, gpu_memory_bytes=CARD_BYTES, memory_limit_bytes=4 * 10**9)
    ).devices
    assert device.what_if is not None
    assert device.what_if.caveats == ()
    assert abs(device.what_if.saved_bytes) <= device.recorded.reserved_bytes_peak // 50


def test_a_fraction_needs_the_card() -> None:
    changes = {"per_process_memory_fraction": "0.5"}
    with pytest.raises(UsageError, match="--gpu-memory"):
        replay(recording_path("gpt"), Wish(changes))
    (device,) = replay(recording_path("gpt"), Wish(changes, gpu_memory_bytes=2 * GiB)).devices
    assert (device.limit.limit_bytes, device.limit.source) == (1 * GiB, LimitSource.SETTINGS)
    assert device.what_if is not None
    assert device.what_if.figures.reserved_bytes_peak <= 1 * GiB


def test_under_its_own_settings_a_native_run_needs_what_it_needed() -> None:
    path = SAMPLES / "gpt2_train.gpumem"
    (device,) = replay(path, Wish({"expandable_segments": "False"}, gpu_memory_bytes=CARD_BYTES)).devices
    assert device.what_if is not None
    assert device.what_if.saved_bytes == 0
    assert device.recorded.allocated_bytes_peak == 893_005_312
    # Where the driver puts segments decides ties between equal blocks, and so which is handed out unsplit.
    assert abs(device.what_if.figures.allocated_bytes_peak - 893_005_312) < 893_005_312 // 200


@pytest.mark.parametrize(
    ("line", "changes", "made"),
    [
        ("", {"max_split_size_mb": "64"}, "max_split_size_mb:64"),
        ("max_split_size_mb:64,expandable_segments:True", {"max_split_size_mb": "32"}, None),
        ("roundup_power2_divisions:[256:1,>:4]", {"roundup_power2_divisions": "8"}, "roundup_power2_divisions:8"),
    ],
)
def test_a_setting_takes_the_place_of_the_recorded_one(line: str, changes: dict[str, str], made: str | None) -> None:
    assert set_in_line(line, changes) == (made or "expandable_segments:True,max_split_size_mb:32")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_split_size_mb", "is no setting; write KEY=VALUE"),
        ("max_split_size_mb=5", "must be at least 20"),
        ("shiny=1", "is no option of the caching allocator"),
        ("max_split_size_mb=64,expandable_segments=True", "is more than one setting"),
    ],
)
def test_a_wrong_setting_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_assignments([text])


def test_sentences_stay_inside_the_page() -> None:
    for wish in (Wish({}), Wish({"expandable_segments": "True"}), Wish({}, gpu_memory_bytes=300 * MiB)):
        for name in ("oom", "mempools", "trunc", "resnet"):
            text = render_replay(replay(recording_path(name), wish), Page(80, UNICODE)).plain
            assert max(map(len, text.splitlines())) <= 80, text


def test_a_recording_without_an_allocator_has_nothing_to_replay() -> None:
    sentence = r"holds no allocator's events, so there is nothing to replay\. The program did not import torch\."
    with pytest.raises(AllocatorNotRecorded, match=sentence):
        find_replay(unrecorded_trace(), Wish({}))
