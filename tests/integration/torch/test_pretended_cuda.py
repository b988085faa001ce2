"""A program that uses CUDA through torch is recorded whole: import, build, start of CUDA, events, sealed trace.

Method: fake_torch's package with the headers and libc10.so of the installed torch (a CPU one will do), and as
libc10_cuda.so the pretended allocator, whose events the program makes itself. Everything of gpumem is real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_torch import write_fake_torch
from gpumem.recorder import tracker_build
from gpumem.recorder.torch_install import find_torch

pytestmark = pytest.mark.needs("torch", "compiler")

PROGRAM = """
import ctypes, sys
import torch
lib = ctypes.CDLL(torch.__path__[0] + '/lib/libc10.so', ctypes.RTLD_GLOBAL)
cuda = ctypes.CDLL(torch.__path__[0] + '/lib/libc10_cuda.so', ctypes.RTLD_GLOBAL)
cuda.pretended_event.argtypes = [ctypes.c_int] * 2 + [ctypes.c_size_t] * 5
cuda.pretended_event.restype = None
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC = range(4)
def event(action, address, size): cuda.pretended_event(action, 0, address, size, 0, 0, 0)
def train():
    torch.cuda.init()
    event(SEGMENT_ALLOC, 1 << 21, 1 << 21)
    event(ALLOC, 1 << 21, 1000)
    event(ALLOC, (1 << 21) + 1024, 2000)
    event(FREE_REQUESTED, 1 << 21, 1000)
    event(FREE_COMPLETED, 1 << 21, 1000)
    torch._C.reserved = 1 << 21
"""

READ = """
import json, sys, gpumem
from gpumem.vocabulary import EventKind
trace = gpumem.open(sys.argv[1])
columns = ['kind', 'address', 'requested_bytes', 'stack']
rows = [row for batch in trace.event_batches(columns) for row in zip(*(batch[name].tolist() for name in columns))]
events = [[EventKind(kind).name, address, size, [frame.function for frame in trace.stack_frames(stack)]]
    for kind, address, size, stack in rows]
device = trace.meta.devices[0]
blocks = [[block.address, block.block_bytes, block.requested_bytes, block.state.value,
    len(trace.stack_frames(block.stack))] for block in trace.initial_blocks]
print(json.dumps({'source': trace.meta.source.value, 'events': events, 'settings': trace.meta.settings,
    'torch': trace.meta.versions['torch'], 'notes': list(trace.meta.notes), 'blocks': blocks,
    'device': [device.name, device.uuid, device.capacity_bytes, device.torch_reserved_bytes_end]}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pretended torch, for PYTHONPATH."""
    installed = find_torch()
    assert installed is not None
    site = tmp_path_factory.mktemp("site")
    folder = write_fake_torch(site)
    shutil.rmtree(folder / "include")
    (folder / "include").symlink_to(installed.folder / "include")
    (folder / "lib" / "libc10.so").unlink()
    (folder / "lib" / "libc10.so").symlink_to(installed.folder / "lib" / "libc10.so")
    source = Path(__file__).with_name("pretended_allocator.cpp")
    command = tracker_build.compile_command(
        tracker_build.plan_tracker(installed), folder / "lib" / "libc10_cuda.so", "c++17"
    )
    command = [str(source) if word.endswith("torch_tracker.cpp") else word for word in command]
    command = [word for word in command if not word.startswith("-fvisibility")]
    subprocess.run([*command, "-Wl,-soname,libc10_cuda.so"], check=True)
    return site


@pytest.fixture
def environment(site: Path, tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), *(path for path in sys.path if path)])
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(site / "cache")}


def run(*arguments: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(path: Path, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("-c", READ, str(path), folder=folder, environment=environment))
    return found


@pytest.mark.needs("stacks")
def test_program_is_recorded_from_the_start_of_cuda(tmp_path: Path, environment: dict[str, str]) -> None:
    target = tmp_path / "trace.gpumem"
    program = f"import gpumem\nwith gpumem.record({str(target)!r}):\n    exec({PROGRAM!r})\n    train()\n"
    run("-c", program, folder=tmp_path, environment=environment)
    found = read(target, tmp_path, environment)
    stack = ["event", "train", "<module>"]
    assert found["source"] == "native"
    assert found["events"] == [
        ["SEGMENT_ALLOC", 1 << 21, 1 << 21, stack],
        ["ALLOC", 1 << 21, 1000, stack],
        ["ALLOC", (1 << 21) + 1024, 2000, stack],
        ["FREE", 1 << 21, 1000, stack],
    ]
    assert found["device"] == ["NVIDIA H200", "GPU-00000000-0-0-0-0", 150_110_994_432, 1 << 21]
    assert (found["torch"], found["settings"]) == ("9.1.0+cu130", "expandable_segments:True")
    assert found["blocks"] == []


def test_program_is_recorded_from_its_state_in_mid_run(tmp_path: Path, environment: dict[str, str]) -> None:
    target = tmp_path / "trace.gpumem"
    program = (
        f"{PROGRAM}\ntrain()\nimport gpumem\n"
        "snapshot = torch.cuda.memory_snapshot\n"
        "def take(mempool_id=None, include_traces=True):\n"
        "    event(ALLOC, 1, 1)\n"
        "    [cuda.pretended_event(7, device, 0, 512, 0, 0, 0) for device in (0, 1)]\n"
        "    event(ALLOC, (1 << 21) + 4096, 3)\n"
        "    return snapshot(include_traces=include_traces)\n"
        "torch.cuda.memory_snapshot = take\n"
        f"with gpumem.record({str(target)!r}):\n    event(FREE_REQUESTED, 4096, 4)\n"
    )
    (tmp_path / "program.py").write_text(program)
    run("program.py", folder=tmp_path, environment=environment)
    found = read(target, tmp_path, environment)
    assert [event[:3] for event in found["events"] if event[0] != "SNAPSHOT"] == [
        ["ALLOC", (1 << 21) + 4096, 3],
        ["FREE_REQUESTED", 4096, 4],
    ]
    assert found["blocks"] == [[4096, 512, 4, "allocated", 1], [4608, 2096640, 0, "free", 0]]


def test_gpumem_run_records_the_unmodified_program(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "program.py").write_text(f"{PROGRAM}\ntrain()\nprint('limits', torch._C.fractions)\n")
    command = ("run", "--memory-limit", "1GiB", "-o", "trace.gpumem", "program.py")
    said = run("-m", "gpumem_cli", *command, folder=tmp_path, environment=environment)
    assert said == f"limits {dict.fromkeys((0, 1), (1 << 30) / 150_110_994_432)}\n"
    found = read(tmp_path / "trace.gpumem", tmp_path, environment)
    assert found["source"] == "native"
    assert [event[:3] for event in found["events"]][1:] == [
        ["ALLOC", 1 << 21, 1000],
        ["ALLOC", (1 << 21) + 1024, 2000],
        ["FREE", 1 << 21, 1000],
    ]
    assert found["events"][0][3] == ["event", "train", "<module>"]
