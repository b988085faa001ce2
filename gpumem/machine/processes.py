"""Processes as /proc shows them: pids across namespaces, when a process started, whether it lives.

Owns: reading /proc. Must not know: NVML, traces.
"""

from __future__ import annotations

import os
from pathlib import Path

_START_TICKS_FIELD = 19  # counted after the command's closing parenthesis: field 22 of the whole line


def read_own_pids() -> frozenset[int]:
    """Every pid this process is known by, in its own pid namespace and in those around it that /proc shows."""
    pids = {os.getpid()}
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset(pids)
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            pids.update(int(word) for word in line.split()[1:])
    return frozenset(pids)


def read_start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid`: tells a reused pid apart; None when there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The command stands in parentheses and may hold any character, so fields count from the last one.
    return int(line.rpartition(")")[2].split()[_START_TICKS_FIELD])


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether the process `pid` that started at `start_ticks` still runs."""
    return read_start_ticks(pid) == start_ticks
