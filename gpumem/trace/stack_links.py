"""Stacks as flat lists of frames turned into parent links that share their outer frames.

Owns: that turning, in bulk. Must not know: where frames come from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import StackTable


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
