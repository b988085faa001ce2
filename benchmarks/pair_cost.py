"""Measures what the core takes for a recorded alloc+free pair, by stack depth, and how work between events raises it.

usage: python benchmarks/pair_cost.py      (needs a C++ compiler)

A pair is three events, as PyTorch's tracker hands them over, each call timed by itself; what the timing takes is
subtracted. "warm" has nothing between the events. The other columns have other code and other memory run before the
alloc and before the free, a few lines in each of so many pages of both, as a program's own work would: first the
nearest caches and translations no longer hold what the recorder needs, then none of the core's own do. The last row has
a pair below each of many stacks in turn, as a training step has them.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from walker import call_at_depth

from gpumem import abi

DEPTHS = (8, 23, 63)
OTHER_PAGES = (0, 64, 512, 2048)
PAIRS = {0: 2_000, 64: 400, 512: 100, 2048: 25}
LOOPS = 41
STACKS = 200
ROUNDS = 45
WARM_ROUNDS = 5

Measure = Callable[[bool, int, int], float]
"""(recorded, pairs, other pages) -> nanoseconds a pair, the timing's own included."""


def load_loop(folder: Path) -> tuple[Callable[[int | None, int, int], float], float]:
    """The loop in C++, built in `folder`: (address of a record function, pairs, other pages) -> ticks a pair, those of
    the timing included; and how many ticks make a nanosecond."""
    library = folder / "pair_cost.so"
    source = Path(__file__).with_suffix(".cpp")
    include = Path(__file__).parents[1] / "gpumem" / "native" / "include"
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.ticks_per_ns.restype = ctypes.c_double
    loaded.ticks_per_pair.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    loaded.ticks_per_pair.restype = ctypes.c_double
    return loaded.ticks_per_pair, float(loaded.ticks_per_ns())


def build_measure(folder: Path) -> Measure:
    """The loop with the core of this process."""
    ticks_per_pair, ticks_per_ns = load_loop(folder)
    record = abi.function_address("gm_record_event")

    def measure(recorded: bool, pairs: int, other_pages: int) -> float:
        return ticks_per_pair(record if recorded else None, pairs, other_pages) / ticks_per_ns

    return measure


def measure_pair(measure: Measure) -> list[float]:
    """Nanoseconds of a pair by OTHER_PAGES: the best of LOOPS loops, less the best of as many of calls of nothing."""
    costs = []
    for other in OTHER_PAGES:
        loops = [[measure(recorded, PAIRS[other], other) for recorded in (True, False)] for _ in range(LOOPS)]
        recorded, nothing = (min(column) for column in zip(*loops, strict=True))
        costs.append(recorded - nothing)
    return costs


def measure_in_turn(measure: Measure, depth: int) -> list[float]:
    """The same below STACKS stacks, each called once a round; the best of ROUNDS."""

    def in_turn(recorded: bool, other: int) -> float:
        def call_all() -> float:
            # A plain loop: a generator's frame would lie elsewhere each round, and make other chains of frames.
            rounds = []
            for _ in range(ROUNDS):
                nanoseconds = 0.0
                for call in calls:
                    nanoseconds += call(lambda: measure(recorded, 1, other))
                rounds.append(nanoseconds)
            return min(rounds[WARM_ROUNDS:]) / STACKS

        return call_at_depth(depth, call_all)

    calls = [make_caller(number) for number in range(STACKS)]
    return [in_turn(True, other) - in_turn(False, other) for other in OTHER_PAGES]


def make_caller(number: int) -> Callable[[Callable[[], float]], float]:
    """A function that calls another by three frames, all of its own code."""
    names: dict[str, Callable[[Callable[[], float]], float]] = {}
    body = "def outer(last):\n    return middle(last)\ndef middle(last):\n    return inner(last)\n"
    exec(compile(body + "def inner(last):\n    return last()\n", f"/usr/lib/part_{number}.py", "exec"), names)
    return names["outer"]


def render_row(label: str, costs: Sequence[float]) -> str:
    return f"{label:<20}" + "".join(f"{cost:>10.0f}" for cost in costs)


def main() -> int:
    reason = abi.start_walker()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure = build_measure(folder)
        print(f"CPython {sys.version.split()[0]}, ns per alloc+free pair, by pages of other work between events")
        print(f"{'':<20}{'warm':>10}" + "".join(f"{other:>10}" for other in OTHER_PAGES[1:]))
        for stacks in (False, True):
            abi.start_recording(folder / f"pairs_{stacks}.gpumem.journal", run_id=bytes(16), stacks=stacks)
            for depth in DEPTHS if stacks else DEPTHS[:1]:
                present = len(abi.walk_current_stack()) - 1
                costs = call_at_depth(depth - present - 1, lambda: measure_pair(measure))
                print(render_row(f"with stacks {depth} deep" if stacks else "without stacks", costs), flush=True)
            if stacks:
                print(render_row(f"{STACKS} stacks in turn", measure_in_turn(measure, DEPTHS[1])), flush=True)
            abi.set_events_enabled(False)
            print(render_row("switched off", measure_pair(measure)), flush=True)
            abi.stop_recording("exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
