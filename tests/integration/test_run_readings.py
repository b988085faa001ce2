"""NVML readings of recorded programs, and the reasons for nothing: a stand-in takes the place of pynvml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from program_runs import TESTS, Ended, gpumem_command, only_trace, run, write_program

PYNVML = """
import os, sys
from nvml_stand_in import Figures, ListedProcess, MIB, StandInDevice, StandInError, StandInNvml
_library = StandInNvml({devices})
NVMLError, nvmlMemory_v2 = StandInError, StandInNvml.nvmlMemory_v2
globals().update({{name: getattr(_library, name) for name in dir(_library) if name.startswith("nvml")}})
"""
OWN_CARD = 'StandInDevice("GPU-stand-in", compute=[ListedProcess(os.getpid(), 518 * MIB), ListedProcess(1, 7 * MIB)])'
OTHER_CARD = 'StandInDevice("GPU-other")'


def run_recorded(folder: Path, *words: str, devices: str = f"{OTHER_CARD}, {OWN_CARD}", **further: str) -> Ended:
    """`gpumem run WORDS` where NVML lists `devices`."""
    module_folder = folder / "nvml"
    module_folder.mkdir(exist_ok=True)
    (module_folder / "pynvml.py").write_text(PYNVML.format(devices=devices))
    path = os.pathsep.join([str(module_folder), str(TESTS)])
    return run(gpumem_command("run", *words), folder, further={"PYTHONPATH": path, **further})


def test_marks_carry_readings_of_the_programs_devices(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem\nimport allocator_stand_in as gpu\n"
        "gpumem.mark('before')\ngpu.start_cuda()\ngpu.alloc(1)\ngpumem.mark('after')\n",
    )
    run_recorded(tmp_path, "--nvml-interval", "3600", "-o", "out.gpumem", "train.py", CUDA_VISIBLE_DEVICES="1,0")
    trace = only_trace(tmp_path)
    mib = 1 << 20
    # By the event that they follow: the marks are events 0 and 3.
    readings = {(int(reading.event), reading.device): reading for reading in trace.readings}
    before, after = readings[0, 0], readings[3, 0]
    assert (3, 1) not in readings  # the program reported one device when CUDA started
    assert (after.total_bytes, after.used_bytes, after.free_bytes, after.reserved_bytes) == (
        1000 * mib,
        300 * mib,
        600 * mib,
        100 * mib,
    )
    for reading in (before, after):
        assert (reading.process_bytes, reading.other_processes_bytes) == (518 * mib, 7 * mib)
    other = readings[0, 1]
    assert (other.process_bytes, other.other_processes_bytes) == (None, 0)
    assert other.unavailable == {"process_bytes": "process not listed: it has not started CUDA on this device"}
    assert [reading.time_ns for reading in trace.readings] == sorted(reading.time_ns for reading in trace.readings)


def test_segments_bring_readings_without_an_interval(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import time\nimport allocator_stand_in as gpu\nfrom gpumem.recorder import recording\n"
        "gpu.start_cuda()\n"
        "sampler = recording.current().sampler\n"
        "for _ in range(4):\n"
        "    count = sampler.judgement_count\n"
        "    gpu.alloc(1)\n"
        "    while sampler.judgement_count == count: time.sleep(0.001)\n",
    )
    ended = run_recorded(tmp_path, "--nvml-interval", "3600", "-o", "out.gpumem", "train.py")
    assert ended.code == 0, ended
    followed = [int(reading.event) for reading in only_trace(tmp_path).readings if reading.device == 0]
    # The first and the last come without a segment, and the first may come while the program waits for one.
    assert len(followed) >= 5
    assert any(0 < event < 7 for event in followed[1:-1])


def test_interval_of_zero_takes_no_readings(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem; gpumem.mark('only')")
    run_recorded(tmp_path, "--nvml-interval", "0", "-o", "out.gpumem", "train.py")
    assert list(only_trace(tmp_path).readings) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pass", "The program did not import torch."),
        ("import os; os._exit(0)", "The program ended before it used CUDA."),
        ("import torch", "torch 2.11.0 was built without CUDA"),
    ],
)
def test_reason_for_nothing_is_the_programs(tmp_path: Path, text: str, sentence: str) -> None:
    write_program(tmp_path / "nvml", "__version__ = '2.11.0'\nclass version: cuda = None\n", "torch.py")
    write_program(tmp_path, text)
    ended = run_recorded(tmp_path, "train.py")
    assert sentence in ended.note
    assert ended.note.startswith("gpumem: Nothing was recorded of ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nvml", "train.py"]


def test_reason_for_nothing_is_the_programs_where_its_trace_was_sealed_long_before_the_run_ended(
    tmp_path: Path,
) -> None:
    write_program(tmp_path / "nvml", "__version__ = '2.11.0'\nclass version: cuda = None\n", "torch.py")
    ended = run_recorded(tmp_path, "sh", "-c", f"{sys.executable} -c 'import torch'; sleep 3")
    assert "torch 2.11.0 was built without CUDA" in ended.note
    assert [path.name for path in tmp_path.iterdir()] == ["nvml"]


def test_program_without_our_python_is_said_to_be_so(tmp_path: Path) -> None:
    assert "true started no Python that reads gpumem.pth" in run_recorded(tmp_path, "true").note


def test_machine_without_a_device_is_pointed_to_the_demo(tmp_path: Path) -> None:
    ended = run_recorded(tmp_path, "-c", "pass", devices="")
    assert "There is no GPU here: NVML lists no device. To see what a recording tells: gpumem demo\n" in ended.note
