"""Stacks that are the very same on both sides of a comparison, in columns: most are, and need no weighing.

Owns: finding them. Must not know: how stacks that changed are paired, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.analyses.diff_files import LineMap
from gpumem.analyses.diff_sides import HeldGroup, HeldStacks
from gpumem.trace.model import Frame

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]


def find_same_stacks(
    before: HeldStacks, after: HeldStacks, lines: LineMap
) -> tuple[list[tuple[int, int]], list[HeldGroup], list[HeldGroup]]:
    """The places of stacks that went through the same functions on the same lines, and what is left of both sides.

    Only where all stacks of those functions are on both sides with the same lines: elsewhere lines may have moved, and
    which stack is which has to be weighed.
    """
    functions: dict[tuple[str, str], int] = {}
    was = _Columns.of(before, [lines.renamed(frame) for frame in before.frames], functions)
    now = _Columns.of(after, after.frames, functions)
    left, right = was.in_order(), now.in_order()
    paths, where = np.unique(np.concatenate([was.path[left], now.path[right]]), return_inverse=True)
    path_left, path_right = where[: len(left)], where[len(left) :]
    is_same = np.bincount(path_left, minlength=len(paths)) == np.bincount(path_right, minlength=len(paths))
    left, path_left, right = left[is_same[path_left]], path_left[is_same[path_left]], right[is_same[path_right]]
    is_same[path_left[~was.equals(now, left, right)]] = False
    left, right = left[is_same[path_left]], right[is_same[path_left]]
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    return pairs, _others(before, left), _others(after, right)


def _others(stacks: HeldStacks, paired: Int64s) -> list[HeldGroup]:
    is_left = np.ones(len(stacks.groups), np.bool_)
    is_left[paired] = False
    return [stacks.groups[at] for at in np.flatnonzero(is_left).tolist()]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The frames of all stacks one after another as numbers of functions, and lines; and what tells stacks apart."""

    function: Int64s
    line: Int64s
    depth: Int64s
    path: Keys
    """The same for stacks that went through the same functions."""
    place: Keys
    """The same for those that did on the same lines."""

    @classmethod
    def of(cls, stacks: HeldStacks, frames: Sequence[Frame], functions: dict[tuple[str, str], int]) -> _Columns:
        """The columns of stacks whose frames are `frames`; functions get numbers by file and name."""
        numbers = [functions.setdefault((frame.file, frame.function), len(functions)) for frame in frames]
        function = np.array(numbers, np.int64)[stacks.numbers]
        line = np.array([frame.line for frame in frames], np.int64)[stacks.numbers]
        path = _summed(function, stacks.depths)
        return cls(function, line, stacks.depths, path, path ^ _summed(line, stacks.depths))

    def in_order(self) -> Int64s:
        """The stacks by path, then by place."""
        return np.lexsort((self.place, self.path)).astype(np.int64)

    def equals(self, other: _Columns, left: Int64s, right: Int64s) -> Mask:
        """Whether each stack in `left` is frame by frame that of `other` beside it in `right`."""
        equal: Mask = (self.depth[left] == other.depth[right]) & (self.place[left] == other.place[right])
        left, right = left[equal], right[equal]
        mine, theirs = _frames_of(self.depth, left), _frames_of(other.depth, right)
        differs = (self.function[mine] != other.function[theirs]) | (self.line[mine] != other.line[theirs])
        stack = np.repeat(np.flatnonzero(equal), self.depth[left])
        equal[stack[differs]] = False
        return equal


def _frames_of(depth: Int64s, stacks: Int64s) -> Int64s:
    """Where the frames of the chosen stacks are, one after another."""
    starts, lengths = (np.cumsum(depth) - depth)[stacks], depth[stacks]
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def _summed(values: Int64s, depth: Int64s) -> Keys:
    """A number for each stack, from its values and their places: equal for equal ones, and hardly ever for others."""
    starts = np.cumsum(depth) - depth
    place = np.arange(len(values)) - np.repeat(starts, depth)
    mixed = _mixed(values.astype(np.uint64) + _mixed(place.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    keys: Keys = sums[starts + depth] - sums[starts]
    return keys


def _mixed(values: Keys) -> Keys:
    """The values spread over 64 bits."""
    values = (values + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8_FEB8_6659_FD93)
    return values ^ (values >> np.uint64(32))
