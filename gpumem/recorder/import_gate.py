"""Keeps forks out of the imports that a thread of ours makes beside the program.

Owns: the lock between the two. Must not know: what is imported, who forks. A child forked in the middle of another
thread's import inherits the lock of that module as held for ever, and would wait at its own first import of it.
"""

from __future__ import annotations

import _thread
import os
from types import TracebackType

_FORK_WAITS_S = 1.0


class ImportGate:
    """`with gate:` around an import lets no fork happen meanwhile; a fork waits a second at most."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._forking: set[int] = set()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def watch_forks(self) -> None:
        """Has every fork of this process from now on pass through the gate."""
        os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._open_in_child)

    def _close(self) -> None:
        if self._lock.acquire(timeout=_FORK_WAITS_S):
            self._forking.add(_thread.get_ident())

    def _open(self) -> None:
        if _thread.get_ident() in self._forking:
            self._forking.discard(_thread.get_ident())
            self._lock.release()

    def _open_in_child(self) -> None:
        self._lock = _thread.allocate_lock()
        self._forking = set()
