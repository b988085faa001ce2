"""What an alloc+free pair of CuPy costs under a deep stack: CuPy's own pool, and gpumem's allocator recording it.

Two processes take turns, so that whatever the machine does to one it does to both. Prints medians and their ratio.

    python benchmarks/cupy_pairs.py
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

STACK_DEPTH = 23
MODES = ("pool", "gpumem")


def descend(depth: int, empty: Callable[[int], object], pairs: int) -> None:
    """Allocates and frees at the end of `depth` nested calls."""
    if depth > 1:
        descend(depth - 1, empty, pairs)
        return
    for _ in range(pairs):
        empty(256)


def serve(mode: str, pairs: int) -> None:
    """Answers every line of input with nanoseconds for one pair."""
    with tempfile.TemporaryDirectory() as folder:
        recording = None
        if mode == "gpumem":
            import gpumem
            import gpumem.cupy

            recording = gpumem.record(Path(folder) / "pairs.gpumem").start()
            gpumem.cupy.use()
        import cupy

        descend(STACK_DEPTH, cupy.empty, 1000)
        print("ready", flush=True)
        for _ in sys.stdin:
            gc.collect()
            gc.disable()
            started_ns = time.perf_counter_ns()
            descend(STACK_DEPTH - 4, cupy.empty, pairs)
            elapsed_ns = time.perf_counter_ns() - started_ns
            gc.enable()
            print(elapsed_ns / pairs, flush=True)
        if recording is not None:
            recording.stop()


def ask(worker: subprocess.Popen[str], line: str) -> str:
    """A worker's answer."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    if line:
        worker.stdin.write(line)
        worker.stdin.flush()
    return worker.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of CuPy's pairs under its own pool and under gpumem.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.pairs)
        return
    workers = {
        mode: subprocess.Popen(
            [sys.executable, __file__, "--worker", mode, "--pairs", str(options.pairs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mode in MODES
    }
    for mode, worker in workers.items():
        if ask(worker, "") != "ready":
            raise SystemExit(f"the worker {mode} did not start")
    figures: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(options.rounds + 1):
        for mode in MODES if number % 2 else MODES[::-1]:
            figures[mode].append(float(ask(workers[mode], "pair\n")))
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    pool, ours = (median(figures[mode][1:]) for mode in MODES)
    verdict = "met" if ours <= pool else "MISSED"
    print(f"CuPy pair: pool {pool:,.0f} ns, gpumem recording {ours:,.0f} ns, {ours / pool:.2f} × pool: {verdict}")


if __name__ == "__main__":
    main()
