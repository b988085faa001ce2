"""Recorded programs whose readings the native core takes from a pretended NVML driver: ends, forks, hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pretended_nvml import build_nvml_devices
from program_runs import TESTS, Ended, gpumem_command, only_trace, run, traces_in, write_program

pytestmark = pytest.mark.needs("compiler")

MIB = 1 << 20
# This process holds 518 MiB of the first device, another one 7 MiB.
PROLOGUE = """
import ctypes, os, sys, time
import gpumem
import allocator_stand_in as gpu
from gpumem.recorder import recording
from gpumem.vocabulary import DeviceOrdinal
driver = ctypes.CDLL("libnvidia-ml.so.1")
def list_processes(first_bytes=518 << 20):
    held = (ctypes.c_ulonglong * 2)(first_bytes, 7 << 20)
    driver.pretend_list(0, 0, (ctypes.c_uint * 2)(os.getpid(), 1), held, 2, 0)
def start():
    gpu.start_cuda()
    recording.note_cuda_started({DeviceOrdinal(0): "GPU-00000000"})
    gpu.alloc(1)
def wait_for_calls(count):
    end = driver.pretend_calls() + count
    while driver.pretend_calls() < end: time.sleep(0.001)
list_processes()
"""


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml_devices(tmp_path_factory.mktemp("nvml"))


def run_recorded(folder: Path, nvml_folder: Path, program: str, *words: str) -> Ended:
    """`gpumem run` of `program` where the driver's devices are the pretended ones."""
    write_program(folder, PROLOGUE + program)
    paths = os.pathsep.join([str(nvml_folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    command = gpumem_command("run", *words, "train.py")
    return run(command, folder, further={"LD_LIBRARY_PATH": paths, "PYTHONPATH": str(TESTS)})


def test_readings_follow_the_program_at_the_interval_and_at_marks(tmp_path: Path, nvml_folder: Path) -> None:
    ended = run_recorded(
        tmp_path,
        nvml_folder,
        "start()\nwait_for_calls(200)\n"
        "list_processes(600 << 20)\ngpumem.mark('grown')\n"
        "wait_for_calls(200)\nprint(recording.current().sampler.judgement_count)\n",
        *("--nvml-interval", "0.002", "-o", "out.gpumem"),
    )
    assert ended.code == 0, ended
    assert int(ended.stdout) < 20
    readings = [reading for reading in only_trace(tmp_path).readings if reading.device == 0]
    assert len(readings) > 40
    held = [reading.process_bytes for reading in readings]
    assert held[-1] == 600 * MIB
    assert {reading.other_processes_bytes for reading in readings[-20:]} == {7 * MIB}
    assert [reading.time_ns for reading in readings] == sorted(reading.time_ns for reading in readings)


def test_forked_children_read_for_themselves_while_the_parent_reads(tmp_path: Path, nvml_folder: Path) -> None:
    ended = run_recorded(
        tmp_path,
        nvml_folder,
        "start()\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os._exit(0)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    list_processes(9 << 20)\n"
        "    gpu.alloc(1)\n"
        "    gpumem.mark('child')\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n",
        *("--nvml-interval", "0.001", "-o", "out.gpumem"),
    )
    assert ended.code == 0, ended
    traces = traces_in(tmp_path)
    [child] = [trace for name, trace in traces.items() if name != "out.gpumem"]
    assert [mark.name for mark in child.marks] == ["child"]
    assert 9 * MIB in {reading.process_bytes for reading in child.readings}
    assert 518 * MIB in {reading.process_bytes for reading in traces["out.gpumem"].readings}


def test_program_ends_though_the_driver_hangs(tmp_path: Path, nvml_folder: Path) -> None:
    ended = run_recorded(
        tmp_path,
        nvml_folder,
        "start()\nwait_for_calls(40)\ndriver.pretend_hang(1)\nwhile not driver.pretend_hanging(): time.sleep(0.001)\n",
        *("--nvml-interval", "0.001", "-o", "out.gpumem"),
    )
    assert ended.code == 0, ended
    assert len(only_trace(tmp_path).readings) > 3


def test_killed_program_keeps_the_readings_of_the_core(tmp_path: Path, nvml_folder: Path) -> None:
    ended = run_recorded(
        tmp_path,
        nvml_folder,
        "start()\nwait_for_calls(100)\nos.kill(os.getpid(), 9)\n",
        *("--nvml-interval", "0.002", "-o", "out.gpumem"),
    )
    assert ended.code == -signal.SIGKILL
    assert len(only_trace(tmp_path).readings) > 10
