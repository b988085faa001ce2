"""Recorded snapshots as traces: figures against PyTorch's own, every encoding and version gives the same trace."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpumem.abi.pickle import skim_snapshot
from gpumem.importers import pytorch_snapshot_document as document
from gpumem.importers.pytorch_snapshot import is_pytorch_snapshot, read_pytorch_snapshot
from gpumem.trace.model import Trace
from gpumem.vocabulary import BlockState, EventKind, MarkKind, TraceSource
from read_snapshots import assert_same, columns_of, entries_of, read_values
from recorded_snapshots import FACTS, NAMES, recorded_bytes, recorded_values, recording_path

WITH_FACTS = sorted(FACTS.keys() & set(NAMES))
OBTAINED = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
GIVEN_BACK = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)


def signed_bytes(columns: dict[str, np.ndarray], plus: tuple[int, ...], minus: tuple[int, ...]) -> np.ndarray:
    amount = columns["requested_bytes"].astype(np.int64)
    return np.where(np.isin(columns["kind"], plus), amount, 0) - np.where(np.isin(columns["kind"], minus), amount, 0)


def reserved_curve(trace: Trace) -> np.ndarray:
    segments = {(one.device, one.segment_address): one.segment_bytes for one in trace.initial_blocks}
    start = sum(segments.values())
    return start + np.append(0, np.cumsum(signed_bytes(columns_of(trace), OBTAINED, GIVEN_BACK)))


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
