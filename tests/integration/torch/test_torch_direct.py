"""PyTorch's requests come to our allocator without the table of its pluggable one, where that is what it would do.

Method: pretended_pluggable.cpp as libc10_cuda.so and libtorch_cuda.so, with PyTorch's real DataPtr and stream, over a
pretended driver. What PyTorch's own table holds tells which way a request went.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from gpumem.recorder import tracker_build
from gpumem.recorder.torch_install import find_torch
from pretended_driver import build_driver, run_on_driver

pytestmark = pytest.mark.needs("torch", "compiler")
SOURCE = Path(__file__).with_name("pretended_pluggable.cpp")
NATIVE = Path(__file__).parents[3] / "gpumem" / "native"

PROLOGUE = """
import os
from gpumem import abi
from gpumem.abi import allocator
from gpumem.vocabulary import BlockState
LIVE = BlockState.ALLOCATED
c10_cuda, torch_cuda = ctypes.CDLL("libc10_cuda.so"), ctypes.CDLL("libtorch_cuda.so")
driver.pretend_card(64 * MIB, 2)
def function(name, result, *arguments):
    found = getattr(torch_cuda, "pretended_" + name)
    found.restype, found.argtypes = result, arguments
    return found
plug = function("plug", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
rows = function("rows", ctypes.c_size_t)
make_tensor = function("tensor", ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int))
end = function("end_tensor", None, ctypes.c_void_p)
raw_alloc = function("raw_alloc", ctypes.c_void_p, ctypes.c_size_t)
raw_alloc_with_stream = function("raw_alloc_with_stream", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
raw_delete = function("raw_delete", ctypes.c_bool, ctypes.c_void_p)
threads = function("threads", None, ctypes.c_int, ctypes.c_int)
enable_peer_access = function("enable_peer_access", ctypes.c_int, ctypes.c_int, ctypes.c_int)
copy = function("copy", ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)
def make_current(device, stream): c10_cuda.pretended_current(device, ctypes.c_uint64(stream))
def tensor(byte_count):
    device = ctypes.c_int(-2)
    return make_tensor(byte_count, ctypes.byref(device)), device.value
def start(manner, settings=""):
    allocator.load_core()
    allocator.prepare_torch(settings)
    plug(abi.function_address("gm_torch_malloc"), abi.function_address("gm_torch_free"), manner)
    return allocator.serve_directly()
def live(device):
    heap = allocator.torch_allocator(device).heap()
    return sorted((s.stream, b.requested_bytes) for s in heap.segments for b in s.blocks if b.state is LIVE)
def go_direct():
    address, device = tensor(1000)
    assert (rows(), device) == (1, 0)
    end(address)
    assert rows() == 0
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pretended driver and PyTorch's two libraries, for LD_LIBRARY_PATH."""
    folder = build_driver(tmp_path_factory.mktemp("libraries"))
    torch = find_torch()
    assert torch is not None
    (folder / "libc10.so").symlink_to(torch.folder / "lib" / "libc10.so")
    plan = tracker_build.plan_tracker(torch)
    unwanted = {"-fvisibility=hidden", str(torch.folder / "lib" / "libc10_cuda.so")}
    for library, more in (
        ("libc10_cuda.so", ["-DGM_C10_CUDA"]),
        ("libtorch_cuda.so", [f"-L{folder}", "-lc10_cuda"]),
    ):
        words = tracker_build.compile_command(plan, folder / library, "c++20")
        words = [str(SOURCE) if word.endswith("torch_tracker.cpp") else word for word in words if word not in unwanted]
        subprocess.run([*words, *more, f"-Wl,-soname,{library}"], check=True)
    return folder


def run(libraries: Path, program: str) -> str:
    done = run_on_driver(libraries, PROLOGUE + dedent(program))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_requests_pass_by_pytorch_s_table_once_the_first_was_freed_as_expected(libraries: Path) -> None:
    program = """
    print(start(0))
    kept, _ = tensor(2000)
    go_after, _ = tensor(1000)
    end(go_after)
    print(rows())
    first, device = tensor(3000)
    second = raw_alloc(5000)
    make_current(0, 0x60)
    third = raw_alloc_with_stream(7000, 0x70)
    fourth, _ = tensor(9000)
    print(rows(), device, live(0))
    end(first), end(fourth), end(kept)
    print(raw_delete(second), raw_delete(third), raw_delete(third), raw_delete(None), rows(), live(0))
    print(tensor(0), tensor(1 << 30), tensor(1 << 61))
    """
    assert run(libraries, program).splitlines() == [
        "None",
        "1",
        "1 0 [(0, 2000), (0, 3000), (0, 5000), (96, 9000), (112, 7000)]",
        "True True False True 1 []",
        "(None, 0) (None, -2) (None, -2)",
    ]


def test_a_block_of_the_first_requests_is_refused_a_second_time_too(libraries: Path) -> None:
    program = """
    start(0)
    first = raw_alloc(2000)
    seen_again, _ = tensor(1000)
    end(seen_again)
    print(rows(), raw_delete(first), raw_delete(first), raw_delete(first), live(0))
    """
    assert run(libraries, program) == "1 True False False []\n"


def test_a_block_goes_back_to_the_device_it_is_of_whichever_is_current(libraries: Path) -> None:
    program = """
    start(0), go_direct()
    make_current(1, 0x80)
    other, device = tensor(4000)
    make_current(0, 0)
    own, _ = tensor(6000)
    print(device, live(0), live(1))
    end(other)
    print(live(0), live(1), rows())
    """
    assert run(libraries, program).splitlines() == ["1 [(0, 6000)] [(128, 4000)]", "[(0, 6000)] [] 0"]


def test_threads_that_make_the_first_requests_at_once_agree_on_the_way(libraries: Path) -> None:
    program = """
    print(start(0))
    threads(4, 2000)
    before = rows()
    tensor(1000)
    print(rows() - before, live(0), live(1))
    """
    assert run(libraries, program) == "None\n0 [(0, 1000)] []\n"


def test_a_forked_child_frees_what_it_inherited_without_a_word(libraries: Path) -> None:
    program = """
    start(0), go_direct()
    inherited, _ = tensor(4000)
    child = os.fork()
    if child == 0:
        end(inherited)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), live(0))
    """
    assert run(libraries, program) == "7 [(0, 4000)]\n"


@pytest.mark.parametrize("manner", [1, 2, 3], ids=["other_stream", "other_context", "frees_by_itself"])
def test_pytorch_s_own_way_stays_where_it_does_otherwise(libraries: Path, manner: int) -> None:
    program = f"""
    print(start({manner}))
    for _ in range(3):
        one, two = tensor(1000)[0], tensor(2000)[0]
        print(rows(), [byte_count for _, byte_count in live(0)])
        end(one), end(two)
    raw = raw_alloc(3000)
    print(rows(), raw_delete(raw), raw_delete(raw), rows(), live(0))
    again, _ = tensor(1000)
    print(rows(), [byte_count for _, byte_count in live(0)])
    end(again)
    """
    lines = run(libraries, program).splitlines()
    assert lines == ["None", *["2 [1000, 2000]"] * 3, "1 True False 0 []", "1 [1000]"]


def test_largest_free_block_is_answered_beside_it(libraries: Path) -> None:
    program = """
    print(start(0), allocator.answer_cache_info(), allocator.serve_directly())
    go_direct()
    tensor(1000)
    print(rows())
    """
    assert run(libraries, program) == "None None None\n0\n"


def test_expandable_segments_are_open_to_the_gpus_that_pytorch_lets_in(libraries: Path) -> None:
    program = """
    def mapped(): return [driver.pretend_accessible_bytes(device) // MIB for device in (0, 1)]
    print(start(0, "expandable_segments:True"), allocator.let_peers_in())
    tensor(15 * MIB)
    print(mapped(), enable_peer_access(1, 0), mapped())
    tensor(15 * MIB)
    print(mapped(), enable_peer_access(1, 0), mapped())
    print(enable_peer_access(0, 1), mapped())
    make_current(1, 0)
    tensor(1)
    print(mapped())
    print(copy(1, 0, True), copy(0, 0, False), copy(1, 0, False))
    """
    assert run(libraries, program).splitlines() == [
        "None None",
        "[20, 0] 1 [20, 20]",
        "[40, 40] 2 [40, 40]",
        "3 [40, 40]",
        "[42, 42]",
        "1 1 2",
    ]


def test_streams_go_in_the_order_of_pytorch_s_own_table(tmp_path: Path) -> None:
    torch = find_torch()
    assert torch is not None
    sources = (SOURCE.with_name("stream_order.cpp"), NATIVE / "stream_order.cpp")
    program = tmp_path / "stream_order"
    command = ["c++", "-std=c++20", "-O1", f"-isystem{torch.folder / 'include'}", f"-I{NATIVE}", *sources]
    subprocess.run([*command, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "equal\n")


def test_pytorch_without_these_functions_is_left_as_it_is(libraries: Path, tmp_path: Path) -> None:
    for library in ("libcuda.so.1", "libc10.so"):
        os.symlink(libraries / library, tmp_path / library)
    done = run_on_driver(tmp_path, "from gpumem.abi import allocator\nprint(allocator.serve_directly())")
    assert (done.stdout, done.returncode) == ("its streams are not exported\n", 0), done.stderr
