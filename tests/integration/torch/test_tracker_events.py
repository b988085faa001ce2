"""The compiled tracker hands events over as PyTorch's allocator names them.

Aim: every field of every action, the silence before a snapshot, refusal, fork. Method: the tracker is compiled against
the installed torch (a CPU one will do; the CUDA allocator of another is left out) and loaded beside
pretended_allocator.cpp, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem.recorder import tracker_build
from gpumem.recorder.torch_install import find_torch
from gpumem.vocabulary import EventKind

pytestmark = pytest.mark.needs("torch", "compiler")

PREPARE = """
import ctypes, json, os, sys, threading
from pathlib import Path
from gpumem.abi import CEvent
from gpumem.errors import TrackerUnavailable
from gpumem.recorder.torch_tracker import TorchTracker

torch_library, pretended_library, tracker_library = sys.argv[1:]
ctypes.CDLL(torch_library, ctypes.RTLD_GLOBAL)
pretended = ctypes.CDLL(pretended_library, ctypes.RTLD_GLOBAL)
pretended.pretended_event.argtypes = [ctypes.c_int] * 2 + [ctypes.c_size_t] * 5
pretended.pretended_event.restype = None
tracker = TorchTracker(Path(tracker_library))
heard = []

@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(CEvent))
def sink(event):
    e = event.contents
    heard.append([e.kind, e.device, e.address, e.requested_bytes, e.stream, e.pool_first, e.pool_second])
    return 0

sink_address = ctypes.cast(sink, ctypes.c_void_p).value
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP, SNAPSHOT, OOM, ANNOTATE = range(10)

def event(action, device=0, address=4096, size=512, stream=0, pool=(0, 0)):
    pretended.pretended_event(action, device, address, size, stream, *pool)
"""


def link_without_cuda(torch_folder: Path, folder: Path) -> Path:
    """A folder with torch's headers and libc10.so alone, as a CPU build has them."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(torch_folder / "include")
    (folder / "lib" / "libc10.so").symlink_to(torch_folder / "lib" / "libc10.so")
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths of libc10.so, of the pretended allocator and of the tracker."""
    torch = find_torch()
    assert torch is not None
    folder = tmp_path_factory.mktemp("libraries")
    plan = tracker_build.plan_tracker(torch)
    plan = replace(plan, torch=replace(torch, folder=link_without_cuda(torch.folder, folder / "torch")))
    tracker, pretended = folder / "tracker.so", folder / "pretended.so"
    tracker_build.compile_tracker(plan, tracker)
    source = Path(__file__).with_name("pretended_allocator.cpp")
    command = tracker_build.compile_command(plan, pretended, "c++17")
    command = [str(source) if word.endswith("torch_tracker.cpp") else word for word in command]
    subprocess.run([word for word in command if not word.startswith("-fvisibility")], check=True)
    return [str(torch.folder / "lib" / "libc10.so"), str(pretended), str(tracker)]


@pytest.fixture
def run(libraries: list[str]) -> Callable[[str], object]:
    """Runs a program after PREPARE; what it printed as JSON."""

    def run_program(program: str) -> object:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", PREPARE + program, *libraries], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_program


def test_every_action_arrives_with_its_fields(run: Callable[[str], object]) -> None:
    heard = run(
        "tracker.attach(sink_address)\n"
        "for action in range(9): event(action, device=action % 3, address=4096 + action, size=512 + action,"
        " stream=0x7F00 + action, pool=(action, 10 + action))\n"
        "print(json.dumps(heard))"
    )
    kinds = [
        EventKind.ALLOC,
        EventKind.FREE_REQUESTED,
        EventKind.FREE_COMPLETED,
        EventKind.SEGMENT_ALLOC,
        EventKind.SEGMENT_FREE,
        EventKind.SEGMENT_MAP,
        EventKind.SEGMENT_UNMAP,
        EventKind.SNAPSHOT,
        EventKind.OOM,
    ]
    assert heard == [
        [kind, number % 3, 4096 + number, 512 + number, 0x7F00 + number, number, 10 + number]
        for number, kind in enumerate(kinds)
    ]


def test_actions_of_later_versions_are_left_out(run: Callable[[str], object]) -> None:
    assert run("tracker.attach(sink_address)\nevent(ANNOTATE)\nevent(12)\nprint(json.dumps(heard))") == []


def test_devices_stay_silent_until_their_own_snapshot_is_taken_by_this_thread(run: Callable[[str], object]) -> None:
    heard = run(
        "with tracker.silent_until_snapshot(2):\n"
        "    tracker.attach(sink_address)\n"
        "    event(ALLOC, 0, 1); event(ALLOC, 1, 2); event(ALLOC, 2, 3)\n"
        "    other = threading.Thread(target=event, args=(SNAPSHOT, 0, 4)); other.start(); other.join()\n"
        "    event(SNAPSHOT, 0, 5)\n"
        "    event(ALLOC, 0, 6); event(ALLOC, 1, 7)\n"
        "    event(SNAPSHOT, 1, 8)\n"
        "    event(ALLOC, 1, 9)\n"
        "event(SNAPSHOT, 0, 10); event(ALLOC, 1, 11)\n"
        "print(json.dumps([[kind, device, address] for kind, device, address, *_ in heard]))"
    )
    alloc, snapshot = EventKind.ALLOC, EventKind.SNAPSHOT
    assert heard == [
        [alloc, 2, 3],
        [snapshot, 0, 5],
        [alloc, 0, 6],
        [snapshot, 1, 8],
        [alloc, 1, 9],
        [snapshot, 0, 10],
        [alloc, 1, 11],
    ]


def test_silence_ends_without_a_snapshot_too(run: Callable[[str], object]) -> None:
    heard = run(
        "tracker.attach(sink_address)\n"
        "try:\n    with tracker.silent_until_snapshot(1):\n        event(ALLOC)\n        raise ValueError\n"
        "except ValueError:\n    event(FREE_REQUESTED)\nprint(json.dumps(heard))"
    )
    assert heard == [[EventKind.FREE_REQUESTED, 0, 4096, 512, 0, 0, 0]]


def test_refusal_comes_back_in_the_allocators_own_words(run: Callable[[str], object]) -> None:
    said = run(
        "pretended.pretended_refuse(1)\ntry:\n    tracker.attach(sink_address)\n"
        "except TrackerUnavailable as error:\n    print(json.dumps(str(error)))"
    )
    assert said == (
        "PyTorch's allocator is not recorded: it takes no tracker (pretended does not yet support "
        "attachAllocatorTraceTracker.); gpumem records PyTorch's native allocator, not cudaMallocAsync or one "
        "plugged in."
    )


def test_forked_child_is_not_heard(run: Callable[[str], object]) -> None:
    counts = run(
        "tracker.attach(sink_address)\nevent(ALLOC)\nchild = os.fork()\n"
        "if child == 0:\n    event(FREE_REQUESTED)\n    os._exit(len(heard))\n"
        "status = os.waitpid(child, 0)[1]\nevent(FREE_REQUESTED)\n"
        "print(json.dumps([os.waitstatus_to_exitcode(status), len(heard)]))"
    )
    assert counts == [1, 2]


def test_recorded_events_are_read_back_from_the_sealed_trace(run: Callable[[str], object], tmp_path: Path) -> None:
    events = run(
        "import gpumem\nfrom gpumem import abi\nfrom gpumem.vocabulary import EventKind\n"
        f"with gpumem.record({str(tmp_path / 'trace.gpumem')!r}, nvml_interval=0) as recording:\n"
        "    tracker.attach(abi.function_address('gm_record_event'))\n"
        "    event(SEGMENT_ALLOC, 0, 1 << 21, 1 << 21, 0x7F10)\n"
        "    event(ALLOC, 0, 1 << 21, 700, 0x7F10)\n"
        "    event(FREE_REQUESTED, 0, 1 << 21, 700, 0x7F10); event(FREE_COMPLETED, 0, 1 << 21, 700, 0x7F10)\n"
        "    event(ALLOC, 1, 1 << 22, 900, 0, (0, 3)); event(FREE_REQUESTED, 1, 1 << 22, 900, 0, (0, 3))\n"
        "    event(OOM, 0, 12345, 1 << 30, 0x7F10)\n"
        "trace = gpumem.open(recording.path)\n"
        "streams = {row.stream: row.handle for row in trace.streams}\n"
        "pools = {row.pool: [row.first, row.second] for row in trace.pools}\n"
        "columns = ['kind', 'device', 'address', 'requested_bytes', 'stream', 'pool', 'stack']\n"
        "rows = [row for batch in trace.event_batches(columns)"
        " for row in zip(*(batch[name].tolist() for name in columns))]\n"
        "print(json.dumps([[EventKind(kind).name, device, address, size, streams[stream], pools.get(pool),"
        " trace.stack_frames(stack)[0].function] for kind, device, address, size, stream, pool, stack in rows]))"
    )
    assert events == [
        ["SEGMENT_ALLOC", 0, 1 << 21, 1 << 21, 0x7F10, [0, 0], "event"],
        ["ALLOC", 0, 1 << 21, 700, 0x7F10, [0, 0], "event"],
        ["FREE", 0, 1 << 21, 700, 0x7F10, [0, 0], "event"],
        ["ALLOC", 1, 1 << 22, 900, 0, [0, 3], "event"],
        ["FREE_REQUESTED", 1, 1 << 22, 900, 0, [0, 3], "event"],
        ["OOM", 0, 12345, 1 << 30, 0x7F10, [0, 0], "event"],
    ]
