"""Arming by gpumem.pth, which Python reads twice in a virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_second_reading_of_the_start_up_file_changes_nothing(tmp_path: Path) -> None:
    spec = {"run_id": "0" * 32, "folder": str(tmp_path), "stem": "x", "main_pid": 1}
    program = (
        "import sys\nfrom gpumem.recorder import startup\nstartup.arm()\nstartup.arm()\n"
        "print(sum(type(finder).__name__ == 'ImportHook' for finder in sys.meta_path))"
    )
    environment = {
        **os.environ,
        "GPUMEM_RECORD": json.dumps(spec, separators=(",", ":")),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")  # one for torch, one for CuPy
