"""Measures the recorder without stacks: nanoseconds per event, and resident memory at 1 and at 10 million events.

usage: python benchmarks/journal_rate.py [FOLDER]      (where the journal stands; needs cmake and a C++ compiler)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from native_build import build_native_program

EVENTS = (1_000_000, 10_000_000)
RUNS = 3
EVENTS_PER_PAIR = 3
"""An alloc, a free_requested and a free_completed, of which two records remain."""


def measure(program: Path, folder: Path, *, events: int, threads: int) -> dict[str, float]:
    """One run's figures: events is the number handed over by all threads together."""
    pairs = events // EVENTS_PER_PAIR // threads
    done = subprocess.run([program, folder, str(pairs), str(threads)], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    with tempfile.TemporaryDirectory() as build_folder:
        program = build_native_program("journal_rate", Path(build_folder))
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(build_folder)
        for threads in (1, 2):
            for events in EVENTS:
                runs = [measure(program, folder, events=events, threads=threads) for _ in range(RUNS)]
                best, median = (sorted(run["ns_per_event"] for run in runs)[i] for i in (0, RUNS // 2))
                most_mib = max(run["added_kib_most"] for run in runs) / 1024
                print(
                    f"{threads} thread{'s' if threads > 1 else ' '} {events:>12,} events: "
                    f"{median:6.1f} ns an event (best {best:.1f}), memory added at most {most_mib:.1f} MiB"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
