"""Sites: which line of the user's own code a stack belongs to.

Owns: the rule of what is the user's own. Must not know: bytes, heaps, reports.
The trace may come from another machine, so the rule reads paths as text and asks no file system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpumem.trace.model import Frame, Trace
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


def is_users_own(file: str) -> bool:
    """Whether a file holds the user's own code: no standard library, no installed package or its C++, no `<…>`, not
    gpumem.
    """
    if _COMPILED.match(file):
        return False
    return not _NOT_THE_USERS.search(file) or _SAMPLE.search(file) is not None


class SiteFinder:
    """The site of each stack of a trace; remembers what it found."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._own_by_file: dict[str, bool] = {}
        self._frame_by_stack: dict[int, FrameId | None] = {0: None}

    def site_frame(self, stack: StackId) -> FrameId | None:
        """The frame of the stack's site: innermost of the user's own, else innermost of Python; of C++ alone the
        backward function, else what called the allocator. None for stack 0.
        """
        found = self._frame_by_stack.get(stack)
        if found is None and stack:
            rows = self._trace.stacks.frames_of(stack)
            found = next((row for row in rows if self._is_own(row)), None)
            found = self._innermost(rows) if found is None else found
            self._frame_by_stack[stack] = found
        return found

    def site(self, stack: StackId) -> Frame | None:
        """The site of a stack, None without one."""
        row = self.site_frame(stack)
        return None if row is None else self._trace.frames.frame(row)

    def _innermost(self, rows: Sequence[FrameId]) -> FrameId:
        files, functions = self._trace.frames.files, self._trace.frames.functions
        for chosen in (
            (row for row in rows if not _COMPILED.match(files[row])),
            (row for row in rows if _BACKWARD.search(functions[row])),
            (row for row in rows if not _OF_THE_ALLOCATOR.search(functions[row])),
        ):
            found = next(chosen, None)
            if found is not None:
                return found
        return rows[0]

    def _is_own(self, row: FrameId) -> bool:
        file = self._trace.frames.files[row]
        own = self._own_by_file.get(file)
        if own is None:
            own = self._own_by_file[file] = is_users_own(file)
        return own
