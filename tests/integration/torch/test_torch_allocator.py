"""PyTorch on our allocator: a pretended torch and driver, and PyTorch's real error classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import gpumem
from fake_torch import write_fake_torch
from gpumem import abi
from gpumem.analyses.oom import explain_log
from gpumem.analyses.oom_facts import Verdict
from gpumem.analyses.replay import Wish, find_replay
from gpumem.importers.oom_log import read_oom_text
from gpumem.recorder.torch_install import find_torch
from gpumem.trace.oom_message import Figure
from gpumem.vocabulary import EventKind, TraceSource
from pretended_driver import build_driver, build_nvml
from waits import SECONDS_AT_MOST

pytestmark = pytest.mark.needs("compiler")
HERE = Path(__file__).resolve().parent

PLUGGABLE = """
import ctypes
class Plugged:
    def __init__(self, malloc, free):
        self.hooks = {}
        self.malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(malloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
    def set_reset_fn(self, address): self.hooks['reset'] = ctypes.CFUNCTYPE(None)(address)
    def set_record_stream_fn(self, address):
        self.hooks['stream'] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    def set_memory_fraction_fn(self, address):
        self.hooks['fraction'] = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(address)
current = None
def _cuda_customAllocator(malloc, free): return Plugged(malloc, free)
def _cuda_changeCurrentAllocator(plugged):
    global current
    current = plugged
def _cuda_setMemoryFraction(fraction, device): current.hooks['fraction'](fraction, device)
def _cuda_attach_out_of_memory_observer(observer):
    raise RuntimeError('CUDAPluggableAllocator does not yet support attachOutOfMemoryObserver. If you need it …')
class _MemPool:
    def __init__(self, *arguments):
        raise RuntimeError('pluggable does not yet support createOrIncrefPool. If you need it …')
def _cuda_isHistoryEnabled(): return True
def _cuda_record_memory_history(*arguments): raise RuntimeError('never called')
def _cuda_memorySnapshot(*arguments): raise RuntimeError('never called')
"""

PROGRAM = """
import json, sys
from torch._C import _cuda_getDeviceCount
import torch
torch.cuda.init()
allocator = torch._C.current
a = allocator.malloc(1000, 0, None)
b = allocator.malloc(30 << 20, 0, None)
allocator.hooks['stream'](b, 0x70)
allocator.free(b, 30 << 20, 0, None)
stats = torch._C._cuda_memoryStats(0)
allocator.hooks['reset']()
segments = torch._C._cuda_memorySnapshot(None)['segments']
try:
    torch._C._cuda_attach_out_of_memory_observer(print)
except RuntimeError as error:
    refusal = str(error)
class MemPool(torch._C._MemPool):
    def __init__(self): super().__init__(None, True)
try:
    MemPool()
except RuntimeError as error:
    pool_refusal = str(error)
print(json.dumps({
    'allocated': stats['allocated_bytes']['all'], 'active': stats['active_bytes']['large_pool'],
    'retries': stats['num_alloc_retries'], 'after': torch._C._cuda_memoryStats(0)['reserved_bytes']['all'],
    'unused': torch._C._cuda_memoryStats(1)['reserved_bytes']['all'], 'refusals': [refusal, pool_refusal],
    'segments': [[s['total_size'], s['segment_type'], len(s['blocks'])] for s in segments],
    'fraction': torch._C._cuda_getMemoryFraction(0), 'history': torch._C._cuda_isHistoryEnabled(),
}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


def environment(driver: Path, *more: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(driver), "PYTHONPATH": os.pathsep.join(map(str, more))}


def test_program_runs_on_our_allocator_and_its_figures_are_ours(driver: Path, tmp_path: Path) -> None:
    folder = write_fake_torch(tmp_path / "site")
    with open(folder / "_C.py", "a") as file:
        file.write(dedent(PLUGGABLE))
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gpumem", "run", "--allocator", "gpumem", "-o", "t.gpumem", "train.py"]
    variables = environment(driver, tmp_path / "site")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["allocated"] == {
        "current": 1024,
        "peak": 1024 + (30 << 20),
        "allocated": 1024 + (30 << 20),
        "freed": 30 << 20,
    }
    assert said["active"]["current"] == 30 << 20
    assert said["after"]["current"] == 2 << 20
    assert said["unused"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    assert said["segments"] == [[2 << 20, "small", 2]]
    hint = "gpumem's allocator serves PyTorch in this run; use gpumem run --allocator native for what it cannot do."
    assert [refusal.partition(" … ")[2] for refusal in said["refusals"]] == [hint, hint]
    assert (said["fraction"], said["history"], said["retries"]) == (1.0, False, 0)
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert trace.meta.source is TraceSource.GPUMEM
    assert trace.meta.settings == "expandable_segments:True"
    kinds = [EventKind(kind).name for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]
    assert kinds.count("ALLOC") == 2
    assert "EMPTY_CACHE" in kinds
    assert trace.meta.devices[0].torch_reserved_bytes_peak == 42 << 20


FIRST_COME = """
import json
import torch
torch.cuda.init()
allocator = torch._C.current
older, newer = allocator.malloc(30 << 20, 0, None), allocator.malloc(30 << 20, 0, None)
for address in (older, newer):
    allocator.free(address, 30 << 20, 0, None)
assert older > newer
is_older = allocator.malloc(30 << 20, 0, None) == older
stats = torch._C._cuda_memoryStats(0)
print(json.dumps([is_older, stats.get('num_oom_rejections'), stats.get('reserved_bytes_by_private_pools')]))
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.11.0+cu130", [False, None, None]), ("2.12.1", [True, 0, None]), ("2.14.1", [True, 0, {}])],
)
def test_manner_and_figures_are_those_of_the_pytorch_that_is_served(
    driver: Path, tmp_path: Path, version: str, said: list[object]
) -> None:
    folder = write_fake_torch(tmp_path / "site")
    (folder / "version.py").write_text(f"__version__ = {version!r}\ncuda = '13.0'\ngit_version = '0'\n")
    with open(folder / "_C.py", "a") as file:
        file.write(dedent(PLUGGABLE) + "def _accelerator_getAllocatorSettings(): return ''\n")
    (tmp_path / "train.py").write_text(FIRST_COME)
    command = [sys.executable, "-m", "gpumem", "run", "--allocator", "gpumem", "-o", "t.gpumem", "train.py"]
    variables = environment(driver, tmp_path / "site")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    assert (done.returncode, json.loads(done.stdout)) == (0, said), done.stderr
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert [one.torch_version for one in trace.meta.allocators] == [version] * 2
    assert find_replay(trace, Wish({})).devices[0].check.exact


SHARING = """
import json
from gpumem.recorder import own_allocators
def use_other_library():
    native = own_allocators.share_allocator(0, settings=SETTINGS, memory_bytes=None)
    status, address = native.alloc(30 << 20, 0x70)
    assert not status
    return address
def use_torch():
    global torch
    from torch._C import _cuda_getDeviceCount
    import torch
    torch.cuda.init()
    return torch._C.current.malloc(1000, 0, None)
addresses = [use() for use in ORDER]
print(json.dumps([torch._C._cuda_memoryStats(0)['reserved_bytes']['all']['current'], len(set(addresses))]))
"""


@pytest.mark.parametrize("order", ["use_other_library, use_torch", "use_torch, use_other_library"])
def test_another_library_shares_the_allocator_that_serves_pytorch(driver: Path, tmp_path: Path, order: str) -> None:
    folder = write_fake_torch(tmp_path / "site")
    with open(folder / "_C.py", "a") as file:
        file.write(dedent(PLUGGABLE))
    settings = "expandable_segments:True"
    (tmp_path / "work.py").write_text(f"SETTINGS = {settings!r}\n{SHARING.replace('ORDER', f'({order})')}")
    command = [sys.executable, "-m", "gpumem", "run", "--allocator", "gpumem", "-o", "t.gpumem", "work.py"]
    variables = environment(driver, tmp_path / "site")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    assert (done.returncode, json.loads(done.stdout)) == (0, [42 << 20, 2]), done.stderr
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert (trace.meta.source, trace.meta.settings) == (TraceSource.GPUMEM, settings)
    check = find_replay(trace, Wish({})).devices[0].check
    assert (check.exact, check.decision_count, check.event_count) == (True, 4, 4)


def test_a_memory_limit_holds_under_our_allocator(driver: Path, tmp_path: Path) -> None:
    folder = write_fake_torch(tmp_path / "site")
    with open(folder / "_C.py", "a") as file:
        file.write(dedent(PLUGGABLE))
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.cuda.init()\ntorch._C.current.malloc(1000, 0, None)\n"
        "print(round(torch._C._cuda_getMemoryFraction(0) * 150110994432))\n"
    )
    command = [sys.executable, "-m", "gpumem", "run", "--allocator", "gpumem", "--memory-limit", "24GiB", "train.py"]
    variables = environment(driver, tmp_path / "site")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    assert (done.returncode, done.stdout.strip()) == (0, str(24 << 30)), done.stderr


@pytest.fixture(scope="module")
def torch_oom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with PyTorch's own error classes that asks our allocator for too much, twice."""
    torch = find_torch()
    assert torch is not None
    return build_torch_oom(tmp_path_factory.mktemp("oom"), torch.folder / "include", torch.folder / "lib")


def build_torch_oom(folder: Path, headers: Path, libraries: Path, *options: str) -> Path:
    program = folder / "torch_oom"
    linked = (f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-lc10", "-ldl")
    command = ("c++", "-std=c++20", "-O1", f"-I{headers}", HERE / "torch_oom.cpp", "-o", program, *linked, *options)
    subprocess.run(command, check=True, capture_output=True)
    return program


def run_torch_oom(program: Path, variables: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [program, abi.library_path()], env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "served"
    # The segment of the first request goes back before the driver's last refusal.
    assert lines[1] == lines[2]
    return lines


@pytest.mark.needs("torch")
def test_pytorch_s_own_out_of_memory_error_is_thrown_with_its_facts(driver: Path, torch_oom: Path) -> None:
    assert run_torch_oom(torch_oom, environment(driver))[1].startswith(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 64.00 MiB "
        "of which 62.00 MiB is free. Of the allocated memory 1024 bytes is allocated by PyTorch, and 2.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def test_out_of_memory_is_pytorch_s_own_error_in_wheels_with_older_strings(driver: Path, tmp_path: Path) -> None:
    older, option = HERE / "older_torch", "-D_GLIBCXX_USE_CXX11_ABI=0"
    library = ("-shared", "-fPIC", f"-I{older}", older / "libc10.cpp", "-o", tmp_path / "libc10.so", option)
    subprocess.run(["c++", "-std=c++17", "-O1", *library], check=True, capture_output=True)
    lines = run_torch_oom(build_torch_oom(tmp_path, older, tmp_path, option), environment(driver))
    assert lines[1].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total")
    assert lines[3].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total")


@pytest.mark.needs("torch")
def test_out_of_memory_counts_what_lies_idle_in_private_pools_as_pytorch_does(driver: Path, torch_oom: Path) -> None:
    text = run_torch_oom(torch_oom, environment(driver))[3]
    assert (
        "Of the allocated memory 16.00 MiB is allocated by PyTorch, with 16.00 MiB allocated in private pools (e.g., "
        "CUDA Graphs), and 2.00 MiB is reserved by PyTorch but unallocated."
    ) in text
    (message,) = explain_log(read_oom_text(text)).messages
    assert message.verdict.facts.private_idle == Figure(16 << 20, 5243)
    assert message.verdict.verdict is Verdict.CAPACITY


@pytest.mark.needs("torch")
@pytest.mark.parametrize("more", [0, 100])
def test_out_of_memory_says_what_nvml_lists(driver: Path, torch_oom: Path, tmp_path: Path, more: int) -> None:
    variables = environment(driver)
    variables["LD_LIBRARY_PATH"] += os.pathsep + str(build_nvml(tmp_path))
    variables["PRETEND_PROCESSES"] = str(more)
    text = run_torch_oom(torch_oom, variables)[1]
    others = "".join(f"Process {5000 + number} has 1024.00 KiB memory in use. " for number in range(3, 3 + more))
    assert (
        "of which 62.00 MiB is free. Process 4711 has 3.00 GiB memory in use. Including non-PyTorch memory, this "
        f"process has 500.00 MiB memory in use. {others}Of the allocated memory 1024 bytes is allocated by PyTorch"
    ) in text
