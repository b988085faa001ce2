"""Measures what the core takes for a recorded alloc+free pair, by stack depth, and what of it the parts take.

usage: python benchmarks/pair_cost.py      (needs a C++ compiler)

A pair is three events, as PyTorch's tracker hands them over. "cold" is with 48 KiB of other memory written before the
alloc and before the free, as a program's own work would; the loop without events is subtracted. The last row has a pair
below each of many stacks in turn, as a training step has them, and a line of its own says what it costs where the work
between takes a MiB and more: then the interpreter's frames come from the caches' far levels.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from walker import call_at_depth

from gpumem import abi

DEPTHS = (8, 23, 63)
PAIRS = 1_000
LOOPS = 400
COLD_BYTES = 48 << 10
FAR_BYTES = (1 << 20, 4 << 20)
STACKS = 200
ROUNDS = 60
WARM_ROUNDS = 5

Measure = Callable[[bool, int], float]
"""(recorded, other bytes) -> nanoseconds a pair, best of LOOPS."""


def build_measure(folder: Path) -> Callable[[int, int], Measure]:
    """(loops, pairs) -> the best of so many loops of so many pairs."""
    library = folder / "pair_cost.so"
    source = Path(__file__).with_suffix(".cpp")
    include = Path(__file__).parents[1] / "gpumem" / "native" / "include"
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    measure = ctypes.CDLL(str(library)).nanoseconds_per_pair
    measure.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    measure.restype = ctypes.c_double
    record = abi.function_address("gm_record_event")

    def measure_loops(loops: int, pairs: int) -> Measure:
        def measure_once(recorded: bool, other: int) -> float:
            nanoseconds: float = measure(record if recorded else None, pairs, other)
            return nanoseconds

        if loops == 1:
            return measure_once
        return lambda recorded, other: min(measure_once(recorded, other) for _ in range(loops))

    return measure_loops


def measure_in_turn(measure: Measure, depth: int, other_bytes: Sequence[int]) -> list[float]:
    """Nanoseconds of a pair below STACKS stacks, each called once a round, by the other memory written before; the
    median of ROUNDS.
    """

    def in_turn(recorded: bool, other: int) -> float:
        def call_all() -> float:
            # A plain loop: a generator's frame would lie elsewhere each round, and make other chains of frames.
            rounds = []
            for _ in range(ROUNDS):
                nanoseconds = 0.0
                for call in calls:
                    nanoseconds += call(lambda: measure(recorded, other))
                rounds.append(nanoseconds)
            return statistics.median(rounds[WARM_ROUNDS:]) / STACKS

        return call_at_depth(depth, call_all)

    calls = [make_caller(number) for number in range(STACKS)]
    return [in_turn(True, other) - in_turn(False, other) for other in other_bytes]


def make_caller(number: int) -> Callable[[Callable[[], float]], float]:
    """A function that calls another by three frames, all of its own code."""
    names: dict[str, Callable[[Callable[[], float]], float]] = {}
    body = "def outer(last):\n    return middle(last)\ndef middle(last):\n    return inner(last)\n"
    exec(compile(body + "def inner(last):\n    return last()\n", f"/usr/lib/part_{number}.py", "exec"), names)
    return names["outer"]


def measure_pair(measure: Measure) -> tuple[float, float]:
    """Nanoseconds of a warm and of a cold pair."""
    warm, cold = (measure(True, other) - measure(False, other) for other in (0, COLD_BYTES))
    return warm, cold


def main() -> int:
    reason = abi.start_walker()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = build_measure(folder)
        measure = build(LOOPS, PAIRS)
        print(f"CPython {sys.version.split()[0]}, ns per alloc+free pair, best of {LOOPS} x {PAIRS}")
        print(f"{'':<20}{'warm':>8}{'cold':>8}")
        for stacks in (False, True):
            abi.start_recording(folder / f"pairs_{stacks}.gpumem.journal", run_id=bytes(16), stacks=stacks)
            for depth in DEPTHS if stacks else DEPTHS[:1]:
                present = len(abi.walk_current_stack()) - 1
                warm, cold = call_at_depth(depth - present - 1, lambda: measure_pair(measure))
                label = f"with stacks {depth} deep" if stacks else "without stacks"
                print(f"{label:<20}{warm:>8.0f}{cold:>8.0f}")
            if stacks:
                warm, cold, *far = measure_in_turn(build(1, 1), DEPTHS[1], (0, COLD_BYTES, *FAR_BYTES))
                print(f"{f'{STACKS} stacks in turn':<20}{warm:>8.0f}{cold:>8.0f}")
                at = (f"{cost:.0f} after {other >> 20} MiB" for cost, other in zip(far, FAR_BYTES, strict=True))
                print(f"{'':<20}{', '.join(at)}")
            abi.set_events_enabled(False)
            warm, cold = measure_pair(measure)
            print(f"{'switched off':<20}{warm:>8.0f}{cold:>8.0f}")
            abi.stop_recording("exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
