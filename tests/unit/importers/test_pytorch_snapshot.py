"""Recorded snapshots as traces: figures against PyTorch's own, every encoding and version gives the same trace."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpumem.abi.pickle import skim_snapshot
from gpumem.importers import pytorch_snapshot_document as document
from gpumem.importers.pytorch_snapshot import PytorchSnapshot, is_pytorch_snapshot, read_pytorch_snapshot
from gpumem.trace.model import EVENT_COLUMNS, Trace
from gpumem.vocabulary import BlockState, EventKind, MarkKind, TraceSource
from recorded_snapshots import FACTS, NAMES, recorded_bytes, recorded_values, recording_path

WITH_FACTS = sorted(FACTS.keys() & set(NAMES))
OBTAINED = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
GIVEN_BACK = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)


def columns_of(trace: Trace) -> dict[str, np.ndarray]:
    batches = list(trace.event_batches(list(EVENT_COLUMNS)))
    return {
        name: np.concatenate([np.zeros(0, dtype), *(batch[name] for batch in batches)])
        for name, dtype in EVENT_COLUMNS.items()
    }


def signed_bytes(columns: dict[str, np.ndarray], plus: tuple[int, ...], minus: tuple[int, ...]) -> np.ndarray:
    amount = columns["requested_bytes"].astype(np.int64)
    return np.where(np.isin(columns["kind"], plus), amount, 0) - np.where(np.isin(columns["kind"], minus), amount, 0)


def reserved_curve(trace: Trace) -> np.ndarray:
    segments = {(one.device, one.segment_address): one.segment_bytes for one in trace.initial_blocks}
    start = sum(segments.values())
    return start + np.append(0, np.cumsum(signed_bytes(columns_of(trace), OBTAINED, GIVEN_BACK)))


def read_values(folder: Path, values: Any) -> PytorchSnapshot:
    path = folder / "snapshot"
    path.write_bytes(pickle.dumps(values))
    return read_pytorch_snapshot(path)


def entries_of(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for trace in values["device_traces"]:
        yield from trace


def assert_same(left: Trace, right: Trace, *, without: tuple[str, ...] = ()) -> None:
    """Equal in everything that reports see; stacks compared by their frames."""
    before, after = columns_of(left), columns_of(right)
    for name in EVENT_COLUMNS:
        if name not in (*without, "stack"):
            assert np.array_equal(before[name], after[name]), name
    if "stack" not in without:
        pairs = set(zip(before["stack"].tolist(), after["stack"].tolist(), strict=True))
        assert all(left.stack_frames(one) == right.stack_frames(other) for one, other in pairs)
    assert len(left.initial_blocks) == len(right.initial_blocks)
    assert left.scopes.names == right.scopes.names or "scope" in without


@pytest.mark.parametrize("name", WITH_FACTS)
def test_reserved_end_and_peak_are_what_pytorch_said(name: str) -> None:
    reserved = reserved_curve(read_pytorch_snapshot(recording_path(name)).trace)
    assert (int(reserved[-1]), int(reserved.max())) == (FACTS[name]["reserved"], FACTS[name]["max_reserved"])


@pytest.mark.parametrize("name", NAMES)
def test_live_requests_and_segments_at_the_end_are_those_of_the_file(name: str) -> None:
    snapshot = read_pytorch_snapshot(recording_path(name))
    trace, segments = snapshot.trace, snapshot.segments
    live = sum(one.requested_bytes for one in trace.initial_blocks if one.state is BlockState.ALLOCATED)
    frees = (EventKind.FREE, EventKind.FREE_REQUESTED)
    live += int(signed_bytes(columns_of(trace), (EventKind.ALLOC,), frees).sum())
    given = recorded_values(name)["segments"]
    blocks = [block for segment in given for block in segment["blocks"]]
    assert live == sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    assert int(segments.segment_bytes.sum()) == sum(segment["total_size"] for segment in given)
    assert segments.blocks.block_bytes.tolist() == [block["size"] for block in blocks]
    assert segments.blocks.address.tolist() == [block["address"] for block in blocks]


@pytest.mark.parametrize("name", NAMES)
def test_events_are_the_entries_with_each_free_folded(name: str) -> None:
    trace = read_pytorch_snapshot(recording_path(name)).trace
    given = Counter(entry["action"] for entry in entries_of(recorded_values(name)))
    kinds = Counter(EventKind(kind).name.lower() for kind in columns_of(trace)["kind"].tolist())
    folded = kinds.pop("free", 0)
    assert folded + kinds.pop("free_requested", 0) == given.pop("free_requested", 0)
    assert folded + kinds.pop("free_completed", 0) == given.pop("free_completed", 0)
    kinds.pop("step", None)
    assert kinds == given


def test_meta_says_where_the_trace_comes_from() -> None:
    snapshot = read_pytorch_snapshot(recording_path("gpt_split64"))
    meta = snapshot.trace.meta
    first = min(entry["time_us"] for entry in entries_of(recorded_values("gpt_split64")))
    assert (meta.source, meta.settings) == (TraceSource.PYTORCH_SNAPSHOT, "max_split_size_mb:64")
    assert meta.started_unix_ns == first * 1000
    assert (meta.history_truncated, meta.block_bytes_known, list(meta.notes)) == (False, False, [])
    assert [device.device for device in meta.devices] == [0]
    assert int(columns_of(snapshot.trace)["time_ns"][-1]) <= meta.duration_ns


def test_stack_and_stream_of_an_event_are_those_of_its_entry() -> None:
    trace = read_pytorch_snapshot(recording_path("streams")).trace
    columns = columns_of(trace)
    allocs = np.flatnonzero(columns["kind"] == EventKind.ALLOC)
    entries = [entry for entry in entries_of(recorded_values("streams")) if entry["action"] == "alloc"]
    for row, entry in zip(allocs.tolist(), entries, strict=True):
        frames = [(frame.file, frame.line, frame.function) for frame in trace.stack_frames(columns["stack"][row])]
        assert frames == [(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]]
        assert trace.streams[columns["stream"][row]].handle == entry["stream"]
        assert (columns["address"][row], columns["requested_bytes"][row]) == (entry["addr"], entry["size"])
        assert columns["time_ns"][row] == entry["time_us"] * 1000 - (trace.meta.started_unix_ns or 0)


def test_out_of_memory_event_carries_request_and_free_bytes() -> None:
    columns = columns_of(read_pytorch_snapshot(recording_path("oom")).trace)
    [row] = np.flatnonzero(columns["kind"] == EventKind.OOM)
    [entry] = [entry for entry in entries_of(recorded_values("oom")) if entry["action"] == "oom"]
    assert (columns["requested_bytes"][row], columns["address"][row]) == (entry["size"], entry["device_free"])
    assert entry["size"] == 150 << 20


def test_optimizer_steps_become_steps_and_scopes() -> None:
    trace = read_pytorch_snapshot(recording_path("leak")).trace
    steps = [mark for mark in trace.marks if mark.kind is MarkKind.STEP]
    assert [mark.step for mark in steps] == list(range(40))
    columns = columns_of(trace)
    assert [int(columns["kind"][mark.event]) for mark in steps] == [EventKind.STEP] * 40
    assert [int(columns["address"][mark.event]) for mark in steps] == list(range(40))
    inside = {trace.scopes.names[row] for row in np.unique(columns["scope"]).tolist()}
    assert inside <= {"", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"}


def test_private_pools_are_told_by_where_events_lie() -> None:
    trace = read_pytorch_snapshot(recording_path("mempool")).trace
    assert [(row.first, row.second) for row in trace.pools] == [(0, 0), (0, 1)]
    columns = columns_of(trace)
    private = [one for one in recorded_values("mempool")["segments"] if one["segment_pool_id"] == (0, 1)]
    expected = sum(any(s["address"] <= a < s["address"] + s["total_size"] for s in private) for a in columns["address"])
    assert int(np.count_nonzero(columns["pool"] == 1)) == expected > 0


# ---- a history that begins in mid-run ----


def test_forgotten_beginning_is_said_and_its_blocks_are_initial() -> None:
    trace = read_pytorch_snapshot(recording_path("trunc")).trace
    assert trace.meta.history_truncated
    assert list(trace.meta.notes) == [
        "History begins in mid-run: 417.23 MiB were already live in 241 blocks, of 838.00 MiB reserved."
    ]
    unknown = [one for one in trace.initial_blocks if one.block_bytes is None]
    known = [one for one in trace.initial_blocks if one.block_bytes is not None]
    assert len(unknown) + len(known) == 257
    assert all(one.segment_address <= one.address < one.segment_address + one.segment_bytes for one in unknown + known)


@pytest.mark.parametrize("name", ["gpt", "streams", "fuzz_expandable", "fuzz_cap_expandable", "fuzz_cap", "pending"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_cut_history_starts_from_the_state_the_whole_one_has_there(tmp_path: Path, name: str, share: float) -> None:
    whole = read_pytorch_snapshot(recording_path(name)).trace
    values = recorded_values(name)
    entries = values["device_traces"][0]
    cut = int(len(entries) * share)
    while entries[cut]["action"] == "free_completed":
        cut += 1
    values["external_annotations"] = []
    values["device_traces"][0] = entries[cut:]
    rest = read_values(tmp_path, values).trace
    columns = columns_of(whole)
    events = columns["kind"] != EventKind.STEP
    dropped = int(np.count_nonzero(events)) - rest.event_count
    before = {name: column[events][:dropped] for name, column in columns.items()}
    frees = (EventKind.FREE, EventKind.FREE_REQUESTED)
    live = int(signed_bytes(before, (EventKind.ALLOC,), frees).sum())
    assert live == sum(b.requested_bytes for b in rest.initial_blocks if b.state is BlockState.ALLOCATED)
    assert int(reserved_curve(rest)[0]) == int(signed_bytes(before, OBTAINED, GIVEN_BACK).sum())
    assert int(reserved_curve(rest)[-1]) == int(reserved_curve(whole)[-1])


def test_segments_without_history_are_the_state_at_the_end(tmp_path: Path) -> None:
    segments = recorded_values("gpt")["segments"]
    snapshot = read_values(tmp_path, segments)
    trace = snapshot.trace
    assert (trace.event_count, trace.meta.history_truncated) == (0, True)
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    live = [one for one in trace.initial_blocks if one.state is BlockState.ALLOCATED]
    assert sum(one.block_bytes or 0 for one in live) == sum(b["size"] for b in blocks) == FACTS["gpt"]["alloc"]
    assert int(reserved_curve(trace)[0]) == FACTS["gpt"]["reserved"]
    assert trace.meta.notes == ["No history was recorded: this is the state at the end alone."]


def test_settings_that_the_file_lacks_are_said_to_be_taken_as_the_default_ones(tmp_path: Path) -> None:
    values = recorded_values("gpt")
    said = "The allocator's settings were not recorded: PyTorch's default ones are taken for them."
    meta = read_values(tmp_path, values).trace.meta
    assert (meta.settings, said in meta.notes) == ("", False)
    for lacking in ({}, None):
        values["allocator_settings"] = lacking
        meta = read_values(tmp_path, values).trace.meta
        assert (meta.settings, said in meta.notes) == (None, True)


# ---- encodings ----


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol_reads_the_same(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "snapshot.bin"
    path.write_bytes(pickle.dumps(recorded_values("streams"), protocol))
    assert is_pytorch_snapshot(path.read_bytes()[:4096])
    assert_same(read_pytorch_snapshot(path).trace, read_pytorch_snapshot(recording_path("streams")).trace)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "two gzip members": lambda content: gzip.compress(content[:1000]) + gzip.compress(content[1000:]),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "two bzip2 members": lambda content: bz2.compress(content[:1000]) + bz2.compress(content[1000:]),
    "zstd": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
@pytest.mark.parametrize("encoding", ["pickle", "json", "indented json"])
def test_json_and_compressed_files_read_the_same(
    tmp_path: Path, compress: Callable[[bytes], bytes], encoding: str
) -> None:
    content = recorded_bytes("gpt")
    if encoding != "pickle":
        content = json.dumps(recorded_values("gpt"), indent=2 if "indented" in encoding else None).encode()
    path = tmp_path / "snapshot"
    path.write_bytes(compress(content))
    assert is_pytorch_snapshot(path.read_bytes()[:4096])
    snapshot, plain = read_pytorch_snapshot(path), read_pytorch_snapshot(recording_path("gpt"))
    assert_same(snapshot.trace, plain.trace)
    assert np.array_equal(snapshot.segments.blocks.stack > 0, plain.segments.blocks.stack > 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_entries_taken_natively_are_those_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(pickle.dumps(recorded_values(name), protocol))
    taken = []
    monkeypatch.setattr(document, "skim_snapshot", lambda content: taken.append(skim_snapshot(content)) or taken[-1])
    natively = read_pytorch_snapshot(path)
    assert taken[-1] is not None
    monkeypatch.setattr(document, "skim_snapshot", lambda content: None)
    one_by_one = read_pytorch_snapshot(path)
    assert_same(natively.trace, one_by_one.trace)
    assert natively.trace.meta == one_by_one.trace.meta
    assert natively.trace.pools == one_by_one.trace.pools
    assert natively.trace.marks == one_by_one.trace.marks


def test_other_files_are_not_taken_for_snapshots() -> None:
    for head in (
        b"PK\x03\x04",
        b"",
        b"CUDA out of memory. Tried",
        b'{"schema": "gpumem.summary/1"}',
        b"[1, 2]",
        b"\x89P",
    ):
        assert not is_pytorch_snapshot(head)


# ---- versions ----


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
