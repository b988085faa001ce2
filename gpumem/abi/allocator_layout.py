"""Layouts and prototypes of gpumem/native/include/gpumem_allocator.h (a test compares both).

Owns: the C structures of live allocators. Must not know: how they are called (allocator.py).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from gpumem.abi.policy_layout import CHeapBlocks, CHeapSegments

ALLOCATOR_ABI_HASH = "099bd3ad4602cc47df13b77c9f49c61bae56719a4d8ff98e6218281cedb0dd3c"
"""SHA-256 of the gpumem_allocator.h that this module was written for."""


class CAllocatorOptions(ctypes.Structure):
    """gm_allocator_options: which device, under which settings."""

    _fields_ = (
        ("settings", c_char_p),
        ("memory_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("device_kind", c_uint32),
        ("device", c_uint32),
        ("number", c_uint32),
        ("reserved", c_uint32),
    )


class CCounter(ctypes.Structure):
    """gm_counter: a figure now, at most, and what came and went."""

    _fields_ = tuple((name, c_uint64) for name in ("current", "peak", "added", "removed"))


POOL_COUNTERS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class CPoolCounters(ctypes.Structure):
    """gm_pool_counters: the counters of the small pools, of the large ones, or of both."""

    _fields_ = tuple((name, CCounter) for name in POOL_COUNTERS)


STATISTICS_COUNTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "max_split_bytes",
    "cache_hits",
    "splits",
    "releasable_bytes",
    "gap_bytes",
)


class CAllocatorStatistics(ctypes.Structure):
    """gm_allocator_statistics: everything that is counted."""

    _fields_ = (
        ("all", CPoolCounters),
        ("small_pool", CPoolCounters),
        ("large_pool", CPoolCounters),
        ("oversize_allocations", CCounter),
        ("oversize_segments", CCounter),
        *((name, c_uint64) for name in STATISTICS_COUNTS),
    )


class CPrivatePool(ctypes.Structure):
    """gm_private_pool: the reserved bytes of one private pool."""

    _fields_ = (
        ("pool_first", c_uint64),
        ("pool_second", c_uint64),
        *((name, CCounter) for name in ("all", "small_pool", "large_pool")),
    )


class CAllocatorDevice(ctypes.Structure):
    """gm_allocator_device: the card behind an allocator."""

    _fields_ = (
        ("memory_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("name", c_char * 128),
        ("uuid", c_char * 48),
    )


class CAllocatorGpu(ctypes.Structure):
    """gm_allocator_gpu: a GPU that an allocator could be on."""

    _fields_ = (
        ("memory_bytes", c_uint64),
        ("has_expandable_segments", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char * 128),
        ("uuid", c_char * 48),
    )


HeapTaker = ctypes.CFUNCTYPE(None, c_void_p, POINTER(CHeapSegments), POINTER(CHeapBlocks), c_uint64)
"""gm_allocator_heap_taker: what gm_allocator_take_heap calls with the rows."""

PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gm_allocator_abi_hash": (c_char_p, ()),
    "gm_allocator_count_gpus": (c_int32, (POINTER(c_uint32), c_char_p, c_size_t)),
    "gm_allocator_get_gpu": (c_int32, (c_uint32, POINTER(CAllocatorGpu), c_char_p, c_size_t)),
    "gm_allocator_current_gpu": (c_int32, (POINTER(c_uint32),)),
    "gm_allocator_create": (c_int32, (POINTER(CAllocatorOptions), POINTER(c_void_p), c_char_p, c_size_t)),
    "gm_allocator_destroy": (None, (c_void_p,)),
    "gm_allocator_alloc": (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(c_uint64))),
    "gm_allocator_free": (c_int32, (c_void_p, c_uint64)),
    "gm_allocator_record_stream": (c_int32, (c_void_p, c_uint64, c_uint64)),
    "gm_allocator_empty_cache": (c_int32, (c_void_p,)),
    "gm_allocator_hold_streams": (c_int32, (c_void_p, c_uint32)),
    "gm_allocator_get_statistics": (c_int32, (c_void_p, POINTER(CAllocatorStatistics))),
    "gm_allocator_get_private_pools": (c_int32, (c_void_p, POINTER(CPrivatePool), c_uint64, POINTER(c_uint64))),
    "gm_allocator_reset_peaks": (c_int32, (c_void_p,)),
    "gm_allocator_reset_accumulated": (c_int32, (c_void_p,)),
    "gm_allocator_get_device": (c_int32, (c_void_p, POINTER(CAllocatorDevice))),
    "gm_allocator_get_failure": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "gm_allocator_check": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "gm_allocator_take_heap": (c_int32, (c_void_p, HeapTaker, c_void_p)),
    "gm_torch_prepare": (c_int32, (c_char_p, c_uint32, c_uint32, c_char_p, c_size_t)),
    "gm_torch_allocator": (c_void_p, (c_uint32,)),
    "gm_torch_start": (c_int32, (c_uint32, POINTER(c_void_p), c_char_p, c_size_t)),
    "gm_torch_share": (c_int32, (c_void_p,)),
    "gm_torch_answer_cache_info": (c_int32, (c_char_p, c_size_t)),
    "gm_torch_let_peers_in": (c_int32, (c_char_p, c_size_t)),
    "gm_torch_serve_directly": (c_int32, (c_char_p, c_size_t)),
    "gm_cupy_create": (c_int32, (c_void_p, c_void_p, POINTER(c_void_p))),
    "gm_cupy_malloc_function": (c_void_p, (c_void_p,)),
    "gm_cupy_free_function": (c_void_p, (c_void_p,)),
    "gm_cupy_serve": (c_int32, (c_void_p, c_uint32, c_void_p)),
}
