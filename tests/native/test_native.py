"""Runs the native test programs as users build them, under the address and undefined-behaviour sanitizers, and under
the thread sanitizer.

test_limits mounts a small tmpfs to fill it when it runs as root; a limit on file length is tried always.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from waits import SECONDS_AT_MOST

SANITIZERS = ["", "address,undefined", "thread"]
PROGRAMS = [
    "test_journal",
    "test_recorder",
    "test_holds",
    "test_fork",
    "test_limits",
    "test_walker",
    "test_walker_chains",
    "test_walker_313",
    "test_walker_314",
    "test_walker_315",
    "test_tick_clock",
    "test_thread_value",
    "test_live_allocator",
    "test_nvml_sampling",
    "test_no_memory",
]
# The thread sanitizer's own runtime allows no new threads after a fork.
CASES = [
    (sanitize, name) for sanitize in SANITIZERS for name in PROGRAMS if (sanitize, name) != ("thread", "test_fork")
]


@pytest.mark.needs("cmake", "compiler")
@pytest.mark.parametrize(("sanitize", "program"), CASES, ids=[f"{name}-{kind or 'plain'}" for kind, name in CASES])
def test_native_program_passes(
    native_programs: Callable[[str], Path], tmp_path: Path, sanitize: str, program: str
) -> None:
    done = subprocess.run(
        [native_programs(sanitize) / program, tmp_path], capture_output=True, text=True, timeout=2 * SECONDS_AT_MOST
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
