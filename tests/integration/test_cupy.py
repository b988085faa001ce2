"""A CuPy program under `gpumem run` and in code: a pretended CuPy on a pretended driver; all of gpumem is real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import gpumem
from gpumem.analyses.replay import Wish, find_replay
from gpumem.vocabulary import EventKind, TraceSource
from pretended_driver import build_driver
from waits import SECONDS_AT_MOST

pytestmark = pytest.mark.needs("compiler")

CUPY = {
    "__init__.py": """
        __version__ = '14.2.0'
        from cupy import cuda
        def empty(byte_count): return cuda.allocate(byte_count)
    """,
    "cuda/__init__.py": """
        from cupy.cuda import memory, stream
        class Stream:
            def __init__(self, ptr): self.ptr = ptr
        current = Stream(0)
        allocate = memory.own_pool
        def get_current_stream(): return current
        def set_allocator(function):
            global allocate
            allocate = function
        class Block:
            def __init__(self, size, malloc, free):
                self.free, self.ptr = free, 0
                self.ptr = malloc(size, 0) if size else 0
            def __del__(self):
                if self.ptr: self.free(self.ptr, 0)
        class PythonFunctionAllocator:
            def __init__(self, malloc, free): self.functions = malloc, free
            def malloc(self, size): return Block(size, *self.functions)
    """,
    "cuda/stream.py": """
        # As compiled CuPy hands its C interface to other compiled modules.
        import ctypes
        from cupy import cuda
        make = ctypes.pythonapi.PyCapsule_New
        make.argtypes, make.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
        signature = b'intptr_t (void)'
        current = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: cuda.current.ptr)
        __pyx_capi__ = {'get_current_stream_ptr': make(ctypes.cast(current, ctypes.c_void_p), signature, None)}
    """,
    "cuda/memory.py": """
        class OutOfMemoryError(MemoryError):
            def __init__(self, size, total, limit=0): super().__init__(f'{size} asked, {total} held, limit {limit}')
        def own_pool(size): return 'from its own pool'
    """,
}

PROGRAM = """
import cupy
a = cupy.empty(1000)
cupy.cuda.current = cupy.cuda.Stream(0x70)
b = cupy.empty(30 << 20)
assert cupy.empty(0).ptr == 0
try:
    cupy.empty(1 << 30)
except cupy.cuda.memory.OutOfMemoryError as error:
    print(error)
del a, b
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def variables(driver: Path, tmp_path: Path) -> dict[str, str]:
    for name, text in CUPY.items():
        path = tmp_path / "site" / "cupy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return {**os.environ, "LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(tmp_path / "site")}


def run(folder: Path, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpumem", "run", "-o", "t.gpumem", *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)


@pytest.mark.parametrize("allocator", ["auto", "gpumem"])
@pytest.mark.parametrize("signature", ["intptr_t (void)", "int (void)"], ids=["native", "python"])
def test_cupy_s_blocks_are_served_and_recorded(
    allocator: str, signature: str, variables: dict[str, str], tmp_path: Path
) -> None:
    stream = tmp_path / "site" / "cupy" / "cuda" / "stream.py"
    stream.write_text(stream.read_text().replace("intptr_t (void)", signature))
    (tmp_path / "work.py").write_text(PROGRAM)
    done = run(tmp_path, variables, "--allocator", allocator, "work.py")
    assert (done.returncode, done.stdout) == (0, "1073741824 asked, 33554432 held, limit 0\n"), done.stderr
    trace = gpumem.open(tmp_path / "t.gpumem")
    assert (trace.meta.source, trace.meta.notes[1:]) == (TraceSource.GPUMEM, ())
    rows = [
        (EventKind(kind).name, requested, trace.streams[stream].handle)
        for batch in trace.event_batches(["kind", "requested_bytes", "stream"])
        for kind, requested, stream in zip(
            *(batch[name].tolist() for name in ("kind", "requested_bytes", "stream")), strict=True
        )
    ]
    assert [row for row in rows if row[0] in ("ALLOC", "FREE", "OOM")] == [
        ("ALLOC", 1000, 0),
        ("ALLOC", 30 << 20, 0x70),
        ("OOM", 1 << 30, 0x70),
        ("FREE", 1000, 0),
        ("FREE", 30 << 20, 0x70),
    ]


def test_cupy_keeps_its_own_pool_where_that_is_asked_for(variables: dict[str, str], tmp_path: Path) -> None:
    program = "import cupy, gpumem; gpumem.mark('here'); print(cupy.empty(5))"
    done = run(tmp_path, variables, "--allocator", "native", "-c", program)
    assert (done.returncode, done.stdout) == (0, "from its own pool\n")
    assert "CuPy's memory is not recorded: its own pool cannot be heard" in done.stderr


@pytest.mark.parametrize("order", ["import cupy, torch", "import torch, cupy"])
def test_cupy_is_recorded_beside_a_torch_with_its_own_allocator(
    variables: dict[str, str], tmp_path: Path, order: str
) -> None:
    (tmp_path / "site" / "torch").mkdir()
    (tmp_path / "site" / "torch" / "__init__.py").write_text("__version__ = '2.11.0'")
    done = run(tmp_path, variables, "-o", "t.gpumem", "-c", f"{order}; kept = cupy.empty(30 << 20)")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    trace = gpumem.open(tmp_path / "t.gpumem")
    kinds = [EventKind(kind) for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]
    assert kinds.count(EventKind.ALLOC) == 1
    assert not any("CuPy" in note for note in trace.meta.notes)


def test_code_may_ask_again_for_what_the_run_has_done(variables: dict[str, str], tmp_path: Path) -> None:
    program = """
        import cupy, gpumem.cupy, gpumem.memory
        first = cupy.empty(1000)
        gpumem.cupy.use()
        gpumem.cupy.use()
        second = cupy.empty(3 << 20)
        assert gpumem.memory.memory_allocated(0) == 1024 + (3 << 20)
        del first, second
    """
    done = run(tmp_path, variables, "-o", "t.gpumem", "-c", dedent(program))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    check = find_replay(gpumem.open(tmp_path / "t.gpumem"), Wish({})).devices[0].check
    assert (check.exact, check.decision_count, check.event_count) == (True, 6, 6)


def test_code_may_ask_for_it_by_itself(variables: dict[str, str], tmp_path: Path) -> None:
    program = """
        import cupy, gpumem.cupy, gpumem.memory
        gpumem.cupy.use(memory_bytes=40 << 20)
        block = cupy.empty(30 << 20)
        assert gpumem.memory.memory_allocated(0) == 30 << 20
        try:
            cupy.empty(20 << 20)
        except MemoryError as error:
            print(error)
    """
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    assert (done.returncode, done.stdout) == (0, "20971520 asked, 31457280 held, limit 0\n"), done.stderr
