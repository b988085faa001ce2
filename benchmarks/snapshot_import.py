"""Reading and summarising a snapshot of a million entries, whole processes, against plain pickle.load of the same file.

    python benchmarks/snapshot_import.py [--recording gpt] [--entries 1000000] [--rounds 5] [--json]

The file holds a recording's requests served again and again (served_requests.py), so that replay follows it to its end;
entries, lists of frames and compile contexts are objects of their own, as PyTorch writes them. `import` reads it into a
Trace; `summary` is the whole command, blocks filled in by replay. Prints the medians, both ratios (bar of the summary:
1.2), and the peak memory per byte of the file.
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

import numpy as np
from served_requests import serve_again

from gpumem.vocabulary import EventKind

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"

PLAIN = "import pickle, sys\nwith open(sys.argv[1], 'rb') as file:\n    pickle.load(file)"
IMPORT = """
import sys
from pathlib import Path
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
read_pytorch_snapshot(Path(sys.argv[1]))
"""
SUMMARY = """
import os, sys
from gpumem_cli.main import run_command_line
sys.stdout = open(os.devnull, "w")
sys.exit(run_command_line(["summary", sys.argv[1]]))
"""
ACTIONS = {
    EventKind.ALLOC: ("alloc",),
    EventKind.FREE: ("free_requested", "free_completed"),
    EventKind.SEGMENT_ALLOC: ("segment_alloc",),
    EventKind.SEGMENT_FREE: ("segment_free",),
}


def write_served(recording: str, entry_count: int, path: Path) -> None:
    """Writes a snapshot of about `entry_count` entries: the recording's requests served again and again."""
    values = pickle.loads(lzma.decompress((RECORDINGS / f"{recording}.pickle.xz").read_bytes()))
    once = [entry for entry in values["device_traces"][0] if entry["action"] in ("alloc", "free_requested")]
    kinds = [EventKind.ALLOC if entry["action"] == "alloc" else EventKind.FREE for entry in once]
    served = serve_again(
        np.array(kinds, np.uint8),
        np.array([entry["addr"] for entry in once], np.uint64),
        np.array([entry["size"] for entry in once], np.uint64),
        np.array([entry["stream"] for entry in once], np.uint64),
        entry_count * 2 // 3,
    )
    entries: list[dict[str, object]] = []
    lists: dict[int, list[object]] = {}
    last_row = 0
    for kind, stream, address, request_bytes, row in served.tolist():
        like = once[row]
        if row < last_row:
            lists = {}
        last_row = row
        for action in ACTIONS[EventKind(kind)]:
            made = {"action": action, "addr": address, "size": request_bytes, "stream": stream}
            made |= {"time_us": like["time_us"] + len(entries), "user_metadata": ""}
            made["compile_context"] = bytes(like["compile_context"], "utf-8").decode()
            if "frames" in like:
                made["frames"] = lists.setdefault(id(like["frames"]), list(like["frames"]))
            entries.append(made)
    values["device_traces"][0] = entries
    values["segments"] = []
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
        write_served(options.recording, options.entries, options.write)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        what = ["--recording", options.recording, "--entries", str(options.entries), "--write", str(path)]
        subprocess.run([sys.executable, __file__, *what], check=True)  # a child's peak memory counts its parent's
        codes = (PLAIN, IMPORT, SUMMARY)
        rounds = [[measure(code, path) for code in codes] for _ in range(options.rounds)]
        file_bytes = path.stat().st_size
    medians = [[statistics.median(one[which][figure] for one in rounds) for figure in range(3)] for which in range(3)]
    (plain_wall, plain_cpu, plain_peak), (import_wall, _, import_peak), summary = medians
    made = {
        "recording": options.recording, "entries": options.entries, "file_bytes": file_bytes,
        "pickle_load_s": round(plain_wall, 3), "import_s": round(import_wall, 3),
        "summary_s": round(summary[0], 3), "import_ratio": round(import_wall / plain_wall, 3),
        "summary_ratio": round(summary[0] / plain_wall, 3),
        "summary_processor_ratio": round(summary[1] / plain_cpu, 3),
        "pickle_load_peak_per_byte": round(plain_peak / file_bytes, 2),
        "import_peak_per_byte": round(import_peak / file_bytes, 2),
        "summary_peak_per_byte": round(summary[2] / file_bytes, 2),
    }  # fmt: skip
    print(json.dumps(made) if options.json else "\n".join(f"{name}: {value}" for name, value in made.items()))


if __name__ == "__main__":
    main()
