"""Compares walked frames with sys._getframe, from wherever it is called.

Owns: the comparison, and what came of it. Must not know: scenarios. Needs nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

DEPTH_MAX = 1024

Chain = list[tuple[int, int]]


class NotHere(Exception):
    """This interpreter lacks what the scenario needs."""


class Comparison:
    """Counts the chains compared in a scenario and keeps the first differences."""

    def __init__(self) -> None:
        self._walks: list[Callable[..., int]] = []
        self.count = 0
        self.different: list[str] = []

    def begin(self, library: Path) -> None:
        """Begins a scenario, on the core in `library`."""
        # Both ways of calling C: CDLL lets go of the interpreter lock, PyDLL keeps it.
        self._walks = [self._walk_of(kind(str(library))) for kind in (ctypes.CDLL, ctypes.PyDLL)]
        self.count = 0
        self.different = []

    @staticmethod
    def _walk_of(library: ctypes.CDLL) -> Callable[..., int]:
        walk = library.gm_walker_walk
        walk.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        walk.restype = ctypes.c_uint32
        return walk  # type: ignore[no-any-return]

    def __call__(self) -> None:
        """Compares from the caller's frame outwards; all looks are taken by one instruction of this function."""
        # Of its own each time: signal handlers and trace functions compare while this call is under way.
        codes, offsets = (ctypes.c_uint64 * DEPTH_MAX)(), (ctypes.c_uint32 * DEPTH_MAX)()
        arguments = (ctypes.addressof(codes), ctypes.addressof(offsets), DEPTH_MAX)
        found: list[Chain] = []
        # partial makes a C call of each: a call of a Python function leaves other marks in the caller's frame.
        looks = [functools.partial(walk, *arguments) for walk in self._walks]
        for look in (*looks, functools.partial(expected_chain)):
            chain = look()
            if isinstance(chain, int):
                chain = list(zip(codes[:chain], offsets[:chain], strict=True))
            found.append(chain)
        self.count += 1
        if not (found[0] == found[1] == found[2] and found[0]):
            self.different.append(describe_difference(*found))


def expected_chain() -> Chain:
    chain: Chain = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(chain) < DEPTH_MAX:
        chain.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return chain


def describe_difference(released: Chain, held: Chain, expected: Chain) -> str:
    rows = [
        f"{row}: {frames}"
        for row, frames in enumerate(zip(released, held, expected, strict=False))
        if len(set(frames)) > 1
    ]
    return f"depths {len(released)}, {len(held)}, expected {len(expected)}; {rows[:3]}"


compare = Comparison()
