"""How long `gpumem summary` takes on a large trace, and how much memory: the whole process, imports included.

    python benchmarks/summary_speed.py TRACE [--runs 9]

Make the trace with benchmarks/make_trace.py (10 million events for the bar of docs/performance.md). Bar: 1.5 s and
500 MiB on two cores. A plain read of the same columns (no gpumem, one core) is timed in the same run: quote the ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

BAR_SECONDS = 1.5
BAR_BYTES = 500 << 20
PLAIN_READ = """
import io, sys, zipfile
import pyarrow.parquet as pq
columns = ["kind", "device", "address", "requested_bytes", "stack"]
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in sorted(archive.namelist()):
        if name.startswith("events/"):
            pq.read_table(io.BytesIO(archive.read(name)), columns=columns, use_threads=False)
"""


def measure_process(words: Sequence[str]) -> tuple[float, int]:
    """(seconds, peak resident bytes) of a process that must succeed."""
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} left with {process.returncode}")
    return seconds, usage.ru_maxrss << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    summary = [sys.executable, "-m", "gpumem", "summary", options.trace]
    plain = [sys.executable, "-c", PLAIN_READ, options.trace]
    summaries, reads = [], []
    for _ in range(options.runs):  # interleaved: the machine's other load falls on both
        summaries.append(measure_process(summary))
        reads.append(measure_process(plain)[0])
    seconds = statistics.median(seconds for seconds, _ in summaries)
    resident_bytes = max(resident for _, resident in summaries)
    read_seconds = statistics.median(reads)
    print(f"gpumem summary    {seconds:6.2f} s  median of {options.runs}  (bar {BAR_SECONDS} s)")
    print(f"peak resident     {resident_bytes / (1 << 20):6.0f} MiB           (bar {BAR_BYTES >> 20} MiB)")
    print(f"plain read        {read_seconds:6.2f} s  of the same columns, one core")
    print(f"ratio             {seconds / read_seconds:6.2f}")
    met = seconds <= BAR_SECONDS and resident_bytes <= BAR_BYTES
    print("bar met" if met else "bar NOT met")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
