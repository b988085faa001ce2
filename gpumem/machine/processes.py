"""Processes as /proc shows them: the pids that this one is known by across namespaces.

Owns: reading /proc. Must not know: NVML, traces.
"""

from __future__ import annotations

import os
from pathlib import Path


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
