"""Runs the policy's random programs plain and under the sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from waits import SECONDS_AT_MOST


@pytest.mark.needs("cmake", "compiler")
@pytest.mark.parametrize(
    ("sanitize", "operations"),
    [("", 6000), ("address,undefined", 1500), ("thread", 600)],
    ids=["plain", "memory", "thread"],
)
def test_equations_hold_after_every_operation_and_every_failure(
    native_programs: Callable[[str], Path], sanitize: str, operations: int
) -> None:
    program = native_programs(sanitize) / "policy_property"
    done = subprocess.run([program, str(operations), "1"], capture_output=True, text=True, timeout=2 * SECONDS_AT_MOST)
    assert (done.returncode, done.stderr) == (0, "")
    # Nine settings with four seeds each.
    assert done.stdout.startswith(f"policy_property: {operations * 36} operations, every equation held")
