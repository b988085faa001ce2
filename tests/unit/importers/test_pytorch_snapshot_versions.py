"""Snapshots of other versions of PyTorch, and files that contradict themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
from gpumem.vocabulary import EventKind, MarkKind
from read_snapshots import assert_same, columns_of, entries_of, read_values
from recorded_snapshots import recorded_values, recording_path


def without_keys(values: dict[str, Any], *names: str) -> dict[str, Any]:
    for entry in entries_of(values):
        for name in names:
            entry.pop(name, None)
    return values


def test_version_2_0_without_addresses_frames_and_times_reads_the_same(tmp_path: Path) -> None:
    values = without_keys(recorded_values("gpt"), "time_us", "compile_context", "user_metadata", "pool_id")
    for segment in values["segments"]:
        for key in ("segment_pool_id", "is_expandable", "frames"):
            del segment[key]
        for block in segment["blocks"]:
            frames, requested = block.pop("frames"), block.pop("requested_size")
            del block["address"]
            if block["state"] != "inactive":
                block["history"] = [{"addr": 0, "real_size": requested, "frames": frames}]
    del values["allocator_settings"], values["external_annotations"]
    old, new = read_values(tmp_path, values), read_pytorch_snapshot(recording_path("gpt"))
    events = columns_of(new.trace)["kind"] != EventKind.STEP
    for name in ("kind", "address", "requested_bytes"):
        assert np.array_equal(columns_of(old.trace)[name], columns_of(new.trace)[name][events])
    assert np.array_equal(old.segments.blocks.address, new.segments.blocks.address)
    used = new.segments.blocks.state != 2
    assert np.array_equal(old.segments.blocks.requested_bytes[used], new.segments.blocks.requested_bytes[used])
    assert np.array_equal(old.segments.blocks.stack[used] > 0, new.segments.blocks.stack[used] > 0)
    assert not columns_of(old.trace)["time_ns"].any()
    assert list(old.trace.meta.notes) == [
        "Times were not recorded (PyTorch before 2.2): all are 0, devices follow one another.",
        "The allocator's settings were not recorded: PyTorch's default ones are taken for them.",
    ]


def test_free_of_early_files_is_a_free(tmp_path: Path) -> None:
    values = recorded_values("gpt")
    values["device_traces"] = [
        [
            entry | ({"action": "free"} if entry["action"] == "free_completed" else {})
            for entry in values["device_traces"][0]
            if entry["action"] != "free_requested"
        ]
    ]
    assert_same(read_values(tmp_path, values).trace, read_pytorch_snapshot(recording_path("gpt")).trace,
                without=("time_ns", "scope", "kind", "device", "address", "requested_bytes", "stack"))  # fmt: skip


@pytest.mark.parametrize("left_out", ["free_requested", "free_completed"])
def test_one_half_of_every_free_left_out_is_said_and_the_other_is_the_free(tmp_path: Path, left_out: str) -> None:
    values = recorded_values("fuzz1")
    values["device_traces"] = [[one for one in values["device_traces"][0] if one["action"] != left_out]]
    trace = read_values(tmp_path, values).trace
    assert int(np.count_nonzero(columns_of(trace)["kind"] == EventKind.FREE)) == 1994
    assert list(trace.meta.notes) == [
        f"Device 0: {left_out} was left out of the recording; blocks count as freed at the other half."
    ]


def test_entries_without_frames_have_no_stack(tmp_path: Path) -> None:
    trace = read_values(tmp_path, without_keys(recorded_values("gpt"), "frames")).trace
    assert not columns_of(trace)["stack"].any()
    assert_same(trace, read_pytorch_snapshot(recording_path("gpt")).trace, without=("stack",))


def test_later_keys_give_pools_scopes_and_marks(tmp_path: Path) -> None:
    values = recorded_values("pending")
    entries = values["device_traces"][0]
    for entry in entries:
        entry |= {"pool_id": (0, 7), "compile_context": "Torch-Compiled Region: 0/1", "forward_frames": ["x"]}
    entries[3]["user_metadata"] = "layer 3"
    entries.insert(4, entries[3] | {"action": "annotate"})
    values |= {"host_segments": [{"address": 1, "size": 4096}], "host_traces": [[{"action": "alloc"}]], "later": 1}
    snapshot = read_values(tmp_path, values)
    trace, columns = snapshot.trace, columns_of(snapshot.trace)
    assert [(row.first, row.second) for row in trace.pools] == [(0, 0), (0, 7)]
    assert [trace.scopes.names[row] for row in columns["scope"][2:4]] == ["Torch-Compiled Region: 0/1", "layer 3"]
    assert [(mark.name, mark.kind, mark.event) for mark in trace.marks] == [("layer 3", MarkKind.MARK, 4)]
    said = "Pinned host memory is not part of the trace: 1 segment with 4.00 KiB at the end, 1 event."
    assert said in trace.meta.notes


def test_devices_are_merged_by_time_and_keep_their_own_order(tmp_path: Path) -> None:
    values = recorded_values("pending")
    other = recorded_values("pending")
    for segment in other["segments"]:
        segment["device"] = 1
    for entry in entries_of(other):
        entry["time_us"] += 3
    values["segments"] += other["segments"]
    values["device_traces"] = [values["device_traces"][0], [], other["device_traces"][0]]
    for segment in other["segments"]:
        segment["device"] = 2
    trace = read_values(tmp_path, values).trace
    columns, alone = columns_of(trace), columns_of(read_pytorch_snapshot(recording_path("pending")).trace)
    assert bool((np.diff(columns["time_ns"]) >= 0).all())
    for device in (0, 2):
        assert np.array_equal(columns["address"][columns["device"] == device], alone["address"])
    assert [device.device for device in trace.meta.devices] == [0, 2]
    assert {(row.device, row.handle) for row in trace.streams[1:]} >= {(0, 0), (2, 0)}


# ---- inconsistent files ----


def test_file_made_from_the_profiler_is_named_synthetic(tmp_path: Path) -> None:
    values = recorded_values("gpt")
    for entry in entries_of(values):
        entry["category"] = "activation"
    assert "This file is synthetic" in read_values(tmp_path, values).trace.meta.notes[0]


def test_overlapping_segments_and_wrong_sums_are_said(tmp_path: Path) -> None:
    values = recorded_values("fuzz1")
    first, second = values["segments"][:2]
    second["address"] = first["address"] + 512
    first["blocks"][0]["size"] += 512
    notes = read_values(tmp_path, values).trace.meta.notes
    assert any("1 segment in the place of the one before" in note for note in notes)
    assert any("in 1 segment the blocks do not add up" in note for note in notes)


def test_unknown_actions_and_negative_addresses_are_left_out_and_said(tmp_path: Path) -> None:
    values = recorded_values("fuzz1")
    values["device_traces"][0][10] |= {"action": "teleport"}
    values["device_traces"][0][20] |= {"addr": -4096}
    notes = read_values(tmp_path, values).trace.meta.notes
    assert "1 entries with unknown actions ('teleport') left out." in notes
    assert "1 entry left out that cannot be read." in notes
