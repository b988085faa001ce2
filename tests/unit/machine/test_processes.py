"""Processes as /proc shows them."""

from __future__ import annotations

import os

from gpumem.machine.processes import read_own_pids


def test_own_pid_is_among_the_own_pids() -> None:
    assert os.getpid() in read_own_pids()
