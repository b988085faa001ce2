"""How tests wait: until something is so, and never for a time that ought to do.

Owns: when a wait is given up. Must not know: what is waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SECONDS_AT_MOST = 240
"""When a wait is given up: only something that hangs takes so long, on a crowded machine too."""


def own_threads() -> set[str]:
    """The kernel's numbers of this process's threads; one that was joined may still be on its way out."""
    return set(os.listdir("/proc/self/task"))


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Returns once `is_so()` is true; fails with `what` has not come where that hangs."""
    deadline = time.monotonic() + SECONDS_AT_MOST
    while not is_so():
        assert time.monotonic() < deadline, f"{what} has not come within {SECONDS_AT_MOST} seconds"
        time.sleep(0.001)
