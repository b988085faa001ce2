"""A scripted allocator for recorded test programs: hands events to the recorder as the torch tracker does.

A test program imports it where a real one would import torch and put tensors on the GPU.
"""

from __future__ import annotations

import json

from gpumem import abi
from gpumem.recorder import recording
from gpumem.vocabulary import DeviceOrdinal, EventKind

MIB = 1 << 20
CAPACITY_BYTES = 1 << 30

_held: dict[int, int] = {}
_next_address = 0x7F00_0000_0000


def start_cuda(device: int = 0) -> None:
    """What torch_hook does when CUDA starts."""
    if recording.is_armed() and recording.ensure_started():
        facts = {"uuid": "GPU-stand-in", "nvml_index": device, "name": "Stand-in", "capacity_bytes": CAPACITY_BYTES}
        abi.record_fact(f"device:{device}", json.dumps(facts | {"memory_limit_bytes": None}))
        recording.note_cuda_started({DeviceOrdinal(device): "GPU-stand-in"})


def alloc(requested_bytes: int, device: int = 0) -> int:
    """Address of a block in a segment of its own."""
    global _next_address
    address = _next_address
    _next_address += 64 * MIB
    _held[address] = requested_bytes
    segment_bytes = -(-requested_bytes // (2 * MIB)) * 2 * MIB
    abi.record_event(EventKind.SEGMENT_ALLOC, device=device, address=address, requested_bytes=segment_bytes)
    abi.record_event(EventKind.ALLOC, device=device, address=address, requested_bytes=requested_bytes)
    return address


def free(address: int, device: int = 0) -> None:
    """Frees a block at once."""
    requested_bytes = _held.pop(address)
    for kind in (EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED):
        abi.record_event(kind, device=device, address=address, requested_bytes=requested_bytes)
