"""Comparisons of real recordings: figures are PyTorch's own, sums hold, and the first line names the change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumem_cli.main import run_command_line
from recorded_snapshots import FACTS, SAMPLES, recording_path

PAIRS = [
    ("gpt", "gpt_expandable"),
    ("gpt", "gpt_pow2"),
    ("gpt", "gpt_split64"),
    ("gpt", "resnet"),
    ("streams23_0", "streams23_4"),
    ("leak", "gpt"),
    ("fuzz1", "fuzz2"),
    ("plain_default", "plain_expandable_split"),
]


def compared(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run_command_line(["diff", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def check_sums(found: dict[str, Any]) -> None:
    for device in found["devices"]:
        held = device[f"{found['basis']}_bytes"]
        for groups in (device["by_site"], device["by_stack"]):
            for side in ("before", "after"):
                assert sum(group[f"{side}_bytes"] for group in groups) == held[side]
            assert sum(group["delta_bytes"] for group in groups) == held["delta"]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_peaks_are_those_that_pytorch_said_and_sums_hold(
    before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, str(recording_path(before)), str(recording_path(after)))
    was, now = FACTS[before], FACTS[after]
    (device,) = found["devices"]
    assert (device["allocated_bytes"]["before"], device["allocated_bytes"]["after"]) == (
        was["max_alloc"],
        now["max_alloc"],
    )
    assert device["reserved_bytes_peak"]["delta"] == now["max_reserved"] - was["max_reserved"]
    check_sums(found)


@pytest.mark.parametrize("name", ["gpt", "resnet", "decode", "streams"])
def test_recording_differs_from_its_copy_by_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.gpumem"
    assert run_command_line(["import", str(recording_path(name)), "-o", str(copy)]) == 0
    capsys.readouterr()
    found = compared(capsys, str(recording_path(name)), str(copy), "--fail-above", "0")
    assert found["headline"].startswith("Nothing changed: the same ")
    assert not found["settings"]
    assert {group["change"] for group in found["devices"][0]["by_stack"]} == {"same"}


def test_settings_that_made_the_difference_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, str(recording_path("gpt")), str(recording_path("gpt_expandable")))
    assert found["headline"].startswith("Peak of reserved fell by 168.00 MiB (1.19 → 1.02 GiB), far more than alloc")
    assert found["settings"] == [{"name": "allocator settings", "before": None, "after": "expandable_segments:True"}]


def test_nine_steps_grow_by_the_gib_that_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(SAMPLES / "nine_steps.gpumem")
    moments = ("--at", "mark:1 a on the GPU", "--at", "mark:2 b on the GPU")
    found = compared(capsys, trace, *moments, "--fail-above", "1GiB")
    assert found["headline"] == (
        "nine_steps.py:31 zeros holds 1.00 GiB more (1.00 → 2.00 GiB, 1 → 2 blocks); no other site changed."
    )
    assert not compared(capsys, trace, *moments, "--fail-above", "1023MiB", code=1)["fail_above"]["passed"]


@pytest.mark.parametrize("name", ["nine_steps", "gpt2_train", "resnet50_train", "out_of_memory", "nine_steps_cupy"])
def test_samples_grow_from_nothing_to_their_peak(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, str(SAMPLES / f"{name}.gpumem"), "--at", "start", "--at", "peak")
    check_sums(found)
    (device,) = found["devices"]
    assert {group["change"] for group in device["by_site"]} == {"new"}
    assert device["allocated_bytes"]["delta"] == device["allocated_bytes_peak"]["after"]
