"""Every mark has a moment that leads to its very event, whatever marks are called and however often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem.errors import MomentUnknown
from gpumem.heap.instants import find_instant
from gpumem.heap.marks import name_marks
from gpumem.trace.model import Mark, Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import EventIndex, MarkKind
from trace_builder import MiB, TraceBuilder


def losses() -> Trace:
    return TraceBuilder().segment(2 * MiB).mark("loss").alloc("a", 100).mark("loss").free("a").mark("loss").build()


def test_mark_of_a_repeated_name_is_named_by_its_number() -> None:
    trace = losses()
    assert name_marks(trace.marks) == ["mark:loss", "mark:loss:2", "mark:loss:3"]
    assert [find_instant(trace, parse_moment(name)).event for name in name_marks(trace.marks)] == [1, 3, 5]


def test_first_mark_may_be_numbered_too() -> None:
    assert find_instant(losses(), parse_moment("mark:loss:1")).event == 1


@pytest.mark.parametrize("number", ["0", "4", "999999999999999999"])
def test_number_that_the_name_has_not_tells_the_last_one(number: str) -> None:
    sentence = rf"has no mark:loss:{number}; it has mark:loss to mark:loss:3\."
    with pytest.raises(MomentUnknown, match=sentence):
        find_instant(losses(), parse_moment(f"mark:loss:{number}"))


def test_unknown_name_lists_how_often_each_is_there() -> None:
    with pytest.raises(MomentUnknown, match=r"has no mark 'los'; it has: mark:loss to mark:loss:3\."):
        find_instant(losses(), parse_moment("mark:los"))


def test_mark_whose_own_name_ends_in_a_number_comes_before_a_counted_one() -> None:
    trace = TraceBuilder().mark("epoch").mark("epoch:2").mark("epoch").mark("epoch").build()
    assert name_marks(trace.marks) == ["mark:epoch", "mark:epoch:2", "event:2", "mark:epoch:3"]
    assert find_instant(trace, parse_moment("mark:epoch:2")).event == 1


def test_nameless_marks_and_repeated_steps_are_named_by_their_events() -> None:
    marks = [
        Mark(MarkKind.MARK, "", None, EventIndex(-1), 0),
        Mark(MarkKind.STEP, "ProfilerStep#7", 7, EventIndex(0), 1),
        Mark(MarkKind.STEP, "", 7, EventIndex(3), 2),
        Mark(MarkKind.STEP, "", None, EventIndex(4), 3),
    ]
    assert name_marks(marks) == ["start", "step:7", "event:3", "event:4"]


NAMES = st.one_of(st.sampled_from(["a", "a:2", "a:2:2", "a:3", ":", ":2", "2", "a\n", "peak"]), st.text(max_size=3))


@given(st.lists(st.one_of(NAMES, st.none()), max_size=12))
def test_every_name_leads_back_to_its_mark(names: list[str | None]) -> None:
    builder = TraceBuilder()
    for name in names:
        builder.step() if name is None else builder.mark(name)
    trace = builder.build()
    found = [find_instant(trace, parse_moment(name)).event for name in name_marks(trace.marks)]
    assert found == [mark.event for mark in trace.marks]
