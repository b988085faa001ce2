"""Scenarios of the walker's comparison: code that tracing, profiling, monitoring and signal handlers interrupt.

Owns: what they call. Must not know: what is compared. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType

from walker_compare import NotHere, compare
from walker_functions import recurse


def watched() -> None:
    """What tracing, profiling and monitoring look at."""

    def work(depth: int) -> int:
        compare()
        values = [item for item in range(3) if item]
        with contextlib.suppress(KeyError):
            raise KeyError(depth)
        return work(depth - 1) if depth else sum(values) + sum(value for value in values)

    for depth in (0, 2, 5):
        assert work(depth) == 6
        assert sorted([2, 1], key=lambda item: work(0) + item) == [1, 2]


def tracing() -> None:
    def trace(frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes = True
        compare()
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        watched()
    finally:
        sys.settrace(None)
    watched()


def profiling() -> None:
    sys.setprofile(lambda *_: compare())
    try:
        watched()
    finally:
        sys.setprofile(None)


def monitoring() -> None:
    if sys.version_info < (3, 12):
        raise NotHere("sys.monitoring comes with 3.12")
    events = sys.monitoring.events
    names = ("PY_START", "PY_RETURN", "LINE", "INSTRUCTION", "JUMP", "BRANCH", "CALL", "PY_YIELD", "PY_RESUME", "RAISE")
    tool = sys.monitoring.PROFILER_ID
    sys.monitoring.use_tool_id(tool, "walker")
    for name in names:
        sys.monitoring.register_callback(tool, getattr(events, name), lambda *_: compare())
    sys.monitoring.set_events(tool, sum(getattr(events, name) for name in names))
    try:
        watched()
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    watched()


def signal_handlers() -> None:
    handled = 0

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal handled
        compare()
        handled += 1

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while handled < 100:
            sum(number for number in range(50))
            recurse(20, lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
