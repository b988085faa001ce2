"""Reports of one recording say the same: figures that two commands give are equal, and parts add up to their whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumem_cli.main import run_command_line

ROOT = Path(__file__).parents[3]
PATHS = [
    *sorted((ROOT / "sample_traces").glob("*.gpumem")),
    *(
        ROOT / "tests" / "recordings" / f"{name}.pickle.xz"
        for name in ("pending", "mempools", "gpt_expandable", "graph", "trunc")
    ),
]
LEVELS = ("allocated_bytes", "reserved_bytes", "requested_bytes")


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def recording(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


def told(capsys: pytest.CaptureFixture[str], command: str, path: Path, *words: str) -> dict[str, Any]:
    assert run_command_line([command, str(path), *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def summed(parts: list[dict[str, Any]], key: str = "bytes") -> int:
    return sum(part[key] for part in parts)


def peak_of(figure: dict[str, Any]) -> int:
    peak = figure["peak"] if figure["peak"] is not None else figure["peak_recorded"]
    assert isinstance(peak, int)
    return peak


def test_extremes_of_the_timeline_are_the_summary_s_peaks(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (summary,) = told(capsys, "summary", recording)["devices"]
    (timeline,) = told(capsys, "timeline", recording)["devices"]
    for level in LEVELS:
        assert max(point[level] for point in timeline["points"]) == peak_of(summary[level])
        assert timeline["points"][-1][level] == summary[level]["end"]


def test_holders_of_the_peak_add_up(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peak = told(capsys, "summary", recording)["devices"][0]["peak"]
    assert summed(peak["by_site"]) == sum(peak["by_category"].values()) == peak["bytes"]
    assert summed([group for group in peak["by_site"] if group["site"] is None]) == peak["unattributed_bytes"]


@pytest.mark.parametrize(("at", "of"), [("peak", "at_peak"), ("end", "end")])
def test_heap_of_a_moment_is_the_summary_s(
    recording: Path, at: str, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (summary,) = told(capsys, "summary", recording)["devices"]
    (heap,) = told(capsys, "snapshot", recording, "--at", at)["devices"]
    assert summed(heap["segments"]) == heap["reserved_bytes"]
    assert summed(heap["segments"], "allocated_bytes") == heap["allocated_bytes"]
    for segment in heap["segments"]:
        assert segment["tiled"]
        assert summed(segment["blocks"]) == segment["bytes"]
    idle, pending = summary["idle_bytes"][of], summary["pending_bytes"][of]
    assert heap["reserved_bytes"] == heap["allocated_bytes"] + pending + idle
    assert heap["allocated_bytes"] == heap["requested_bytes"] + summary["slack_bytes"][of]
    assert idle == summary["releasable_bytes"][of] + summary["gap_bytes"][of]


def test_ledger_adds_up_to_the_process_and_the_card(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "explain", recording)
    whole = found["reserved_bytes"] if found["process_bytes"] is None else found["process_bytes"]
    assert summed(found["components"]) + (found["unexplained_bytes"] or 0) == whole
    assert found["measured_bytes"] + found["derived_bytes"] + found["difference_bytes"] == whole
    for component in [*found["components"], *found["card"]["components"]]:
        assert not component["children"] or summed(component["children"]) == component["bytes"]
    assert not found["card"]["components"] or summed(found["card"]["components"]) == found["card"]["total_bytes"]


def test_reading_of_the_peak_is_the_same_in_every_report(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading = told(capsys, "summary", recording)["devices"][0]["nvml"]
    explained = told(capsys, "explain", recording)
    assert told(capsys, "snapshot", recording, "--at", "peak")["devices"][0]["nvml"] == reading
    assert explained["process_bytes"] == (reading and reading["process_bytes"])
    compared = told(capsys, "diff", recording, str(recording))["devices"][0]["nvml_process_bytes"]
    assert compared["before"] == compared["after"] == explained["process_bytes"]
