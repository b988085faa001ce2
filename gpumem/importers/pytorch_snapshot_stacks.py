"""Frames and stacks of a snapshot as tables, each kept once.

Owns: lists of frame dicts -> rows of StackTable. Must not know: events, blocks.

Most events bring a list of their own whose frame objects are shared, so a stack is known by its frames' addresses:
their sum with random 64-bit weights, taken in bulk, a quarter of the time of a tuple each (two stacks of a million
have the same sum once in 10^6 files). The frame objects are held so that no address is used again. Nothing from the
file is hashed or compared before its type is known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import FrameTable, StackTable

LINE_MAX = 2**32 - 1


class StackInterner:
    """Collects stacks; row 0 is the empty one."""

    def __init__(self) -> None:
        self._files: list[str] = [""]
        self._lines: list[int] = [0]
        self._functions: list[str] = [""]
        self._frame_rows: dict[tuple[str, int, str], int] = {}
        self._rows_by_object: dict[int, int] = {}
        self._objects: list[object] = []
        self._parents: list[int] = [0]
        self._frames: list[int] = [0]
        self._links: dict[tuple[int, int], int] = {}
        self._stacks: dict[int, int] = {0: 0}
        self._weights = _random_weights(64)

    def rows_of(self, stacks: Sequence[Sequence[object]]) -> npt.NDArray[np.uint32]:
        """The stack rows of frame lists (innermost first)."""
        known = self._stacks.get
        keys = self._keys_of(stacks)
        rows = list(map(known, keys))
        if None in rows:
            rows = [self._row_of(frames, key) for frames, key in zip(stacks, keys, strict=True)]
        return np.array(rows, dtype=np.uint32)

    def tables(self) -> tuple[FrameTable, StackTable]:
        """What was collected."""
        lines = np.array(self._lines, dtype=np.uint32)
        links = np.array(self._parents, dtype=np.uint32), np.array(self._frames, dtype=np.uint32)
        return FrameTable(self._files, lines, self._functions), StackTable(*links)

    def _keys_of(self, stacks: Sequence[Sequence[object]]) -> list[int]:
        """A number for each list: its frames' addresses, weighted by a random number for each depth, added up."""
        depths = np.fromiter(map(len, stacks), dtype=np.int64, count=len(stacks))
        frames = np.fromiter(chain.from_iterable(stacks), dtype=object, count=int(depths.sum()))
        starts = np.cumsum(depths) - depths
        depth_of_frame = np.arange(len(frames)) - np.repeat(starts, depths)
        while len(self._weights) < depths.max(initial=0):
            self._weights = np.append(self._weights, _random_weights(len(self._weights)))
        weighted = np.zeros(len(frames) + 1, dtype=np.uint64)
        np.multiply(np.frombuffer(frames.tobytes(), dtype=np.uint64), self._weights[depth_of_frame], out=weighted[:-1])
        keys = np.add.reduceat(weighted, starts) if len(stacks) else weighted[:0]
        keys[depths == 0] = 0
        made: list[int] = keys.tolist()
        return made

    def _row_of(self, frames: Sequence[object], key: int) -> int:
        row = self._stacks.get(key)
        if row is None:
            row = 0
            for frame in reversed(frames):
                frame_row = self._frame_row(frame)
                if frame_row:
                    row = self._link(row, frame_row)
            self._stacks[key] = row
        return row

    def _link(self, parent: int, frame_row: int) -> int:
        row = self._links.setdefault((parent, frame_row), len(self._parents))
        if row == len(self._parents):
            self._parents.append(parent)
            self._frames.append(frame_row)
        return row

    def _frame_row(self, frame: object) -> int:
        row = self._rows_by_object.get(id(frame))
        if row is None:
            row = self._new_frame_row(frame)
            self._rows_by_object[id(frame)] = row
            self._objects.append(frame)
        return row

    def _new_frame_row(self, frame: object) -> int:
        if not isinstance(frame, dict):
            return 0
        file, line, function = frame.get("filename", ""), frame.get("line", 0), frame.get("name", "")
        file = file if isinstance(file, str) else ""
        function = function if isinstance(function, str) else ""
        line = line if isinstance(line, int) and 0 <= line <= LINE_MAX else 0
        row = self._frame_rows.setdefault((file, line, function), len(self._files))
        if row == len(self._files):
            self._files.append(file)
            self._lines.append(line)
            self._functions.append(function)
        return row


def _random_weights(count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64) | np.uint64(1)
