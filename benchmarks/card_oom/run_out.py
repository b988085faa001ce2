"""Runs out of memory in one way on a real GPU and lets the error end the program: `python run_out.py WAY`.

Ways: capacity, fragmentation, expandable, limit, small, pools, outside, async, cublas, cupy, cupy_limit.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable

GIB = 1 << 30
MIB = 1 << 20


def capacity() -> None:
    """The card filled in pieces of 4 GiB, then 8 GiB more than are left."""
    import torch

    held = [torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")]
    while torch.cuda.mem_get_info()[0] > 6 * GIB:
        held.append(torch.empty(4 * GIB, dtype=torch.uint8, device="cuda"))
    torch.empty(14 * GIB, dtype=torch.uint8, device="cuda")


def fragmentation() -> None:
    """The card filled by segments of 4 GiB in pieces of 512 MiB, three of four freed, then 5 GiB in one piece."""
    import torch

    held = []
    while torch.cuda.mem_get_info()[0] > 5 * GIB:
        whole = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
        del whole
        held.append([torch.empty(512 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)])
    for pieces in held:
        del pieces[1:7]
    torch.empty(6 * GIB, dtype=torch.uint8, device="cuda")


def limit() -> None:
    """A per-process fraction of a tenth."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.1)
    held = []
    while True:
        held.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))


def small() -> None:
    """A limit filled to its last, then a tensor of 1.5 MiB: the error speaks of 20 MiB."""
    import torch

    torch.cuda.set_per_process_memory_fraction(1024 * MIB / torch.cuda.get_device_properties(0).total_memory)
    held = [torch.empty(1000 * MIB, dtype=torch.uint8, device="cuda")]
    while True:
        held.append(torch.empty(3 * MIB // 2, dtype=torch.uint8, device="cuda"))


def pools() -> None:
    """Most of the card idle in the private pool of a graph, then more than the rest."""
    import torch

    graph = torch.cuda.CUDAGraph()
    free = torch.cuda.mem_get_info()[0]
    with torch.cuda.graph(graph):
        torch.empty(free * 3 // 4, dtype=torch.uint8, device="cuda").zero_()
    torch.empty(free // 2, dtype=torch.uint8, device="cuda")


def outside() -> None:
    """Half of the card taken by another process, then 60 % of it."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    code = (
        f"import torch; x = torch.empty({total // 2}, dtype=torch.uint8, device='cuda'); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            torch.empty(total * 6 // 10, dtype=torch.uint8, device="cuda")
        finally:
            other.kill()


def cublas() -> None:
    """The driver's last bytes taken, then cuBLAS asked for its handle."""
    import torch

    one = torch.ones(512, 512, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    for bytes_wanted in (GIB, 64 * MIB, 2 * MIB):
        while driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes_wanted)) == 0:
            pass
    print(float((one @ one).sum()))


def cupy() -> None:
    """The card filled through CuPy."""
    import cupy as cp

    held = []
    while True:
        held.append(cp.empty(8 * GIB, dtype=cp.uint8))


def cupy_limit() -> None:
    """CuPy's pool with a limit."""
    import cupy as cp

    cp.get_default_memory_pool().set_limit(size=4 * GIB)
    held = []
    while True:
        held.append(cp.empty(GIB, dtype=cp.uint8))


WAYS: dict[str, Callable[[], None]] = {
    "capacity": capacity,
    "fragmentation": fragmentation,
    "expandable": fragmentation,
    "limit": limit,
    "small": small,
    "pools": pools,
    "outside": outside,
    "async": capacity,
    "cublas": cublas,
    "cupy": cupy,
    "cupy_limit": cupy_limit,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
