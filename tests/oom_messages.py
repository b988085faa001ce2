"""Out-of-memory errors written by hand in the shapes that PyTorch, CuPy and gpumem print, for tests.

    modern("546.00 MiB", of="15.77 GiB", free="514.19 MiB", used="14.10 GiB", idle="736.86 MiB")

Owns: the shapes by release, figures given as they are printed. Must not know: what is found in them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.importers.oom_log import read_oom_text
from gpumem.trace.oom_message import FoundMessage

_DOCUMENTATION = "See documentation for Memory Management "
HINTS = {
    "2.1": "max_split_size_mb to avoid fragmentation.  " + _DOCUMENTATION + "and PYTORCH_CUDA_ALLOC_CONF",
    "2.3": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    + _DOCUMENTATION
    + " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
    "2.10": "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    + _DOCUMENTATION
    + " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
    "2.11": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    + _DOCUMENTATION
    + " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
}


def classic(
    asked: str,
    *,
    of: str,
    used: str,
    free: str,
    reserved: str | None = None,
    cached: str | None = None,
    allowed: str | None = None,
    gpu: int = 0,
) -> str:
    """PyTorch to 2.0; `cached` is the last figure of 1.0 to 1.3."""
    limit = "" if allowed is None else f"{allowed} allowed; "
    last = f"{cached} cached)" if cached is not None else f"{reserved} reserved in total by PyTorch)"
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU {gpu}; {of} total capacity; {used} already "
        f"allocated; {free} free; {limit}{last}"
    )


def modern(
    asked: str,
    *,
    of: str,
    free: str,
    used: str,
    idle: str,
    process: str | None = None,
    others: Sequence[tuple[int, str]] = (),
    allowed: str | None = None,
    pools: str | None = None,
    gpu: int = 0,
    release: str = "2.3",
    platform: str = "CUDA",
) -> str:
    """PyTorch from 2.1 on."""
    capacity = "capacty" if release == "2.1" else "capacity"
    listed = "".join(f"Process {pid} has {held} memory in use. " for pid, held in others)
    own = "" if process is None else f"Including non-PyTorch memory, this process has {process} memory in use. "
    limit = "" if allowed is None else f"{allowed} allowed; "
    private = "" if pools is None else f"with {pools} allocated in private pools (e.g., {platform} Graphs), "
    return (
        f"torch.OutOfMemoryError: {platform} out of memory. Tried to allocate {asked}. GPU {gpu} has a total "
        f"{capacity} of {of} of which {free} is free. {listed}{own}{limit}Of the allocated memory {used} is "
        f"allocated by PyTorch, {private}and {idle} is reserved by PyTorch but unallocated. If reserved but "
        f"unallocated memory is large try setting {HINTS[release]}"
    )


def on_driver_pools(asked: str, *, used: str, of: str, free: str, allowed: str = "17179869184.00 GiB") -> str:
    """PyTorch with backend:cudaMallocAsync."""
    return (
        f"torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        f"Currently allocated     : {used}\nRequested               : {asked}\nDevice limit            : {of}\n"
        f"Free (according to CUDA): {free}\nPyTorch limit (set by user-supplied memory fraction)\n"
        f"                        : {allowed}"
    )


def cupy(asked: int, held: int, limit: int | None = None) -> str:
    """CuPy from 7 on."""
    bound = "" if limit is None else f", limit set to: {limit:,} bytes"
    return (
        f"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating {asked:,} bytes (allocated so far: {held:,} "
        f"bytes{bound})."
    )


def gpumem(asked: str, *, of: str, free: str, held: str, used: str, limit: str | None = None) -> str:
    """`gpumem.OutOfMemoryError`."""
    bound = "" if limit is None else f" The limit is {limit}."
    return (
        f"gpumem.errors.OutOfMemoryError: Out of memory on device 0 (NVIDIA H200): {asked} were asked for, {free} of "
        f"{of} are free. This allocator holds {held}, of which {used} are in use.{bound} Free blocks, or ask for less."
    )


ERROR = modern("546.00 MiB", of="15.77 GiB", free="514.19 MiB", process="15.2 GiB", used="14.10 GiB", idle="736.86 MiB")
WRAPPED = """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB.
GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free.
Including non-PyTorch memory, this process has 15.2 GiB memory in use.
Of the allocated memory 14.10 GiB is allocated by PyTorch,
and 736.86 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try
setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."""


def messages_in(text: str) -> list[FoundMessage]:
    return list(read_oom_text(text).messages)
