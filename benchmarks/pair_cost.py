"""Measures what the core takes for a recorded alloc+free pair, by stack depth, and what of it the parts take.

usage: python benchmarks/pair_cost.py      (needs a C++ compiler)

A pair is three events, as PyTorch's tracker hands them over. "cold" is with 48 KiB of other memory written before the
alloc and before the free, as a program's own work would; the loop without events is subtracted.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from walker import call_at_depth

from gpumem import abi

DEPTHS = (8, 23, 63)
PAIRS = 1_000
LOOPS = 400
COLD_BYTES = 48 << 10

Measure = Callable[[bool, int], float]
"""(recorded, other bytes) -> nanoseconds a pair, best of LOOPS."""


def build_measure(folder: Path, loops: int) -> Measure:
    library = folder / "pair_cost.so"
    source = Path(__file__).with_suffix(".cpp")
    include = Path(__file__).parents[1] / "gpumem" / "native" / "include"
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    measure = ctypes.CDLL(str(library)).nanoseconds_per_pair
    measure.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    measure.restype = ctypes.c_double
    record = abi.function_address("gm_record_event")
    return lambda recorded, other: min(measure(record if recorded else None, PAIRS, other) for _ in range(loops))


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
        measure = build_measure(folder, LOOPS)
        print(f"CPython {sys.version.split()[0]}, ns per alloc+free pair, best of {LOOPS} x {PAIRS}")
        print(f"{'':<20}{'warm':>8}{'cold':>8}")
        for stacks in (False, True):
            abi.start_recording(folder / f"pairs_{stacks}.gpumem.journal", run_id=bytes(16), stacks=stacks)
            for depth in DEPTHS if stacks else DEPTHS[:1]:
                present = len(abi.walk_current_stack()) - 1
                warm, cold = call_at_depth(depth - present - 1, lambda: measure_pair(measure))
                label = f"with stacks {depth} deep" if stacks else "without stacks"
                print(f"{label:<20}{warm:>8.0f}{cold:>8.0f}")
            abi.set_events_enabled(False)
            warm, cold = measure_pair(measure)
            print(f"{'switched off':<20}{warm:>8.0f}{cold:>8.0f}")
            abi.stop_recording("exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
