"""The traces of two runs of several processes, compared rank by rank.

Owns: which traces belong together, and which rank changed the most. Must not know: how two traces are compared, words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpumem.analyses.diff_findings import TraceDiff
from gpumem.analyses.diff_headline import GrowthCheck, find_changed_bytes
from gpumem.errors import UsageError
from gpumem.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which trace of one run belongs to which of the other, in order of their ranks, and those that have no other."""

    pairs: Sequence[tuple[Trace, Trace]]
    before_only: Sequence[Trace]
    after_only: Sequence[Trace]


@dataclass(frozen=True, slots=True)
class RankDiff:
    """What changed on one rank; `rank` is None where the traces do not say it."""

    rank: int | None
    diff: TraceDiff
    growth: GrowthCheck | None
    """The check of a limit on growth, where there was one."""


@dataclass(frozen=True, slots=True)
class LoneTrace:
    """A trace that the other run has none for."""

    path: str
    rank: int | None


@dataclass(frozen=True, slots=True)
class RankDiffs:
    """Two runs of several processes."""

    ranks: Sequence[RankDiff]
    before_only: Sequence[LoneTrace]
    after_only: Sequence[LoneTrace]

    @property
    def greatest(self) -> RankDiff:
        """The rank on which the most changed, the first of equals."""
        return max(self.ranks, key=lambda one: find_changed_bytes(one.diff))


def pair_ranks(before: Sequence[Trace], after: Sequence[Trace]) -> Pairing:
    """Traces of the same rank belong together, several of one rank in their order; where no rank is on both sides, all
    in their order.

    Raises UsageError where these are not as many on both sides.
    """
    was, now = _by_rank(before), _by_rank(after)
    if not (was.keys() & now.keys()) - {None}:
        if len(before) != len(after):
            names = (", ".join(trace.path.name for trace in side) for side in (before, after))
            raise UsageError("{} and {} have no rank in common; name one trace before and one after.".format(*names))
        was, now = {None: list(before)}, {None: list(after)}
    ranks = sorted(was.keys() | now.keys(), key=lambda rank: (rank is None, rank or 0))
    counts = {rank: min(len(was.get(rank, ())), len(now.get(rank, ()))) for rank in ranks}
    return Pairing(
        [pair for rank in ranks for pair in zip(was.get(rank, ()), now.get(rank, ()), strict=False)],
        [trace for rank in ranks for trace in was.get(rank, [])[counts[rank] :]],
        [trace for rank in ranks for trace in now.get(rank, [])[counts[rank] :]],
    )


def _by_rank(traces: Sequence[Trace]) -> dict[int | None, list[Trace]]:
    found: dict[int | None, list[Trace]] = defaultdict(list)
    for trace in traces:
        found[trace.meta.rank].append(trace)
    return dict(found)
