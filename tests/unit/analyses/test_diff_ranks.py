"""Which traces of two runs belong together, and which rank changed the most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from explained_traces import unrecorded_trace
from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_ranks import RankDiff, RankDiffs, pair_ranks
from gpumem.errors import UsageError
from gpumem.trace.model import Trace
from trace_builder import MiB, TraceBuilder


def of_rank(rank: int | None, name: str = "", held_bytes: int = 1 * MiB) -> Trace:
    trace = TraceBuilder(rank=rank).segment(20 * MiB).alloc("a", held_bytes).build()
    return replace(trace, path=Path(name or f"rank{rank}.gpumem"))


def names(pairs: list[tuple[Trace, Trace]]) -> list[tuple[str, str]]:
    return [(was.path.name, now.path.name) for was, now in pairs]


def test_the_same_rank_belongs_together_whatever_the_order_of_the_files() -> None:
    found = pair_ranks([of_rank(2), of_rank(0), of_rank(3)], [of_rank(0), of_rank(1), of_rank(2)])
    assert names(list(found.pairs)) == [("rank0.gpumem", "rank0.gpumem"), ("rank2.gpumem", "rank2.gpumem")]
    assert [trace.meta.rank for trace in found.before_only] == [3]
    assert [trace.meta.rank for trace in found.after_only] == [1]


def test_traces_without_ranks_belong_together_in_their_order() -> None:
    found = pair_ranks([of_rank(None, "a"), of_rank(None, "b")], [of_rank(None, "c"), of_rank(None, "d")])
    assert names(list(found.pairs)) == [("a", "c"), ("b", "d")]
    assert (list(found.before_only), list(found.after_only)) == ([], [])


def test_two_single_traces_are_compared_whatever_their_ranks() -> None:
    assert names(list(pair_ranks([of_rank(0)], [of_rank(5)]).pairs)) == [("rank0.gpumem", "rank5.gpumem")]


def test_launchers_beside_the_ranks_belong_together_too() -> None:
    found = pair_ranks([of_rank(None, "torchrun"), of_rank(0)], [of_rank(0), of_rank(None, "launch")])
    assert names(list(found.pairs)) == [("rank0.gpumem", "rank0.gpumem"), ("torchrun", "launch")]


def test_runs_that_share_no_rank_and_differ_in_number_are_not_guessed_at() -> None:
    with pytest.raises(UsageError, match=r"rank0\.gpumem, rank1\.gpumem and rank2\.gpumem have no rank in common"):
        pair_ranks([of_rank(0), of_rank(1)], [of_rank(2)])


def test_the_greatest_change_is_that_of_most_bytes_whatever_its_sign_and_known_before_unknown() -> None:
    diffs = [
        compare_traces(of_rank(0), of_rank(0, held_bytes=4 * MiB)),
        compare_traces(of_rank(1, held_bytes=9 * MiB), of_rank(1)),
        compare_traces(of_rank(2, held_bytes=19 * MiB), unrecorded_trace()),
    ]
    found = RankDiffs([RankDiff(rank, diff, None) for rank, diff in enumerate(diffs)], (), ())
    assert found.greatest.rank == 1
