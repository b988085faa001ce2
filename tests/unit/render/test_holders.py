"""Whose blocks without a stack are said to be."""

from __future__ import annotations

import pytest

from gpumem.analyses.holdings import GroupBy
from gpumem.analyses.summary import summarise_trace
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import UNICODE, Page
from trace_builder import MiB, TraceBuilder

LINE = (("/srv/train.py", 3, "train"),)


def last_line(builder: TraceBuilder, by: GroupBy | None = None) -> str:
    text = render_summaries([summarise_trace(builder.build(), by=by)], Page(100, UNICODE)).plain
    return text.rstrip().splitlines()[-1]


def found() -> TraceBuilder:
    return TraceBuilder(block_bytes_known=True).initial("was there", 15 * MiB).segment(20 * MiB)


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (None, "(no Python stack: from before the recording)"),
        (GroupBy.FUNCTION, "(no Python stack: from before the recording)"),
        (GroupBy.THREAD, "(from before the recording)"),
        (GroupBy.SCOPE, "(from before the recording)"),
        (GroupBy.POOL, "(default pools)"),
    ],
)
def test_blocks_found_at_the_start_are_not_laid_at_the_door_of_autograd(by: GroupBy | None, text: str) -> None:
    assert last_line(found(), by) == f"  15.00 MiB  100.0 %        1  {text}"


def test_blocks_found_and_blocks_of_threads_without_python_are_told_as_both() -> None:
    builder = found().alloc("a", 5 * MiB).alloc("b", 4 * MiB, stack=LINE)
    assert last_line(builder) == "  20.00 MiB   83.3 %        2  (no Python stack: before the recording, or C++)"


def test_a_found_block_whose_stack_was_known_counts_at_its_site() -> None:
    builder = TraceBuilder(block_bytes_known=True).initial("was there", 15 * MiB, stack=LINE).segment(20 * MiB)
    assert last_line(builder) == "  15.00 MiB  100.0 %        1  /srv/train.py:3 train"
