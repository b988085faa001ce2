"""`gpumem explain` on a program that is running and being recorded, found by the real /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from program_runs import TESTS, environment, gpumem_command, run, write_program
from waits import SECONDS_AT_MOST

PYNVML = """
import os
from nvml_stand_in import ListedProcess, MIB, StandInDevice, StandInError, StandInNvml
_pid = int(os.environ.get("LISTED_PID", os.getpid()))
_library = StandInNvml(StandInDevice("GPU-stand-in", compute=[ListedProcess(_pid, 518 * MIB)]))
NVMLError, nvmlMemory_v2 = StandInError, StandInNvml.nvmlMemory_v2
globals().update({name: getattr(_library, name) for name in dir(_library) if name.startswith("nvml")})
"""
PROGRAM = """
import os, sys
import gpumem
import allocator_stand_in as gpu
gpu.start_cuda()
gpumem.mark("started")
gpu.alloc(1)
gpumem.mark("held")
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
"""


def test_child_that_outlives_its_program_is_found(tmp_path: Path) -> None:
    write_program(tmp_path / "nvml", PYNVML, "pynvml.py")
    further = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "nvml"), str(TESTS)])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], start_new_session=True, **pipes) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        command = gpumem_command("explain", "--json")
        before = run(command, tmp_path, further=further | {"LISTED_PID": str(child)})
        parent.kill()
        parent.wait()
        after = run(command, tmp_path, further=further | {"LISTED_PID": str(child)})
        # The parent's stdin is the child's: closing it ends the child.
    assert not [one for one in json.loads(before.stdout)["findings"] if one["code"] == "surviving_child"]
    (left,) = [one for one in json.loads(after.stdout)["findings"] if one["code"] == "surviving_child"]
    assert (left["pids"], left["bytes"]) == ([child], 518 << 20)
    assert f"process {parent.pid}" in left["text"]
    assert left["next"].endswith(f"-p {child}")


def test_running_recording_is_explained_by_its_pid(tmp_path: Path) -> None:
    write_program(tmp_path / "nvml", PYNVML, "pynvml.py")
    write_program(tmp_path, PROGRAM)
    further = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "nvml"), str(TESTS)])}
    command = gpumem_command("run", "-q", "-o", "out.gpumem", "train.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(**further), **pipes) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        asked = subprocess.run(
            gpumem_command("explain", "--json", "--pid", str(pid)),
            cwd=tmp_path,
            env=environment(**further, LISTED_PID=str(pid)),
            capture_output=True,
            text=True,
            check=False,
        )
        program.communicate("\n", timeout=SECONDS_AT_MOST)
    assert (asked.returncode, asked.stderr) == (0, "")
    document = json.loads(asked.stdout)
    assert document["path"] == str(tmp_path / "out.gpumem.journal")
    assert document["process_bytes"] == 518 << 20
    figures = [document[f"{name}_bytes"] for name in ("measured", "derived", "difference")]
    assert sum(figures) == document["process_bytes"]
    (process,) = document["devices"][0]["processes"]
    assert (process["pid"], process["left_behind"]) == (pid, False)
    assert "recorded" in {one["code"] for one in document["findings"]}
