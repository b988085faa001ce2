"""Processes as /proc shows them."""

from __future__ import annotations

import os

from gpumem.machine.processes import read_own_pids, read_start_ticks


def test_own_pid_is_among_the_own_pids() -> None:
    assert os.getpid() in read_own_pids()


def test_child_started_no_earlier_than_its_parent() -> None:
    own, parent = read_start_ticks(os.getpid()), read_start_ticks(os.getppid())
    assert own is not None
    assert parent is None or own >= parent


def test_process_that_does_not_exist_has_no_start() -> None:
    assert read_start_ticks((1 << 22) + 1) is None
