"""Flat stacks become parent links that give the same stacks back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumem.trace.model import StackTable
from gpumem.trace.stack_links import link_stacks, walk_stacks
from gpumem.vocabulary import StackId


def linked(stacks: list[list[int]]) -> StackTable:
    flat = np.array([frame for stack in stacks for frame in stack], np.uint32)
    return link_stacks(flat, np.array([len(stack) for stack in stacks], np.int64))


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), max_size=30))
def test_every_stack_comes_back_from_its_row(stacks: list[list[int]]) -> None:
    table = linked(stacks)
    assert [table.frames_of(StackId(row + 1)) for row in range(len(stacks))] == stacks


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=30), st.data())
def test_stacks_are_walked_together_in_any_order(stacks: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(stacks)), max_size=20))
    frames, depths = walk_stacks(linked(stacks), np.array(chosen, np.int64))
    expected = [stacks[row - 1] if row else [] for row in chosen]
    assert depths.tolist() == [len(stack) for stack in expected]
    assert frames.tolist() == [frame for stack in expected for frame in stack]


def test_outer_frames_are_shared() -> None:
    table = linked([[3, 2, 1], [4, 2, 1], [2, 1]])
    assert table.parents.tolist() == [0, 3, 3, 4, 0]
    assert table.frames.tolist() == [0, 3, 4, 2, 1]


def test_no_stacks_give_the_empty_row() -> None:
    table = linked([])
    assert (table.parents.tolist(), table.frames.tolist()) == ([0], [0])
