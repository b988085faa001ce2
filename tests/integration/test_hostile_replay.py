"""Spoilt recordings through the native replay: whatever the columns hold, the process lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hostile_replay import replay_case

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz_replay.py"


def test_a_request_larger_than_the_card_is_not_reserved_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert replay_case(36408) == "differs"
    assert capfd.readouterr().err == ""


def test_spoilt_columns_and_heaps_end_in_a_verdict(tmp_path: Path) -> None:
    words = [sys.executable, str(FUZZ), "--count", "400", "--seed-file", str(tmp_path / "seed")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (tmp_path / "seed").read_text()
    outcomes = done.stdout.splitlines()[0]
    assert outcomes.startswith("400 cases:")
    assert "'differs'" in outcomes
    assert "'exact'" in outcomes
