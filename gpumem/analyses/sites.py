"""Sites: which line of the user's own code a stack belongs to.

Owns: the rule of what is the user's own. Must not know: bytes, heaps, reports.
The trace may come from another machine, so the rule reads paths as text and asks no file system.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import Frame, FrameTable, Trace
from gpumem.vocabulary import FrameId, StackId

_NOT_THE_USERS = re.compile(
    r"""
      ^<.*>$                                              # <string>, <frozen runpy>
    | [/\\](site|dist)-packages[/\\]
    | [/\\]lib(64)?[/\\](python|pypy)3(\.\d+)?t?[/\\]     # the standard library
    | [/\\]python3\d+\.zip[/\\]
    | [/\\]gpumem[/\\](recorder|seal|trace|abi|nvml|__init__|__main__|allocator|cupy)\b
    | [/\\]gpumem_cli[/\\]
    """,
    re.VERBOSE,
)


_COMPILED = re.compile(r"^(\?\?|[^/\\]+\.(c|cc|cpp|cu|cuh|h|hpp|S))?$")
"""C++ frames of installed libraries, as PyTorch's snapshots have them: no file, or a name without a folder."""
_BACKWARD = re.compile(r"\bautograd::generated::\w*Backward\d*::apply\b")
_OF_THE_ALLOCATOR = re.compile(r"torch::unwind::|torch::CapturedTraceback::|gather_with_cpp|CUDACachingAllocator::")

_SAMPLE = re.compile(r"[/\\]gpumem[/\\]samples[/\\]")
"""Programs that come with gpumem and play the user."""

NO_SITE = -1
"""In place of a frame's row: stack 0 has none."""
_NOT_LOOKED_FOR = -2
_FOUND_TOGETHER = 4096


def is_users_own(file: str) -> bool:
    """Whether a file holds the user's own code: no standard library, no installed package or its C++, no `<…>`, not
    gpumem.
    """
    if _COMPILED.match(file):
        return False
    return not _NOT_THE_USERS.search(file) or _SAMPLE.search(file) is not None


class SiteFinder:
    """The site of each stack of a trace: of many at once, remembering what it found."""

    def __init__(self, trace: Trace) -> None:
        self._frames, self._stacks = trace.frames, trace.stacks
        self._found = np.full(max(1, len(trace.stacks.parents)), _NOT_LOOKED_FOR, np.int64)
        self._found[0] = NO_SITE
        files, functions = trace.frames.files, trace.frames.functions
        own = cache(is_users_own)
        self._rules = (
            _FrameRule(trace.frames, lambda row: own(files[row])),
            _FrameRule(trace.frames, lambda row: not _COMPILED.match(files[row])),
            _FrameRule(trace.frames, lambda row: _BACKWARD.search(functions[row]) is not None),
            _FrameRule(trace.frames, lambda row: not _OF_THE_ALLOCATOR.search(functions[row])),
            _FrameRule(trace.frames, lambda row: True),
        )

    def find_frames(self, stacks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The frame of each stack's site: innermost of the user's own, else innermost of Python; of C++ alone the
        backward function, else what called the allocator. NO_SITE for stack 0.
        """
        left = _distinct(stacks[self._found[stacks] == _NOT_LOOKED_FOR], len(self._found))
        for rule in self._rules:
            if not len(left):
                break
            found = self._innermost(left, rule)
            self._found[left] = found
            left = left[found == NO_SITE]
        return self._found[stacks]

    def site_frame(self, stack: StackId) -> FrameId | None:
        """The frame of one stack's site; None for stack 0."""
        row = int(self._found[stack])
        if row == _NOT_LOOKED_FOR:  # its neighbours will be asked for too
            first = stack - stack % _FOUND_TOGETHER
            self.find_frames(np.arange(first, min(first + _FOUND_TOGETHER, len(self._found))))
            row = int(self._found[stack])
        return None if row == NO_SITE else FrameId(row)

    def site(self, stack: StackId) -> Frame | None:
        """The site of a stack, None without one."""
        row = self.site_frame(stack)
        return None if row is None else self._frames.frame(row)

    def _innermost(self, stacks: npt.NDArray[np.int64], rule: _FrameRule) -> npt.NDArray[np.int64]:
        """The innermost frame of each stack that is one by the rule; NO_SITE where none is. All are walked at once."""
        found = np.full(len(stacks), NO_SITE, np.int64)
        at, walker = stacks.astype(np.int64), np.arange(len(stacks))
        while len(at):
            rows = self._stacks.frames[at].astype(np.int64)
            is_one = rule.is_one(rows)
            found[walker[is_one]] = rows[is_one]
            parents = self._stacks.parents[at].astype(np.int64)
            goes_on = ~is_one & (parents > 0)
            at, walker = parents[goes_on], walker[goes_on]
        return found


class _FrameRule:
    """Whether frames are what a rule looks for; each is judged once."""

    def __init__(self, frames: FrameTable, judge: Callable[[int], bool]) -> None:
        self._judge = judge
        self._is_one = np.zeros(len(frames.files), np.bool_)
        self._is_judged = np.zeros(len(frames.files), np.bool_)

    def is_one(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Of each frame row, whether it is one."""
        for row in _distinct(rows[~self._is_judged[rows]], len(self._is_judged)).tolist():
            self._is_one[row], self._is_judged[row] = self._judge(row), True
        return self._is_one[rows]


def _distinct(rows: npt.NDArray[np.int64], row_count: int) -> npt.NDArray[np.intp]:
    """The rows that there are, in order (np.unique sorts, and imports numpy.ma: 15 ms of a command's start)."""
    is_one = np.zeros(row_count, np.bool_)
    is_one[rows] = True
    return np.flatnonzero(is_one)
