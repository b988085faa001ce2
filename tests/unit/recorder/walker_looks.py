"""What the walker says of stacks asked for, against sys._getframe. Used by walker_interned.py, inside the interpreter
that is to be checked. Needs nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import FrameType

from walker_records import read_journal, utf8

DEPTH_MAX = 1024

Chain = tuple[tuple[bytes, bytes, int, int], ...]
"""File, qualified name, first line and instruction of each frame, innermost first."""


class Looks:
    """Counts stacks asked for in a scenario and keeps the first differences."""

    def __init__(self, library: Path) -> None:
        self._interns = [kind(str(library)).gm_walker_intern_current for kind in (ctypes.CDLL, ctypes.PyDLL)]
        self.chains: dict[int, Chain] = {}
        self.begin()

    def begin(self) -> None:
        self.count = self.none_count = self.none_held_count = 0
        self.different: list[str] = []

    def __call__(self) -> None:
        """Asks from the caller's frame outwards, both ways by one instruction."""
        stacks = []
        for intern in self._interns:
            stacks.append(intern())
        chain = expected_chain(sys._getframe(1))
        self.count += 1
        self.none_count += stacks[0] == 0
        self.none_held_count += stacks[1] == 0
        for stack in stacks:
            if stack and self.chains.setdefault(stack, chain) != chain:
                self.different.append(f"stack {stack} is {self.chains[stack][:3]}, {chain[:3]} too"[:500])

    def compare_with_journal(self, path: Path) -> None:
        entries = read_journal(path.read_bytes())
        for stack, chain in self.chains.items():
            found = []
            for code, offset in entries.stacks[stack][1:]:
                file, name, first_line, _ = entries.codes[code]
                found.append((entries.strings[file], entries.strings[name], first_line, offset))
            if tuple(found) != chain:
                self.different.append(f"the journal's stack {stack} is {found[:3]}, not {chain[:3]}"[:500])


def expected_chain(innermost: FrameType) -> Chain:
    chain = []
    frame: FrameType | None = innermost
    while frame is not None and len(chain) < DEPTH_MAX - 1:
        code = frame.f_code
        chain.append((utf8(code.co_filename), utf8(code.co_qualname), code.co_firstlineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(chain)
