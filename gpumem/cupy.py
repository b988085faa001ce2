"""gpumem.cupy: CuPy on our allocator, in code; `gpumem run` does the same for a program that does not ask.

Owns: the public function. Must not know: how CuPy is served (recorder/cupy_hook.py).
"""

from __future__ import annotations

from gpumem.recorder.cupy_hook import CupyAllocator, plug_in


def use(settings: str = "", memory_bytes: int | None = None) -> CupyAllocator:
    """Has CuPy allocate through gpumem's allocator from now on; keep arrays made before, they stay CuPy's own.

    `settings`: what PYTORCH_CUDA_ALLOC_CONF takes. `memory_bytes`: as if each card had no more. Raises ImportError
    without CuPy.
    """
    import cupy

    return plug_in(cupy, settings=settings, memory_bytes=memory_bytes)
