"""Every command's figures on PyTorch's own recordings are PyTorch's own: ends, peaks, the heap block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumem_cli.main import run_command_line
from recorded_snapshots import FACTS, NAMES, recorded_values, recording_path

MID_RUN = "trunc"
STATES = {"active_allocated": "allocated", "active_pending_free": "pending", "inactive": "free"}


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run_command_line([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name in FACTS and name != MID_RUN])
def test_allocated_and_reserved_ends_and_peaks_are_those_that_pytorch_said(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = FACTS[name]
    summary = report(capsys, "summary", str(recording_path(name)))
    (device,) = summary["devices"]
    assert device["allocated_bytes"] == {"end": facts["alloc"], "peak": facts["max_alloc"]}
    assert device["reserved_bytes"] == {"end": facts["reserved"], "peak": facts["max_reserved"]}
    if device["retry_count"] != facts.get("retries", device["retry_count"]):
        assert any("retries may be more" in note for note in summary["notes"])
    assert device["peak"]["basis"] == "allocated"
    assert sum(holding["bytes"] for holding in device["peak"]["by_site"]) == facts["max_alloc"]
    idle = device["reserved_bytes"]["end"] - device["active_bytes"]["end"]
    assert device["idle_bytes"]["end"] == idle
    assert device["releasable_bytes"]["end"] + device["gap_bytes"]["end"] == idle
    points = report(capsys, "timeline", str(recording_path(name)))["devices"][0]["points"]
    assert max(point["allocated_bytes"] for point in points) == facts["max_alloc"]


@pytest.mark.parametrize("name", NAMES)
def test_snapshot_at_the_end_is_the_files_heap_block_by_block(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = report(capsys, "snapshot", str(recording_path(name)))["devices"]
    assert [heap_of_report(segment) for segment in device["segments"]] == [
        heap_of_file(segment) for segment in sorted(recorded_values(name)["segments"], key=lambda one: one["address"])
    ]
    assert all(segment["tiled"] for segment in device["segments"])


def heap_of_report(segment: dict[str, Any]) -> tuple[object, ...]:
    blocks = [
        (
            block["address"],
            block["bytes"],
            block["state"],
            block["requested_bytes"] if block["state"] != "free" else None,
        )
        for block in segment["blocks"]
    ]
    return segment["address"], segment["bytes"], segment["stream"], segment["expandable"], blocks


def heap_of_file(segment: dict[str, Any]) -> tuple[object, ...]:
    blocks = [
        (
            block["address"],
            block["size"],
            STATES[block["state"]],
            block["requested_size"] if block["state"] != "inactive" else None,
        )
        for block in segment["blocks"]
    ]
    return segment["address"], segment["total_size"], segment["stream"], segment["is_expandable"], blocks


def test_of_a_history_that_begins_in_mid_run_the_peaks_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    path, facts = recording_path(MID_RUN), FACTS[MID_RUN]
    summary = report(capsys, "summary", str(path))
    (device,) = summary["devices"]
    assert summary["truncated"]
    assert device["allocated_bytes"]["end"] == facts["alloc"]
    assert device["reserved_bytes"]["end"] == facts["reserved"]
    for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"):
        assert device[name]["peak"] is None
        assert device[name]["peak_recorded"] >= device[name]["end"]
    assert device["allocated_bytes"]["peak_recorded"] <= facts["max_alloc"]
    assert run_command_line(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert "History begins in mid-run: 417.23 MiB were already live in 241 blocks" in text
    assert "what was most before" in text


@pytest.mark.parametrize("name", ["gpt", "fuzz_expandable", "streams", MID_RUN])
def test_imported_snapshot_says_what_the_snapshot_says(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.gpumem"
    assert run_command_line(["import", "-q", str(recording_path(name)), "-o", str(target)]) == 0
    for command in ("summary", "snapshot"):
        direct, imported = report(capsys, command, str(recording_path(name))), report(capsys, command, str(target))
        assert imported | {"path": ""} == direct | {"path": ""}
