"""Reading a snapshot of a million entries, whole process, against plain pickle.load of the same file.

    python benchmarks/snapshot_import.py [--recording gpt] [--entries 1000000] [--rounds 5] [--json]

The file is a recording repeated: times shifted; entries, lists of frames and compile contexts are objects of their own,
as PyTorch writes them. `import` reads it into a Trace and passes once over its events as a summary does (reserved and
live curves, heap peak). Prints the medians and their ratio (bar: 1.2), and the peak memory per byte of the file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"
REPETITION_US = 100_000_000

PLAIN = "import pickle, sys\nwith open(sys.argv[1], 'rb') as file:\n    pickle.load(file)"
IMPORT = """
import sys
from pathlib import Path
import numpy as np
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
trace = read_pytorch_snapshot(Path(sys.argv[1])).trace
signs = np.zeros(16, np.int64)
signs[[6, 8]], signs[[7, 9]] = 1, -1
live = np.zeros(16, np.int64)
live[1], live[[2, 3]] = 1, -1
for batch in trace.event_batches(["kind", "requested_bytes", "stack"]):
    amount = batch["requested_bytes"].astype(np.int64)
    np.cumsum(signs[batch["kind"]] * amount).max()
    peak = np.cumsum(live[batch["kind"]] * amount).argmax()
    np.bincount(batch["stack"][: peak + 1])
"""


def write_repeated(recording: str, entry_count: int, path: Path) -> None:
    """Writes the recording's snapshot with its trace repeated to `entry_count` entries."""
    values = pickle.loads(lzma.decompress((RECORDINGS / f"{recording}.pickle.xz").read_bytes()))
    once, entries = values["device_traces"][0], []
    for repetition in range(-(-entry_count // len(once))):
        lists: dict[int, list[object]] = {}
        for entry in once:
            context = bytes(entry["compile_context"], "utf-8").decode()
            made = dict(entry, time_us=entry["time_us"] + repetition * REPETITION_US, compile_context=context)
            if "frames" in made:
                made["frames"] = lists.setdefault(id(entry["frames"]), list(entry["frames"]))
            entries.append(made)
    values["device_traces"][0] = entries[:entry_count]
    with path.open("wb") as file:
        pickle.dump(values, file)


def measure(code: str, path: Path) -> tuple[float, float, int]:
    """(wall seconds, processor seconds, peak bytes) of a process that runs `code` on `path`."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", default="gpt")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="only write the file")
    options = parser.parse_args()
    if options.write:
        write_repeated(options.recording, options.entries, options.write)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        what = ["--recording", options.recording, "--entries", str(options.entries), "--write", str(path)]
        subprocess.run([sys.executable, __file__, *what], check=True)  # a child's peak memory counts its parent's
        rounds = [(measure(PLAIN, path), measure(IMPORT, path)) for _ in range(options.rounds)]
        file_bytes = path.stat().st_size
    medians = [[statistics.median(one[which][figure] for one in rounds) for figure in range(3)] for which in range(2)]
    (plain_wall, plain_cpu, plain_peak), (import_wall, import_cpu, import_peak) = medians
    made = {
        "recording": options.recording, "entries": options.entries, "file_bytes": file_bytes,
        "pickle_load_s": round(plain_wall, 3), "import_s": round(import_wall, 3),
        "ratio": round(import_wall / plain_wall, 3), "processor_ratio": round(import_cpu / plain_cpu, 3),
        "pickle_load_peak_per_byte": round(plain_peak / file_bytes, 2),
        "import_peak_per_byte": round(import_peak / file_bytes, 2),
    }  # fmt: skip
    print(json.dumps(made) if options.json else "\n".join(f"{name}: {value}" for name, value in made.items()))


if __name__ == "__main__":
    main()
