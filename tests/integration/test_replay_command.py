"""`gpumem replay` on every recording there is: exact, or what is known and the sentence on what is not."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumem.importers.open import open_trace
from gpumem.vocabulary import EventKind
from gpumem_cli.main import run_command_line
from journal_maker import JournalMaker
from recorded_snapshots import FACTS, NAMES, SAMPLES, recorded_values, recording_path

NATIVE = [path for path in sorted(SAMPLES.glob("*.gpumem")) if "cupy" not in path.stem]
LIMITS = {name: facts["limit"] for name, facts in FACTS.items() if "limit" in facts}
SENTENCES = {
    "trunc": "The history begins in mid-run",
    "graph_lifecycle": "Of private pools it is not recorded",
    "mempools": "whether they split blocks (no_split) or lend them (use_on_oom)",
    "toggle": "expandable_segments was switched during the run",
}
PAIRS = [
    ("gpt", "gpt_expandable"),
    ("gpt", "gpt_pow2"),
    ("gpt", "gpt_split64"),
    ("gpt_expandable", "gpt"),
    ("streams23_0", "streams23_1"),
    ("streams23_0", "streams23_2"),
    ("streams23_0", "streams23_3"),
    ("streams23_1", "streams23_0"),
]
CUT = sorted(set(NAMES) - set(SENTENCES))


def replay(path: Path, *options: str, capture: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of a replay, which must end well."""
    assert run_command_line(["replay", str(path), "--json", *options]) == 0
    document: dict[str, Any] = json.loads(capture.readouterr().out)
    assert document["schema"] == "gpumem.replay/1"
    return document


def replay_device(path: Path, *options: str, capture: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (device,) = replay(path, *options, capture=capture)["devices"]
    return dict(device)


@pytest.mark.parametrize("name", NAMES)
def test_recording_is_exact_down_to_its_last_block(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = replay_device(recording_path(name), capture=capsys)
    assert device["exact"] is True
    assert device["decisions"] == device["events"] > 0
    assert device["first_difference"] is None
    segments = recorded_values(name)["segments"]
    blocks = sum(len(segment["blocks"]) for segment in segments)
    assert device["final_heap"] == {"segments": len(segments), "blocks": blocks, "difference": None}
    if name in FACTS and name != "trunc":
        assert device["allocated_bytes_peak"] == FACTS[name]["max_alloc"]
        assert device["reserved_bytes_peak"] == FACTS[name]["max_reserved"]
        assert device["reserved_bytes_peak_range"] == [FACTS[name]["max_reserved"]] * 2
        assert device["oom_count"] == FACTS[name].get("num_ooms", device["oom_count"])
    assert device["recorded"]["reserved_bytes_peak"] == device["reserved_bytes_peak"]


@pytest.mark.parametrize(("name", "sentence"), SENTENCES.items())
def test_what_is_not_recorded_is_said(name: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = replay_device(recording_path(name), capture=capsys)
    assert any(sentence in said for said in device["not_recorded"]), device["not_recorded"]


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_a_limit_that_is_told_is_checked_too(name: str, limit: int, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = replay(recording_path(name), capture=capsys)["memory_limit"]
    assert (unknown["bytes"], unknown["from"]) == (None, "trace")
    assert unknown["at_least_bytes"] <= limit
    assert unknown["below_bytes"] is None or limit < unknown["below_bytes"]
    document = replay(recording_path(name), "--memory-limit", str(limit), capture=capsys)
    assert document["memory_limit"] == {"bytes": limit, "from": "option", "at_least_bytes": None, "below_bytes": None}
    assert document["devices"][0]["exact"] is True
    assert not document["what_if"]


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_what_gpumem_run_recorded_is_exact(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = replay(path, capture=capsys)
    assert document["source"] == ("gpumem" if path.stem.endswith("_own") else "native")
    (device,) = document["devices"]
    assert device["exact"] is True
    assert device["decisions"] == device["events"] > 0
    assert device["memory_limit"]["from"] == "meta"
    for figure in ("reserved_bytes_peak", "allocated_bytes_peak", "segment_alloc_count", "oom_count"):
        assert device[figure] == device["recorded"][figure], figure


@pytest.mark.parametrize("name", ["mempools", "trunc", "graph_lifecycle", "gpt_expandable", "fuzz_gc"])
def test_what_gpumem_import_wrote_is_exact_too(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{name}.gpumem"
    assert run_command_line(["import", "-q", str(recording_path(name)), "-o", str(path)]) == 0
    original, imported = (replay_device(one, capture=capsys) for one in (recording_path(name), path))
    for figure in ("exact", "decisions", "events", "reserved_bytes_peak", "allocated_bytes_peak", "oom_count"):
        assert imported[figure] == original[figure], figure
    assert imported["recorded"]["allocated_bytes_peak"] == original["allocated_bytes_peak"]


def test_the_journal_of_a_killed_program_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = open_trace(SAMPLES / "resnet50_train.gpumem")
    path = tmp_path / "train.gpumem.journal"
    maker = JournalMaker(path, window_records=4096)
    maker.fact("source", "native")
    maker.fact("versions", {"torch": "2.11.0"})
    for batch in trace.event_batches(["kind", "device", "address", "requested_bytes"]):
        rows = zip(*(batch[name].tolist() for name in ("kind", "device", "address", "requested_bytes")), strict=True)
        for kind, device, address, requested_bytes in rows:
            if device == 0:
                maker.record(EventKind(kind), address=address, requested_bytes=requested_bytes)
    device = replay_device(path, capture=capsys)
    assert device["exact"] is True
    assert device["decisions"] == 12_378
    assert device["allocated_bytes_peak"] == 725_762_048


def test_the_recorded_limit_is_that_of_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    document = replay(SAMPLES / "out_of_memory.gpumem", capture=capsys)
    assert document["memory_limit"]["bytes"] == 1 << 30
    assert document["gpu_memory_bytes"] == 150_109_880_320
    assert document["devices"][0]["oom_count"] == 1


@pytest.mark.parametrize(("recorded", "asked"), PAIRS)
def test_under_other_settings_the_peak_is_that_of_the_program_recorded_so(
    recorded: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = recorded_values(asked)["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    known = dict(item.split(":", 1) for item in line.split(",") if item)
    reset = {"expandable_segments": "False"} if "expandable" in recorded or recorded == "streams23_1" else {}
    options = [part for key, value in (reset | known).items() for part in ("--set", f"{key}={value}")]
    device = replay_device(recording_path(recorded), *options, capture=capsys)
    truth = FACTS[asked]["max_reserved"]
    assert abs(device["reserved_bytes_peak"] - truth) <= truth // 200
    low, high = device["reserved_bytes_peak_range"]
    assert low <= device["reserved_bytes_peak"] <= high
    assert device["saved_bytes"] == device["recorded"]["reserved_bytes_peak"] - device["reserved_bytes_peak"]
    assert device["exact"] is True


@given(name=st.sampled_from(CUT), share=st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_history_cut_anywhere_is_exact_from_there_on(
    name: str, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = recorded_values(name)
    trace = values["device_traces"][0]
    del trace[: max(1, int(share * len(trace)))]
    path = tmp_path / "cut.pickle"
    path.write_bytes(pickle.dumps(values))
    device = replay_device(path, capture=capsys)
    assert device["exact"] is True, device["first_difference"]
    assert device["final_heap"]["difference"] is None
    assert device["decisions"] == device["events"]
