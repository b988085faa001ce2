"""Kills a recording of several threads at random instants and checks that no record whose call had returned is lost.

usage: python benchmarks/kill_journal.py [RUNS]      (100 when not given; needs cmake and a C++ compiler)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from native_build import build_native_program  # noqa: E402

from kill_runs import run_and_kill  # noqa: E402


def main() -> int:
    run_count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    records = holes = wrong_count = 0
    with tempfile.TemporaryDirectory() as folder:
        program = build_native_program("kill_writer", Path(folder))
        for seed in range(run_count):
            result = run_and_kill(program, Path(folder), seed, seconds_most=0.5)
            records += result.records
            holes += result.holes
            wrong_count += bool(result.wrong)
            for sentence in result.wrong:
                print(f"run {seed}: {sentence}")
    print(f"{run_count} kills, {records:,} records read back, {holes} holes skipped, {wrong_count} runs wrong")
    return 1 if wrong_count else 0


if __name__ == "__main__":
    sys.exit(main())
