"""Scenarios of the walker's comparison: other threads, with Python frames and without, and other interpreters.

Owns: how they are started. Must not know: what is compared. Needs nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable

from walker_compare import compare
from walker_functions import (
    classes_and_comprehensions,
    constructors,
    coroutines,
    executed_functions,
    generators,
    plain_functions,
    recurse,
    special_methods,
)
from walker_watched import watched

from gpumem import abi

INSIDE = """
import ctypes, os, threading
def depths():
    for kind in (ctypes.CDLL, ctypes.PyDLL):
        walk = kind({library!r}).gm_walker_walk
        walk.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        os.write({pipe}, bytes([walk(None, None, 0)]))
depths()
thread = threading.Thread(target=depths)
thread.start()
thread.join()
"""


def run_beside(parts: Iterable[Callable[[], None]], own: Callable[[], None]) -> None:
    """Runs each of `parts` in a thread of its own and `own` in this one, with turns as short as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=part) for part in parts]
        for thread in running:
            thread.start()
        own()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def threads() -> None:
    parts = (
        plain_functions,
        generators,
        coroutines,
        classes_and_comprehensions,
        special_methods,
        constructors,
        watched,
    )
    run_beside([part for part in parts for _ in range(2)], executed_functions)


def thread_without_python() -> None:
    core = ctypes.CDLL(str(abi.library_path()))
    system = ctypes.CDLL(None)
    for function in (core.gm_walker_intern_current, core.gm_walker_walk):
        thread, result = ctypes.c_ulong(), ctypes.c_void_p(1)
        # Called with null and whatever lies in the other registers: without frames nothing is written.
        assert system.pthread_create(ctypes.byref(thread), None, function, None) == 0
        assert system.pthread_join(thread, ctypes.byref(result)) == 0
        compare.count += 1
        if (result.value or 0) & 0xFFFFFFFF:
            compare.different.append(f"a thread without Python has depth {result.value}")


def thread_made_in_c() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: recurse(3, compare))
    system = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    for _ in range(20):
        assert system.pthread_create(ctypes.byref(thread), None, callback, None) == 0
        assert system.pthread_join(thread, None) == 0


def sub_interpreters() -> None:
    run = find_interpreter_runner()
    reading, writing = os.pipe()
    text = INSIDE.format(library=str(abi.library_path()), pipe=writing)
    run(text)
    in_thread = threading.Thread(target=run, args=(text,))
    in_thread.start()
    in_thread.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        depths = list(pipe.read())
    compare.count += len(depths)
    if depths != [0] * 8:
        compare.different.append(f"depths inside sub-interpreters are {depths}")
    recurse(5, compare)


def find_interpreter_runner() -> Callable[[str], None]:
    """A function that runs source in a fresh sub-interpreter that shares the lock and may load any extension."""
    if sys.version_info >= (3, 13):
        import _interpreters as module

        make = functools.partial(module.create, "legacy")
    else:
        import _xxsubinterpreters as module

        make = functools.partial(module.create, isolated=False)

    def run(text: str) -> None:
        interpreter = make()
        failure = module.run_string(interpreter, text)
        assert failure is None, failure
        module.destroy(interpreter)

    return run
