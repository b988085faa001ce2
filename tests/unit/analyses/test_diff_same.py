"""Stacks that are the very same on both sides, told in columns from those that have to be weighed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses import diff_same
from gpumem.analyses.diff_files import LineMap
from gpumem.analyses.diff_same import find_same_stacks
from gpumem.analyses.diff_sides import HeldGroup, HeldStacks
from gpumem.trace.model import Frame

Stack = tuple[Frame, ...]
UNMOVED = LineMap({}, {})
FRAMES = [Frame(f"/a/{file}.py", line, name) for file in "xy" for line in (1, 2) for name in ("f", "g")]


def held(stacks: Sequence[Stack]) -> HeldStacks:
    frames = list(dict.fromkeys(frame for stack in stacks for frame in stack))
    return HeldStacks(
        [HeldGroup(stack, 0, number + 1, 1) for number, stack in enumerate(stacks)],
        frames,
        np.array([frames.index(frame) for stack in stacks for frame in stack], np.int64),
        np.array([len(stack) for stack in stacks], np.int64),
    )


def pairs(before: Sequence[Stack], after: Sequence[Stack], lines: LineMap = UNMOVED) -> list[tuple[int, int]]:
    return sorted(find_same_stacks(held(before), held(after), lines)[0])


def script(*lines: int) -> Stack:
    return tuple(Frame("/a/train.py", line, name) for line, name in zip(lines, ("step", "main"), strict=False))


def test_same_stacks_are_paired_whatever_their_order_and_others_are_left() -> None:
    before, after = [script(1, 9), script(2), script(3, 9)], [script(3, 9), (), script(1, 9)]
    found, was, now = find_same_stacks(held(before), held(after), UNMOVED)
    assert sorted(found) == [(0, 2), (2, 0)]
    assert [group.frames for group in was] == [script(2)]
    assert [group.frames for group in now] == [()]


def test_where_one_line_of_a_function_is_another_none_of_it_is_taken_for_the_same() -> None:
    assert pairs([script(1), script(2)], [script(2), script(3)]) == []
    assert pairs([script(1), script(2)], [script(2)]) == []
    assert pairs([script(1, 9), script(2)], [script(1, 9), script(3)]) == [(0, 0)]


def test_files_that_have_another_name_now_are_the_same() -> None:
    later = tuple(Frame("/b/train.py", frame.line, frame.function) for frame in script(1, 9))
    assert pairs([script(1, 9)], [later]) == []
    assert pairs([script(1, 9)], [later], LineMap({"/a/train.py": "/b/train.py"}, {})) == [(0, 0)]


def test_frames_are_compared_where_their_sums_are_equal_by_chance() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff_same, "_mixed", lambda values: np.ones_like(values))
        assert pairs([script(1, 9)], [script(2, 9)]) == []
        assert pairs([script(1, 9)], [script(1, 9)]) == [(0, 0)]
        assert pairs([script(1, 9)], [script(1)]) == []


@settings(max_examples=200, deadline=None)
@given(*[st.lists(st.lists(st.sampled_from(FRAMES), max_size=3).map(tuple), unique=True, max_size=8)] * 2)
def test_pairs_are_those_that_a_plain_look_gives(before: list[Stack], after: list[Stack]) -> None:
    def path(stack: Stack) -> tuple[tuple[str, str], ...]:
        return tuple((frame.file, frame.function) for frame in stack)

    def all_of(stacks: Sequence[Stack], one: Stack) -> set[Stack]:
        return {stack for stack in stacks if path(stack) == path(one)}

    plain = [
        (at, after.index(stack)) for at, stack in enumerate(before) if all_of(before, stack) == all_of(after, stack)
    ]
    assert pairs(before, after) == plain
