"""What happens around a program's import of torch and its start of CUDA, with a pretended torch and tracker.

Each test runs a short program in a process of its own; PREPARE stands for the rest of gpumem and notes what it is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_torch import CAPACITY_BYTES, write_fake_torch

PREPARE = """
import contextlib, json, os, sys
from gpumem import abi
from gpumem.errors import TrackerUnavailable
from gpumem.recorder import recording, torch_hook, torch_tracker

told, facts, armed = [], {}, [True]
abi.record_fact = lambda key, text: facts.__setitem__(key, json.loads(text))
abi.count_records = lambda: 7
abi.function_address = lambda name: {'gm_record_event': 4711}[name]
recording.is_armed = lambda: armed[0]
recording.ensure_started = lambda: told.append('recording') or True
recording.current = lambda: armed[0]
recording.add_versions = lambda versions: facts.__setitem__('versions', versions)
recording.note_cuda_started = lambda uuids: told.append(uuids)

class Tracker:
    refusal = None
    def __init__(self, library):
        told.append(f'loaded {library.read_text().strip()}')
    def attach(self, address):
        if self.refusal: raise TrackerUnavailable(self.refusal)
        told.append(f'attached {address}')
        if 'torch' in sys.modules: sys.modules['torch'].events.append('attached')
    @contextlib.contextmanager
    def silent_until_snapshot(self, device_count):
        told.append(f'silent on {device_count}')
        yield
        told.append('heard')
torch_tracker.TorchTracker = Tracker

def tell(**more):
    print(json.dumps({'told': told, 'facts': facts, 'why': torch_hook.why_not_recorded(), **more}, default=str))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """`run(program, cuda=…, **variables)`: the JSON that the program's `tell` printed."""
    compiler = tmp_path / "pretended-c++"
    compiler.write_text('#!/bin/sh\nfor last; do :; done; echo library > "$last"\n')
    compiler.chmod(0o755)

    def run_program(program: str, *, cuda: str | None = "13.0", **variables: str) -> dict[str, Any]:
        write_fake_torch(tmp_path / "site", cuda=cuda)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *(path for path in sys.path if path)]),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "CXX": str(compiler),
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-c", PREPARE + program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run_program


IMPORT_IN_THREADS = """
import threading
threads = [threading.Thread(target=__import__, args=('torch.nn',)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
IMPORT_LAZILY = """
import importlib.util
spec = importlib.util.find_spec('torch')
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules['torch'] = module
spec.loader.exec_module(module)
assert not hasattr(type(module), 'cuda')
module.cuda
"""
ATTACHED = ["loaded library", "attached 4711"]


def test_tracker_is_attached_when_cuda_starts_and_not_before(run: Any) -> None:
    result = run(
        "torch_hook.install()\nassert 'torch' not in sys.modules\n"
        "import torch\nbefore = list(told)\ntorch.cuda.init()\ntell(before=before, events=torch.events)"
    )
    assert result["before"] == []
    assert result["events"] == ["imported", "lazy_call", "init", "attached"]
    uuids = {"0": "GPU-00000000-0-0-0-0", "1": "GPU-00000001-0-0-0-0"}
    assert result["told"] == ["recording", uuids, *ATTACHED]
    assert result["why"] is None
    assert result["facts"]["source"] == "native"
    assert result["facts"]["settings"] == "expandable_segments:True"
    assert result["facts"]["versions"] == {"torch": "9.1.0+cu130", "cuda": "13.0", "cuda_driver": "13.0"}
    assert result["facts"]["device:1"] == {
        "uuid": "GPU-00000001-0-0-0-0",
        "nvml_index": None,
        "name": "NVIDIA H200",
        "capacity_bytes": CAPACITY_BYTES,
        "memory_limit_bytes": None,
    }
    assert "initial_state" not in result["facts"]


def test_program_can_still_set_variables_before_it_imports_torch(run: Any) -> None:
    result = run(
        "torch_hook.install()\nimport importlib.util\nassert importlib.util.find_spec('torch').loader\n"
        "os.environ['SET_BEFORE_IMPORT'] = 'yes'\nimport torch\ntell(seen=torch.variable_at_import)"
    )
    assert result["seen"] == "yes"


@pytest.mark.parametrize(
    "importing",
    [
        "import torch.nn.functional",
        "from torch.nn import functional",
        IMPORT_IN_THREADS,
        IMPORT_LAZILY,
        "import torch, importlib\nimportlib.reload(torch)",
        "import importlib.util\n[importlib.util.find_spec('torch') for _ in range(3)]\nimport torch",
    ],
    ids=["submodule", "from-submodule", "threads", "lazy-loader", "reload", "looked-for-first"],
)
def test_every_way_of_importing_torch_is_heard_once(run: Any, importing: str) -> None:
    result = run(
        f"torch_hook.install()\n{importing}\nimport torch\ntorch.cuda.init()\n"
        "hooks = [f for f in sys.meta_path if type(f).__name__ == 'ImportHook']\n"
        "tell(queued=len(torch.cuda._queued_calls), hooks=len(hooks),"
        " own='exec_module' in vars(torch.__spec__.loader))"
    )
    assert (result["queued"], result["hooks"], result["own"]) == (1, 0, False)
    assert result["told"][-2:] == ATTACHED


def test_failing_import_fails_as_before_and_the_next_one_is_heard(run: Any) -> None:
    result = run(
        "torch_hook.install()\nos.environ['FAKE_TORCH_FAILS'] = '1'\n"
        "try:\n    import torch\nexcept ImportError as error:\n    said = str(error)\n"
        "del os.environ['FAKE_TORCH_FAILS']\nimport torch\ntorch.cuda.init()\ntell(said=said)"
    )
    assert result["said"] == "libcudart.so.13: cannot open shared object file"
    assert result["told"][-2:] == ATTACHED


def test_cpu_torch_is_named_as_the_reason(run: Any) -> None:
    result = run("torch_hook.install()\nimport torch\ntorch_hook.record_end_facts()\ntell()", cuda=None)
    assert result["why"] == "PyTorch's allocator is not recorded: torch 9.1.0+cu130 was built without CUDA."
    assert result["facts"] == {"note:torch": result["why"]}


def test_reason_is_given_without_torch_and_without_cuda(run: Any) -> None:
    result = run("torch_hook.install()\nfirst = torch_hook.why_not_recorded()\nimport torch\ntell(first=first)")
    assert result["first"] == "The program did not import torch."
    assert result["why"] == "The program did not use CUDA through PyTorch."


def test_missing_compiler_leaves_facts_and_says_what_to_install(run: Any) -> None:
    result = run("torch_hook.install()\nimport torch\ntorch.cuda.init()\ntell()", CXX="", PATH="")
    assert result["told"][0] == "recording"
    assert "attached 4711" not in result["told"]
    assert result["facts"]["note:torch"] == result["why"]
    assert "there is no C++ compiler here" in result["why"]
    assert "source" not in result["facts"]
    assert result["facts"]["device:0"]["name"] == "NVIDIA H200"


def test_refusal_of_the_allocator_is_handed_on(run: Any) -> None:
    result = run("Tracker.refusal = 'takes none.'\ntorch_hook.install()\nimport torch\ntorch.cuda.init()\ntell()")
    assert result["why"] == result["facts"]["note:torch"] == "takes none."


def test_unexpected_error_does_not_reach_the_program(run: Any) -> None:
    result = run(
        "torch_hook.install()\nimport torch\ntorch._C._cuda_memoryStats = lambda device: 1 / 0\n"
        "torch.cuda.init()\ntell()"
    )
    assert result["why"] == "PyTorch's allocator is not recorded: ZeroDivisionError: division by zero"


def test_memory_limit_is_set_to_the_byte_on_every_device(run: Any) -> None:
    result = run(
        "torch_hook.install(memory_limit_bytes=4_000_000_000)\nimport torch\ntorch.cuda.init()\n"
        f"tell(limits=[int(f * {CAPACITY_BYTES}) for f in torch._C.fractions.values()])"
    )
    assert result["limits"] == [4_000_000_000] * 2
    assert [result["facts"][f"device:{device}"]["memory_limit_bytes"] for device in (0, 1)] == [4_000_000_000] * 2


def test_allocator_in_use_is_recorded_with_its_state(run: Any) -> None:
    result = run(
        "import torch\ntorch.cuda.init()\ntorch._C.reserved = 2097152\ntorch_hook.attach_now()\n"
        "tell(events=torch.events)"
    )
    assert result["told"][-4:] == ["loaded library", "silent on 2", "attached 4711", "heard"]
    assert result["events"][-2:] == ["attached", "snapshot include_traces=False"]
    frame = {"filename": "a.py", "line": 3, "name": "f"}
    assert result["facts"]["initial_state"] == {
        "snapshot_event": 7,
        "devices": [0, 1],
        "segments": [
            {
                "device": 0,
                "address": 4096,
                "total_size": 2097152,
                "stream": 0,
                "segment_pool_id": [0, 0],
                "is_expandable": False,
                "blocks": [
                    {"address": 4096, "size": 512, "requested_size": 4, "state": "active_allocated", "frames": [frame]},
                    {"address": 4608, "size": 2096640, "requested_size": 9, "state": "inactive", "frames": []},
                ],
            }
        ],
    }


def test_second_recording_takes_the_state_and_attaches_nothing_again(run: Any) -> None:
    result = run(
        "torch_hook.install()\nimport torch\ntorch.cuda.init()\narmed[0] = False\ntorch_hook.attach_now()\n"
        "armed[0] = True\nfacts.clear()\ntorch_hook.attach_now()\ntell()"
    )
    assert result["told"].count("attached 4711") == 1
    assert result["told"][-2:] == ["silent on 2", "heard"]
    assert result["facts"]["source"] == "native"
    assert len(result["facts"]["initial_state"]["segments"]) == 1


def test_large_state_is_spread_over_several_facts(run: Any) -> None:
    result = run(
        "import torch\ntorch.cuda.init()\ntorch_hook.INITIAL_FACT_BYTES_MAX = 600\n"
        "one = torch.cuda.memory_snapshot\ntorch.cuda.memory_snapshot = lambda: one() * 3\n"
        "torch_hook.attach_now()\ntell()"
    )
    states = {key: len(fact["segments"]) for key, fact in result["facts"].items() if key.startswith("initial_state")}
    assert states == {"initial_state": 1, "initial_state:1": 1, "initial_state:2": 1}


def test_end_facts_hold_what_pytorch_counts_and_the_limit_the_program_set(run: Any) -> None:
    result = run(
        "torch_hook.install()\nimport torch\ntorch.cuda.init()\ntorch._C.reserved = 4096\n"
        "torch._C.fractions[0] = 0.5\ntorch_hook.record_end_facts()\ntell()"
    )
    assert result["facts"]["torch_end:0"] == {
        "allocated_bytes_end": 512,
        "allocated_bytes_peak": 1024,
        "reserved_bytes_end": 4096,
        "reserved_bytes_peak": 4096,
    }
    assert result["facts"]["device:0"]["memory_limit_bytes"] == CAPACITY_BYTES // 2
    assert result["facts"]["device:1"]["memory_limit_bytes"] is None
    assert "note:torch" not in result["facts"]


def test_forked_child_records_its_own_start_of_cuda(run: Any) -> None:
    result = run(
        "torch_hook.install()\nimport torch\nif os.fork():\n    os.wait()\n    sys.exit()\n"
        "torch.cuda.init()\ntell(events=torch.events)\nsys.stdout.flush()\nos._exit(0)"
    )
    assert result["events"] == ["imported", "lazy_call", "init", "attached"]
    assert result["told"][-2:] == ATTACHED


def test_allocator_without_caching_is_named(run: Any) -> None:
    result = run("torch_hook.install()\nimport torch\ntorch.cuda.init()\ntell()", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING is set" in result["why"]
