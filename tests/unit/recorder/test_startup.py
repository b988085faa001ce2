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


def test_name_that_another_process_takes_at_the_same_moment_is_left_to_it(tmp_path: Path) -> None:
    program = (
        "import os\nfrom gpumem.recorder import recording, spec\n"
        "found, taken = recording.find_trace_path, []\n"
        "def find_late(*words, **named):\n"
        "    path = found(*words, **named)\n"
        "    if not taken:\n"
        "        taken.append(spec.journal_path(path))\n"
        "        taken[0].write_bytes(b'of another process')\n"
        "    return path\n"
        "recording.find_trace_path = find_late\n"
        f"given = spec.RecordSpec(run_id='0' * 32, folder={str(tmp_path)!r}, stem='x', main_pid=os.getpid(),"
        " nvml_interval_ms=0)\n"
        "recording.arm(given)\n"
        "print(recording.current().trace_path.name == f'x.{os.getpid()}.gpumem', taken[0].read_bytes())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True b'of another process'\n", "")
