"""Reads many hostile snapshots in one process: each must end in a Trace or in one sentence.

    python benchmarks/fuzz_importer.py [--count 100000] [--first-seed 0]

A watchdog ends the process with its stacks when one file takes longer than WATCHDOG_S; `seed` in the last line printed
names the file (tests/hostile_snapshots.py makes it again).
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from gpumem.errors import InputError
from gpumem.importers.pytorch_snapshot import is_pytorch_snapshot, read_pytorch_snapshot
from hostile_snapshots import absurd_pickles, bombs, code_pickles, hostile_file

WATCHDOG_S = 20


def read_one(path: Path, content: bytes) -> str:
    """What became of a file: `trace`, or the error's type; anything else is raised."""
    path.write_bytes(content)
    is_pytorch_snapshot(content[:4096])
    try:
        trace = read_pytorch_snapshot(path).trace
    except InputError as error:
        return type(error).__name__
    for batch in trace.event_batches(["time_ns", "kind", "device", "stack", "stream", "pool", "scope"]):
        assert int(batch["stack"].max()) < len(trace.stacks.frames)
        assert int(batch["stream"].max()) < len(trace.streams)
        assert int(batch["pool"].max()) < len(trace.pools)
        assert int(batch["scope"].max()) < len(trace.scopes.names)
    return "trace"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    slowest = (0.0, -1)
    begun = time.monotonic()
    crafted = [*code_pickles(), *absurd_pickles(), *bombs()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile"
        for seed in range(options.first_seed - len(crafted), options.first_seed + options.count):
            content = crafted[seed - options.first_seed] if seed < options.first_seed else hostile_file(seed)
            faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
            started = time.monotonic()
            try:
                outcomes[read_one(path, content)] += 1
            except BaseException:
                print(f"seed {seed}: {content[:60]!r}")
                raise
            slowest = max(slowest, (time.monotonic() - started, seed))
            faulthandler.cancel_dump_traceback_later()
            if seed % 10_000 == 0:
                print(f"seed {seed}, {time.monotonic() - begun:.0f} s, {dict(outcomes)}", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{outcomes.total()} files: {dict(outcomes)}")
    print(f"slowest {slowest[0]:.2f} s (seed {slowest[1]}), peak memory {peak_mib} MiB")


if __name__ == "__main__":
    main()
