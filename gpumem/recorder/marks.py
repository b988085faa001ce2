"""What a program says of itself: marks, steps, scopes.

Owns: gpumem.mark, gpumem.step, gpumem.scope. Must not know: how they are stored. Without a recording they do nothing,
at the price of one look.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import ParamSpec, TypeVar

from gpumem import abi
from gpumem.recorder import recording
from gpumem.vocabulary import EventKind

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

STEP_READING_AGE_NS = 100_000_000
"""Steps shorter than this share an NVML reading."""


def mark(name: str) -> None:
    """Sets a mark: `--at mark:NAME` is the moment of this call."""
    if recording.is_armed() and recording.ensure_started():
        abi.record_mark(EventKind.MARK, str(name), 0)  # no program fails for being recorded
        recording.read_at_mark()


def step() -> None:
    """Ends a step: `--at step:N` is the moment of the (N+1)th call, the first step being 0."""
    if recording.is_armed() and recording.ensure_started():
        abi.record_mark(EventKind.STEP, None, recording.take_step_number())
        recording.read_at_mark(age_ns_least=STEP_READING_AGE_NS)


class scope:  # noqa: N801 (a function to its users, as contextlib's classes are)
    """Events inside `with scope(name)`, or inside a function decorated with it, belong to the scope `name`.

    Scopes nest within their thread. A decorated coroutine or generator function is in the scope only while it is
    called, not while it runs, and coroutines that take turns inside a `with scope` are in each other's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pushed: dict[int, list[bool]] = {}

    def __enter__(self) -> None:
        pushed = recording.is_armed() and recording.ensure_started()
        if pushed:
            abi.push_scope(str(self._name))
        self._pushed.setdefault(get_ident(), []).append(pushed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Only what this thread pushed is popped, and that always: a recording may have begun or ended meanwhile.
        of_thread = self._pushed.get(get_ident())
        if of_thread and of_thread.pop():
            abi.pop_scope()

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def scoped(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            with scope(self._name):
                return function(*arguments, **keywords)

        return scoped
