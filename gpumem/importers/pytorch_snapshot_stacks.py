"""Frames and stacks of a snapshot as tables, each kept once.

Owns: lists of frame dicts -> rows of StackTable. Must not know: events, blocks.

Most events bring a list of their own whose frame objects are shared, so a stack is known by its frames' addresses;
the frame objects are held for that. Nothing from the file is hashed or compared before its type is known.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        self._stacks: dict[tuple[int, ...], int] = {(): 0}

    def rows_of(self, stacks: Sequence[Sequence[object]]) -> npt.NDArray[np.uint32]:
        """The stack rows of frame lists (innermost first); raises TypeError where one cannot be gone through."""
        known = self._stacks.get
        rows = [known(tuple(map(id, frames))) for frames in stacks]
        if None in rows:
            rows = [self._row_of(frames) if row is None else row for frames, row in zip(stacks, rows, strict=True)]
        return np.array(rows, dtype=np.uint32)

    def row_of(self, frames: object) -> int:
        """The stack row of what stands under `frames`; 0 for anything but a list of frames."""
        return self._row_of(frames) if isinstance(frames, list | tuple) and frames else 0

    def tables(self) -> tuple[FrameTable, StackTable]:
        """What was collected."""
        lines = np.array(self._lines, dtype=np.uint32)
        links = np.array(self._parents, dtype=np.uint32), np.array(self._frames, dtype=np.uint32)
        return FrameTable(self._files, lines, self._functions), StackTable(*links)

    def _row_of(self, frames: Sequence[object]) -> int:
        addresses = tuple(map(id, frames))
        row = self._stacks.get(addresses)
        if row is None:
            row = 0
            for frame in reversed(frames):
                frame_row = self._frame_row(frame)
                if frame_row:
                    row = self._link(row, frame_row)
            self._stacks[addresses] = row
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
