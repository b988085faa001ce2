"""Puts many spoilt recordings through the native replay and what-if in one process, which must live.

    python benchmarks/fuzz_replay.py [--count 100000] [--first-seed 0]

A watchdog ends the process with its stacks when one case takes longer than WATCHDOG_S. Before each case its seed is
written to --seed-file, so that a crash names its case (tests/hostile_replay.py makes it again).
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile_replay import replay_case

WATCHDOG_S = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed-file", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    faulthandler.enable()
    outcomes: Counter[str] = Counter()
    slowest = (0.0, -1)
    begun = time.monotonic()
    with options.seed_file.open("w") as seed_file:
        for seed in range(options.first_seed, options.first_seed + options.count):
            seed_file.seek(0)
            seed_file.write(f"{seed:12}\n")
            seed_file.flush()
            faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
            started = time.monotonic()
            outcomes[replay_case(seed)] += 1
            slowest = max(slowest, (time.monotonic() - started, seed))
            faulthandler.cancel_dump_traceback_later()
            if seed % 10_000 == 9_999:
                print(f"seed {seed}, {time.monotonic() - begun:.0f} s, {dict(outcomes)}", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{outcomes.total()} cases: {dict(outcomes)}")
    print(f"slowest {slowest[0]:.2f} s (seed {slowest[1]}), peak memory {peak_mib} MiB")


if __name__ == "__main__":
    main()
