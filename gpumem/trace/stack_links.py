"""Stacks as flat lists of frames turned into parent links that share their outer frames, and back.

Owns: that turning, in bulk. Must not know: where frames come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import Frame, StackTable, Trace
from gpumem.vocabulary import FrameId


def link_stacks(frames: npt.NDArray[np.uint32], depths: npt.NDArray[np.int64]) -> StackTable:
    """The stacks table whose row i + 1 is stack i: `frames` holds the frame rows of all stacks one after another,
    innermost first, `depths` how many each has. Rows behind those are outer parts that no stack ends in.

    All stacks are walked at once, level by level from the outermost frame; equal (parent, frame) is one node.
    """
    stack_count = len(depths)
    ends = np.cumsum(depths)
    nodes = np.zeros(stack_count, np.int64)
    node_parents, node_frames = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    node_count = 1
    factor = int(frames.max(initial=0)) + 1
    for level in range(int(depths.max(initial=0))):
        active = np.flatnonzero(depths > level)
        keys = nodes[active] * factor + frames[ends[active] - 1 - level]
        distinct, found = np.unique(keys, return_inverse=True)
        nodes[active] = node_count + found.reshape(-1)
        node_parents.append(distinct // factor)
        node_frames.append(distinct % factor)
        node_count += len(distinct)
    return _rows(nodes, np.concatenate(node_parents), np.concatenate(node_frames))


def walk_stacks(
    table: StackTable, stacks: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The frame rows of `stacks` one after another, innermost first, and how many each has: what made the table."""
    at, walker = stacks.astype(np.int64), np.arange(len(stacks))
    levels: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]] = []
    depths = np.zeros(len(stacks), np.int64)
    while True:
        is_inside = at > 0
        at, walker = at[is_inside], walker[is_inside]
        if not len(at):
            break
        depths[walker] += 1
        levels.append((walker, table.frames[at]))
        at = table.parents[at].astype(np.int64)
    starts = np.cumsum(depths) - depths
    frames = np.zeros(int(depths.sum()), np.int64)
    for level, (walker, rows) in enumerate(levels):
        frames[starts[walker] + level] = rows
    return frames, depths


def read_stacks(trace: Trace, stacks: npt.NDArray[np.int64]) -> list[tuple[Frame, ...]]:
    """The frames of each of `stacks`, innermost first; the same line is the same Frame in all of them."""
    rows, depths = walk_stacks(trace.stacks, stacks)
    return cut_stacks(*read_frames(trace, rows), depths)


def read_frames(trace: Trace, rows: npt.NDArray[np.int64]) -> tuple[list[Frame], npt.NDArray[np.int64]]:
    """The distinct frames among rows of the frames table, and for each row which of them it is."""
    is_there = np.zeros(len(trace.frames.files), np.bool_)
    is_there[rows] = True
    frames = [trace.frames.frame(FrameId(row)) for row in np.flatnonzero(is_there).tolist()]
    return frames, (np.cumsum(is_there) - 1)[rows]


def cut_stacks(
    frames: Sequence[Frame], numbers: npt.NDArray[np.int64], depths: npt.NDArray[np.int64]
) -> list[tuple[Frame, ...]]:
    """Stacks whose frames stand one after another, each as its place among `frames`, as tuples."""
    made = np.empty(len(frames), object)
    made[:] = frames
    flat = made[numbers].tolist()
    ends = np.cumsum(depths).tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise([0, *ends])]


def _rows(
    nodes: npt.NDArray[np.int64], node_parents: npt.NDArray[np.int64], node_frames: npt.NDArray[np.int64]
) -> StackTable:
    """Rows in the order stacks, then nodes that no stack ends in; `nodes` gives each stack's innermost node."""
    stack_count = len(nodes)
    row_of_node = np.zeros(len(node_parents), np.int64)
    row_of_node[nodes[::-1]] = np.arange(stack_count, 0, -1)
    row_of_node[0] = 0
    outer = np.flatnonzero(row_of_node[1:] == 0) + 1
    row_of_node[outer] = stack_count + 1 + np.arange(len(outer))
    order = np.concatenate([np.zeros(1, np.int64), nodes, outer])
    return StackTable(
        row_of_node[node_parents[order]].astype(np.uint32),
        node_frames[order].astype(np.uint32),
    )
