"""Our own allocators in this process: what a recording says of them, and their state where it begins in mid-run.

Owns: which allocators live here, the facts they are recorded with. Must not know: who allocates through them. Their
events come from the native core by itself.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass

from gpumem import abi
from gpumem.abi.allocator import DeviceKind, HeapSegment, NativeAllocator, create_allocator, torch_allocator
from gpumem.errors import UsageError
from gpumem.recorder import recording
from gpumem.recorder.torch_shapes import STATES
from gpumem.vocabulary import DeviceOrdinal

DEVICES_MAX = 128
"""Ordinals that a device may have are below this."""


@dataclass(frozen=True, slots=True)
class OwnAllocator:
    """An allocator of ours that lives in this process."""

    native: NativeAllocator
    kind: DeviceKind
    device: int
    settings: str


_lock = threading.RLock()
_alive: dict[tuple[DeviceKind, int], OwnAllocator] = {}
_is_torch_served = False


def start_allocator(
    kind: DeviceKind,
    device: int,
    *,
    settings: str = "",
    memory_bytes: int | None = None,
    limit_bytes: int | None = None,
) -> NativeAllocator:
    """A new allocator whose events are recorded if this process is; end it with end_allocator().

    Raises UsageError when the device has one already or for wrong settings, DeviceUnavailable.
    """
    with _lock:
        if (kind, device) in _alive:
            raise UsageError(
                f"Device {device} ({kind.name.lower()}) has an allocator in this process already; close it first, or "
                "choose another index."
            )
        native = create_allocator(
            kind, device=device, settings=settings, memory_bytes=memory_bytes, limit_bytes=limit_bytes
        )
        own = _alive[kind, device] = OwnAllocator(native, kind, device, settings)
        if recording.is_armed() and recording.ensure_started():
            _record_facts(own)
    return native


def end_allocator(native: NativeAllocator) -> None:
    """Gives the allocator's memory back; harmless when it has been ended."""
    with _lock:
        for key, own in list(_alive.items()):
            if own.native is native:
                del _alive[key]
    native.close()


def record_found() -> None:
    """Writes into a recording that has just begun what the allocators alive hold."""
    with _lock:
        for own in _alive.values():
            _record_facts(own)
            heap = own.native.heap()
            if heap.segments:
                segments = [_describe_segment(own.device, segment) for segment in heap.segments]
                state = {"snapshot_event": heap.position, "devices": [own.device], "segments": segments}
                abi.record_fact(f"initial_state:own{own.device}", json.dumps(state))


def find_serving(device: int) -> NativeAllocator | None:
    """The allocator of ours that serves the device here: on the GPU, in PyTorch's place, else simulated."""
    with _lock:
        on_gpu, simulated = _alive.get((DeviceKind.CUDA, device)), _alive.get((DeviceKind.SIMULATED, device))
    if on_gpu is not None:
        return on_gpu.native
    return torch_allocator(device) or (None if simulated is None else simulated.native)


def is_any_on_gpu() -> bool:
    """Whether an allocator of ours holds a GPU in this process."""
    with _lock:
        return _is_torch_served or any(kind is DeviceKind.CUDA for kind, _ in _alive)


def note_torch_served() -> None:
    """PyTorch's requests come to ours from now on."""
    global _is_torch_served
    _is_torch_served = True


def is_any_recorded() -> bool:
    """Whether an allocator of ours lives in this process and its events are recorded."""
    return bool(_alive) and recording.current() is not None


def _record_facts(own: OwnAllocator) -> None:
    device = own.native.describe_device()
    facts = {
        "uuid": device.uuid,
        "nvml_index": None,
        "name": device.name,
        "capacity_bytes": device.memory_bytes,
        "memory_limit_bytes": device.limit_bytes,
    }
    if not recording.has_torch_devices():
        abi.record_fact(f"device:{own.device}", json.dumps(facts))
    abi.record_fact("own_allocator", json.dumps({"settings": own.settings}))
    recording.note_own_allocator()
    uuids = {
        DeviceOrdinal(each.device): uuid
        for each in _alive.values()
        if (uuid := each.native.describe_device().uuid) is not None
    }
    recording.note_cuda_started(uuids)


def _describe_segment(device: int, segment: HeapSegment) -> dict[str, object]:
    """A segment of a found state, in the words of PyTorch's snapshots."""
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.segment_bytes,
        "stream": segment.stream,
        "segment_pool_id": segment.pool,
        "is_expandable": segment.is_expandable,
        "blocks": [
            {
                "address": block.address,
                "size": block.block_bytes,
                "requested_size": block.requested_bytes,
                "state": STATES[block.state],
            }
            for block in segment.blocks
        ],
    }


def _forget_after_fork() -> None:
    """A forked child has its parent's allocators in name only: CUDA does not outlive a fork."""
    global _lock, _alive
    _lock, _alive = threading.RLock(), {}


os.register_at_fork(after_in_child=_forget_after_fork)
