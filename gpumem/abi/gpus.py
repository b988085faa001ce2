"""The GPUs that the driver shows this process, by ctypes; no context is started.

Owns: typed calls on gpumem_allocator.h about GPUs. Must not know: allocators, NVML.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32
from dataclasses import dataclass

from gpumem.abi.allocator import TEXT_CAPACITY, Status, load_core
from gpumem.abi.allocator_layout import CAllocatorGpu
from gpumem.abi.library import decode_text
from gpumem.errors import DeviceUnavailable


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that an allocator could be on."""

    name: str
    uuid: str
    memory_bytes: int
    has_expandable_segments: bool
    """Memory can be mapped by pages, which expandable_segments:True needs."""


def count_gpus() -> tuple[int, str | None]:
    """GPUs that the driver shows this process, and why there are none; starts no context."""
    count = c_uint32()
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    status = load_core().gm_allocator_count_gpus(byref(count), error, TEXT_CAPACITY)
    return count.value, decode_text(error.value) if status else None


def find_current_gpu() -> int | None:
    """The GPU whose CUDA context is current on this thread; None where none is."""
    device = c_uint32()
    return device.value if load_core().gm_allocator_current_gpu(byref(device)) == Status.OK else None


def describe_gpu(device: int) -> Gpu:
    """The GPU of an ordinal; raises DeviceUnavailable with the driver's reason."""
    raw = CAllocatorGpu()
    error = ctypes.create_string_buffer(TEXT_CAPACITY)
    if load_core().gm_allocator_get_gpu(device, byref(raw), error, TEXT_CAPACITY) != Status.OK:
        raise DeviceUnavailable(f"GPU {device} cannot be used: {decode_text(error.value)}.")
    return Gpu(
        name=decode_text(raw.name),
        uuid=decode_text(raw.uuid),
        memory_bytes=raw.memory_bytes,
        has_expandable_segments=bool(raw.has_expandable_segments),
    )
