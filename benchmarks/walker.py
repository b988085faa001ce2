"""Measures the stack walker at depths 8, 23 and 63: walking alone, a known stack's id, a new stack's id.

usage: python benchmarks/walker.py      (needs a C++ compiler)

Frames are of different functions in eight files with names as long as those of an installed package.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpumem import abi

DEPTHS = (8, 23, 63)
FILES = 8
CALLS = 20_000
LOOPS = 25
NEW_STACKS = 2_000


def build_loop(folder: Path) -> Callable[[str], float]:
    """A function that gives the nanoseconds one call of a core function takes, from where it is called."""
    library = folder / "call_loop.so"
    source = Path(__file__).with_name("call_loop.cpp")
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    measure = ctypes.CDLL(str(library)).nanoseconds_per_call
    measure.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    measure.restype = ctypes.c_double
    return lambda name: min(measure(abi.function_address(name), CALLS) for _ in range(LOOPS))


def call_at_depth(depth: int, last: Callable[[], float]) -> float:
    """Calls `last` below so many frames of functions made for it."""
    function: Callable[[], float] = last
    for level in range(depth):
        file = f"/usr/lib/python3/site-packages/some_library/nn/modules/part_{level % FILES:02d}.py"
        names: dict[str, object] = {"following": function}
        exec(compile(f"def level_{level}():\n    return following()\n", file, "exec"), names)
        function = names[f"level_{level}"]  # type: ignore[assignment]
    return function()


def measure_new_stacks() -> float:
    """Nanoseconds for the id of a stack seen for the first time: one code object of 24 is new too."""

    def intern_new(number: int) -> int:
        names: dict[str, object] = {"intern": abi.intern_current_stack, "clock": time.perf_counter_ns}
        text = f"def new_{number}():\n    begin = clock()\n    intern()\n    return clock() - begin\n"
        exec(compile(text, f"<new {number}>", "exec"), names)
        return names[f"new_{number}"]()  # type: ignore[operator, no-any-return]

    return sorted(intern_new(number) for number in range(NEW_STACKS))[NEW_STACKS // 2]


def main() -> int:
    reason = abi.start_walker()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure = build_loop(folder)
        abi.start_recording(folder / "walker.gpumem.journal", run_id=bytes(16), stacks=True)
        print(f"CPython {sys.version.split()[0]}, ns per stack, best of {LOOPS} x {CALLS}")
        print("depth   walked   known stack")
        for depth in DEPTHS:
            present = len(abi.walk_current_stack()) - 1
            walked, known = (
                call_at_depth(depth - present - 1, lambda name=name: measure(name))
                for name in ("gm_walker_walk", "gm_walker_intern_current")
            )
            print(f"{depth:>5} {walked:>8.0f} {known:>13.0f}")
        print(f"a new stack, about 24 deep: {call_at_depth(20, measure_new_stacks):.0f} ns (median)")
        abi.stop_recording("exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
