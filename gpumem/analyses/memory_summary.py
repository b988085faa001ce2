"""What one live allocator counts, as its summary shows it.

Owns: the finding. Must not know: text, how it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """An allocator's figures now; `statistics` by PyTorch's names."""

    device: int
    name: str
    memory_bytes: int
    free_bytes: int
    limit_bytes: int | None
    statistics: Mapping[str, int]
    releasable_bytes: int
    gap_bytes: int
    cache_hit_count: int
    split_count: int

    @property
    def pending_bytes(self) -> int:
        """Freed, but another stream still uses it."""
        return self.statistics["active_bytes.all.current"] - self.statistics["allocated_bytes.all.current"]

    @property
    def slack_bytes(self) -> int:
        """Rounding of the blocks in use and pending."""
        return self.statistics["active_bytes.all.current"] - self.statistics["requested_bytes.all.current"]

    @property
    def idle_bytes(self) -> int:
        """Reserved and not in use."""
        return self.releasable_bytes + self.gap_bytes
