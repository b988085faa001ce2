"""Nine steps that move one GiB at a time, as a program on gpumem's own allocator; `gpumem demo` records it.

Owns: the requests and their order. Must not know: figures, why they move.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumem.allocator import Allocator

GIB = 1 << 30


def run_steps(gpu: Allocator, mark: Callable[[str], None]) -> None:
    """Allocates and frees on `gpu`; `mark` is called with each step's name after it."""
    mark("CUDA started")
    tiny = gpu.alloc(4)
    mark("a tiny tensor")
    gpu.free(tiny)
    a = gpu.alloc(GIB)
    mark("1 a on the GPU")
    b = gpu.alloc(GIB)
    mark("2 b on the GPU")
    gpu.free(b)
    mark("3 b to the CPU")
    c = gpu.alloc(GIB)
    mark("4 c on the GPU")
    new_c = gpu.alloc(GIB)
    gpu.free(c)
    c = new_c
    mark("5 c on the GPU again")
    d = gpu.alloc(GIB)
    mark("6 d on the GPU")
    gpu.free(d)
    mark("7 d deleted")
    mark("8 e on the CPU")
    e = gpu.alloc(GIB)
    mark("9 e to the GPU")
    gpu.free(e)
    gpu.free(c)
    gpu.empty_cache()
    mark("empty_cache()")
    gpu.free(a)
