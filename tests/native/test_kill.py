"""A recording killed at any instant keeps every record whose call had returned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kill_runs import run_and_kill


@pytest.mark.needs("cmake", "compiler")
def test_every_record_whose_call_returned_survives_a_kill(
    native_programs: Callable[[str], Path], tmp_path: Path
) -> None:
    program = native_programs("") / "kill_writer"
    results = [run_and_kill(program, tmp_path, seed, seconds_most=0.3) for seed in range(10)]
    assert [result.wrong for result in results] == [[]] * 10
    assert all(result.records >= result.returned > 0 for result in results)
