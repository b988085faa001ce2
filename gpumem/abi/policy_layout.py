"""Layouts and prototypes of gpumem/native/include/gpumem_policy.h (a test compares both).

Owns: the C structures of the allocator's policy and its replay. Must not know: how they are called (policy.py).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int32, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

POLICY_ABI_HASH = "fdad22eeee589ac23f6fb8e232c93c2d4a7a2cb1e3d537dac78650e5cb3f5d13"
"""SHA-256 of the gpumem_policy.h that this module was written for."""


class CReplayDevice(ctypes.Structure):
    """gm_replay_device: how one device of the run was set up."""

    _fields_ = (
        ("settings", c_char_p),
        ("limit_bytes", c_uint64),
        ("capacity_bytes", c_uint64),
        ("limit_known", c_uint32),
        ("truncated", c_uint32),
        ("behaviour", c_uint32),
        ("check_each_event", c_uint32),
        ("device", c_uint32),
        ("reserved", c_uint32),
    )


class CReplayEvents(ctypes.Structure):
    """gm_replay_events: consecutive events as columns."""

    _fields_ = (
        ("count", c_uint64),
        ("kind", POINTER(c_uint8)),
        ("device", POINTER(c_uint8)),
        ("stream", POINTER(c_uint16)),
        ("pool", POINTER(c_uint16)),
        ("address", POINTER(c_uint64)),
        ("requested_bytes", POINTER(c_uint64)),
    )


class CHeapSegments(ctypes.Structure):
    """gm_heap_segments: segments as columns."""

    _fields_ = (
        ("count", c_uint64),
        ("address", POINTER(c_uint64)),
        ("bytes", POINTER(c_uint64)),
        ("stream", POINTER(c_uint64)),
        ("pool_first", POINTER(c_uint64)),
        ("pool_second", POINTER(c_uint64)),
        ("is_small", POINTER(c_uint8)),
        ("is_expandable", POINTER(c_uint8)),
    )


class CHeapBlocks(ctypes.Structure):
    """gm_heap_blocks: blocks as columns."""

    _fields_ = (
        ("count", c_uint64),
        ("address", POINTER(c_uint64)),
        ("bytes", POINTER(c_uint64)),
        ("requested_bytes", POINTER(c_uint64)),
        ("state", POINTER(c_uint8)),
    )


RESULT_COUNTS = (
    "decisions",
    "events",
    "limit_bytes_min",
    "limit_bytes_max",
    "empty_cache_count",
    "allocated_bytes_end",
    "allocated_bytes_peak",
    "active_bytes_end",
    "active_bytes_peak",
    "requested_bytes_end",
    "requested_bytes_peak",
    "reserved_bytes_end",
    "reserved_bytes_peak",
    "cache_hits",
    "splits",
    "alloc_retries",
    "ooms",
    "device_allocs",
    "device_frees",
    "releasable_bytes_end",
    "gap_bytes_end",
    "small_free_bytes_max",
    "large_free_bytes_max",
    "difference_position",
    "expected_address",
    "expected_bytes",
    "expected_stream",
    "got_address",
    "got_bytes",
    "got_stream",
)


class CReplayResult(ctypes.Structure):
    """gm_replay_result: where a device's replay stands."""

    _fields_ = (
        *((name, c_uint64) for name in RESULT_COUNTS),
        ("assumptions", c_uint32),
        ("exact", c_uint8),
        ("expected_kind", c_uint8),
        ("got_kind", c_uint8),
        ("reserved", c_uint8),
        ("reason", c_char * 128),
    )


WHAT_IF_COUNTS = (
    "requests",
    "allocated_bytes_peak",
    "active_bytes_peak",
    "requested_bytes_peak",
    "reserved_bytes_peak",
    "reserved_bytes_end",
    "cache_hits",
    "splits",
    "alloc_retries",
    "device_allocs",
    "device_frees",
    "ooms",
    "first_oom_position",
    "served_oom_count",
)


class CWhatIfOptions(ctypes.Structure):
    """gm_what_if_options: the card and the settings to try."""

    _fields_ = (
        ("settings", c_char_p),
        ("memory_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("seed", c_uint64),
        ("behaviour", c_uint32),
        ("address_order", c_uint32),
        ("device", c_uint32),
        ("reserved", c_uint32),
    )


class CWhatIfResult(ctypes.Structure):
    """gm_what_if_result: how the requests went there."""

    _fields_ = tuple((name, c_uint64) for name in WHAT_IF_COUNTS)


PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gm_policy_abi_hash": (c_char_p, ()),
    "gm_policy_check_settings": (c_int32, (c_char_p, c_char_p, c_size_t)),
    "gm_replay_create": (c_int32, (POINTER(c_void_p),)),
    "gm_replay_destroy": (None, (c_void_p,)),
    "gm_replay_add_streams": (c_int32, (c_void_p, POINTER(c_uint64), c_uint64)),
    "gm_replay_add_pools": (c_int32, (c_void_p, POINTER(c_uint64), POINTER(c_uint64), c_uint64)),
    "gm_replay_add_device": (c_int32, (c_void_p, POINTER(CReplayDevice), c_char_p, c_size_t)),
    "gm_replay_adopt": (c_int32, (c_void_p, c_uint32, POINTER(CHeapSegments), POINTER(CHeapBlocks))),
    "gm_replay_adopt_from_end": (
        c_int32,
        (
            c_void_p,
            c_uint32,
            POINTER(CHeapSegments),
            POINTER(CHeapBlocks),
            POINTER(CReplayEvents),
            c_char_p,
            c_size_t,
        ),
    ),
    "gm_replay_feed": (c_int32, (c_void_p, POINTER(CReplayEvents))),
    "gm_replay_finish": (c_int32, (c_void_p,)),
    "gm_replay_settle": (c_int32, (c_void_p, c_uint64)),
    "gm_replay_ready": (c_uint64, (c_void_p,)),
    "gm_replay_take": (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint16))),
    "gm_replay_get_result": (c_int32, (c_void_p, c_uint32, POINTER(CReplayResult))),
    "gm_replay_get_empty_caches": (c_int32, (c_void_p, c_uint32, POINTER(c_uint64), c_uint64)),
    "gm_replay_count_heap": (c_int32, (c_void_p, c_uint32, POINTER(c_uint64), POINTER(c_uint64))),
    "gm_replay_get_heap": (c_int32, (c_void_p, c_uint32, POINTER(CHeapSegments), POINTER(CHeapBlocks))),
    "gm_what_if_create": (c_int32, (POINTER(CWhatIfOptions), POINTER(c_void_p), c_char_p, c_size_t)),
    "gm_what_if_destroy": (None, (c_void_p,)),
    "gm_what_if_add_streams": (c_int32, (c_void_p, POINTER(c_uint64), c_uint64)),
    "gm_what_if_add_pools": (c_int32, (c_void_p, POINTER(c_uint64), POINTER(c_uint64), c_uint64)),
    "gm_what_if_add_empty_caches": (c_int32, (c_void_p, POINTER(c_uint64), c_uint64)),
    "gm_what_if_feed": (c_int32, (c_void_p, POINTER(CReplayEvents))),
    "gm_what_if_get_result": (c_int32, (c_void_p, POINTER(CWhatIfResult))),
    "gm_what_if_get_ooms": (c_int32, (c_void_p, POINTER(c_uint64), c_uint64)),
}
