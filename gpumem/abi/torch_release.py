"""In what PyTorch's releases differ, as far as gpumem follows them.

Owns: since which release what holds, read from a version's text. Must not know: torch, traces, how the policy does it.
Each difference was seen in the released wheels.
"""

from __future__ import annotations

import re

from gpumem.abi.policy import NO_BEHAVIOUR, Behaviour

POOLS_SAID_SINCE = (2, 8)
"""The allocator's entries carry the private pool; snapshots show it since 2.12 only."""
REJECTIONS_COUNTED_SINCE = (2, 12)
"""memory_stats() has num_oom_rejections."""
PRIVATE_POOLS_COUNTED_SINCE = (2, 13)
"""memory_stats() has reserved_bytes_by_private_pools."""
_BEHAVIOURS_SINCE = {(2, 12): Behaviour.OLDEST_BLOCK_FIRST, (2, 13): Behaviour.OLDEST_SEGMENT_FIRST}


def has_come(since: tuple[int, int], version: str | None) -> bool:
    """Whether a version is of this release or a later one; False where its text does not say."""
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", version or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= since


def behaviour_of(version: str | None) -> Behaviour:
    """Where the allocator of this version differs from 2.11's."""
    behaviour = NO_BEHAVIOUR
    for since, one in _BEHAVIOURS_SINCE.items():
        if has_come(since, version):
            behaviour |= one
    return behaviour
