"""Starts the stack walker only where it sees what the interpreter itself sees.

Owns: the known chains of frames and their comparison with sys._getframe. Must not know: how frames are walked
(native/walker.cpp), what stacks are for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from types import FrameType

from gpumem import abi

Chain = list[tuple[int, int]]
"""(code object's address, instruction byte offset) by frame, innermost first."""

_SPECIALIZING_CALLS = 24
"""Calls after which every supported interpreter runs a call of a class by a frame of its own in between."""
_OWN_FRAMES = 2
"""Frames above the one to look at when it is walked: abi's and ours."""


def start_walker() -> str | None:
    """Starts walking stacks; None when that works here, else the sentence that says why there will be none."""
    reason = abi.start_walker()
    if reason is not None:
        return reason
    for kind, compare in _COMPARISONS.items():
        if not compare():
            abi.stop_walker()
            version = ".".join(map(str, sys.version_info[:3]))
            return (
                f"Stacks are off: walked frames differ from sys._getframe in {kind} on CPython {version}; "
                "please report this."
            )
    return None


def _walk() -> Chain:
    return abi.walk_current_stack()[_OWN_FRAMES:]


def _expect() -> Chain:
    chain: Chain = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(chain) < abi.WALK_DEPTH_MAX - _OWN_FRAMES:
        chain.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return chain


def _is_same() -> bool:
    """Whether both ways see one chain: both are called by one instruction, so that the offsets agree too."""
    chains = []
    for look in (_walk, _expect):
        chains.append(look())
    return len(chains[1]) > 0 and chains[0] == chains[1]


def _is_same_in_functions() -> bool:
    def inner() -> bool:
        return _is_same()

    def outer() -> bool:
        return inner()

    return outer()


def _is_same_in_generators() -> bool:
    def generate() -> Generator[bool, None, None]:
        yield _is_same()
        yield from (_is_same() for _ in range(2))

    return all(list(generate()))


def _is_same_in_callbacks() -> bool:
    same: list[bool] = []

    def key(_: int) -> int:
        same.append(_is_same())
        return 0

    sorted(map(key, (1, 2)), key=key)
    return len(same) == 4 and all(same)


def _is_same_in_constructors() -> bool:
    class Made:
        def __init__(self, is_last: bool) -> None:
            self.same = is_last and _is_same()

    made = [Made(call == _SPECIALIZING_CALLS) for call in range(_SPECIALIZING_CALLS + 1)]
    return made[-1].same


_COMPARISONS: dict[str, Callable[[], bool]] = {
    "functions": _is_same_in_functions,
    "generators": _is_same_in_generators,
    "callbacks": _is_same_in_callbacks,
    "constructors": _is_same_in_constructors,
}
