"""Nothing of ours is left to disturb the end of a recorded program, however short it is and however late we are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from program_runs import Ended, gpumem_command, only_trace, run, write_program

# The interpreter is still finalising when the thread that was late goes on.
FINALISES_SLOWLY = """
import time

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)

last = Last()
"""

SLOW_NVML = """
import time
time.sleep(0.5)

class NVMLError(Exception):
    pass

def nvmlInit():
    raise NVMLError("no driver")
"""

FORKS_BESIDE_THE_IMPORT = """
import os, signal, time
time.sleep(0.25)
pid = os.fork()
if pid == 0:
    signal.alarm(100)
    import pynvml
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""

MARKS_AFTER_THE_END = """
import atexit, sys
import gpumem
from gpumem.recorder import recording

class Last:
    def __del__(self, mark=gpumem.mark, current=recording.current, write=sys.stdout.write):
        mark("too late")
        write(str(current()))

last = Last()
"""


@pytest.mark.needs("compiler")
def test_thread_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    library = tmp_path / "late_thread.so"
    source = Path(__file__).with_name("late_thread.c")
    subprocess.run(["c++", "-xc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    write_program(tmp_path, FINALISES_SLOWLY)
    # In development mode CPython overwrites what it frees.
    command = [sys.executable, "-X", "dev", "-m", "gpumem_cli", "run", "-q", "train.py"]
    assert run(command, tmp_path, further={"LD_PRELOAD": str(library)}) == Ended(0, b"", b"")


def test_child_forked_beside_our_import_of_nvml_imports_it_too(tmp_path: Path) -> None:
    write_program(tmp_path / "nvml", SLOW_NVML, "pynvml.py")
    write_program(tmp_path, FORKS_BESIDE_THE_IMPORT)
    further = {"PYTHONPATH": str(tmp_path / "nvml")}
    assert run(gpumem_command("run", "-q", "train.py"), tmp_path, further=further) == Ended(0, b"0\n", b"")


def test_no_recording_begins_while_the_interpreter_finalises(tmp_path: Path) -> None:
    write_program(tmp_path, MARKS_AFTER_THE_END)
    # The second process is none that records from its start.
    script = f"{sys.executable} -c 'import gpumem; gpumem.mark(str())'; {sys.executable} train.py"
    ended = run(gpumem_command("run", "-q", "-o", "out.gpumem", "sh", "-c", script), tmp_path)
    assert ended == Ended(0, b"None", b"")
    only_trace(tmp_path)
