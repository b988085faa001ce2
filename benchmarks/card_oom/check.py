"""Holds `gpumem oom` to the errors of a real card: each way of run_out.py, a verdict it must have, a line each.

    python check.py FOLDER        the logs go there; exit code 1 when a verdict is another

Under expandable segments the program of `fragmentation` is served: that is what the verdict promises.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXPECTED = {
    "capacity": {"capacity"},
    "fragmentation": {"fragmentation"},
    "expandable": {"served"},
    "limit": {"limit"},
    "small": {"limit"},
    "pools": {"private_pools"},
    "outside": {"outside"},
    "async": {"capacity"},
    "cublas": {"unknown", "outside"},
    "cupy": {"unknown"},
    "cupy_limit": {"limit"},
}
SETTINGS = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}


def main(folder: Path) -> int:
    wrong = 0
    for way, expected in EXPECTED.items():
        found, text = run(way, folder)
        wrong += found not in expected
        print(f"  {way:<14} {found:<14} {'right' if found in expected else 'WRONG'}  {text}")
    print(f"{len(EXPECTED) - wrong} of {len(EXPECTED)} verdicts right")
    return 1 if wrong else 0


def run(way: str, folder: Path) -> tuple[str, str]:
    """The verdict on the error that one way ends with, and its sentence; `served` where it ends well."""
    log = folder / f"oom_{way}.log"
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": SETTINGS[way]} if way in SETTINGS else dict(os.environ)
    done = subprocess.run(
        [sys.executable, str(HERE / "run_out.py"), way], env=environment, capture_output=True, text=True, timeout=120
    )
    log.write_text(done.stdout + done.stderr)
    if done.returncode == 0:
        return "served", ""
    told = subprocess.run(["gpumem", "oom", str(log), "--json"], capture_output=True, text=True)
    if told.returncode:
        return "none", (told.stderr or done.stderr).strip().splitlines()[-1][:200]
    document = json.loads(told.stdout)
    message = document["messages"][document["worst"]]
    return message["verdict"], message["text"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
