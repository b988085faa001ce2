"""Our own allocators in this process: what a recording says of them, and their state where it begins in mid-run.

Owns: which allocators live here, the facts they are recorded with. Must not know: who allocates through them. Their
events come from the native core by itself.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpumem import abi
from gpumem.abi.allocator import (
    DeviceKind,
    NativeAllocator,
    create_allocator,
    start_torch_allocator,
    torch_allocator,
)
from gpumem.abi.live_heap import HeapSegment
from gpumem.errors import UsageError
from gpumem.recorder import recording
from gpumem.recorder.torch_shapes import STATES
from gpumem.vocabulary import NUMBERS_SHARED, DeviceOrdinal

DEVICES_MAX = 128
"""Ordinals that a device may have are below this."""


@dataclass(frozen=True, slots=True)
class OwnAllocator:
    """An allocator of ours that lives in this process."""

    native: NativeAllocator
    kind: DeviceKind
    device: int
    settings: str
    number: int
    """Told with its events."""
    is_lasting: bool = False
    """Nobody ends it: PyTorch may come to share it."""
    is_torch_s: bool = False
    """It serves PyTorch too, whose memory limit is its own."""
    torch_version: str | None = None
    """The PyTorch that it follows; None: 2.11."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """What decides how an allocator fares; `kind` None: in PyTorch's place."""

    kind: DeviceKind | None
    settings: str
    memory_bytes: int | None = None
    limit_bytes: int | None = None


_lock = threading.RLock()
_alive: dict[tuple[DeviceKind, int], OwnAllocator] = {}
_torch_settings: str | None = None
"""None: PyTorch is not served by ours."""
_torch_version: str | None = None
"""Of the PyTorch that ours serves, and follows."""
_cards: dict[int, tuple[int, int | None]] = {}
"""Memory and limit that the recording `_cards_of` names of each device."""
_cards_of: recording.Recording | None = None
_setups: dict[_Setup, int] = {}
"""The number of each set-up. Of one a device has one allocator at a time, which begins as empty as the one before it
ended: to a replay they are one."""


def start_allocator(
    kind: DeviceKind,
    device: int,
    *,
    settings: str = "",
    memory_bytes: int | None = None,
    limit_bytes: int | None = None,
    is_lasting: bool = False,
) -> NativeAllocator:
    """A new allocator whose events are recorded if this process is; end it with end_allocator(), or never (lasting).

    Raises UsageError when the device has one already or for wrong settings, DeviceUnavailable.
    """
    with _lock:
        if (kind, device) in _alive:
            raise UsageError(
                f"Device {device} ({kind.name.lower()}) has an allocator in this process already; close it first, or "
                "choose another index."
            )
        number = _number_of(_Setup(kind, settings, memory_bytes, limit_bytes))
        native = create_allocator(
            kind, device=device, settings=settings, memory_bytes=memory_bytes, limit_bytes=limit_bytes, number=number
        )
        _keep(OwnAllocator(native, kind, device, settings, number, is_lasting))
    return native


def share_allocator(device: int, *, settings: str, memory_bytes: int | None) -> NativeAllocator:
    """A lasting allocator on a GPU: the one that serves another library there already, where nothing else is asked.

    One heap then serves both, and one replay follows it. Raises as start_allocator().
    """
    with _lock:
        found = _alive.get((DeviceKind.CUDA, device))
        in_force = _torch_settings if found is None else found.settings
        is_shared = memory_bytes is None and settings in ("", in_force)
        if is_shared and found is not None and found.is_lasting:
            return found.native
        if is_shared and found is None and _torch_settings is not None:
            own = OwnAllocator(
                start_torch_allocator(device),
                DeviceKind.CUDA,
                device,
                _torch_settings,
                number_in_torch_place(_torch_settings),
                is_lasting=True,
                is_torch_s=True,
                torch_version=_torch_version,
            )
            _keep(own)
            return own.native
        is_lasting = memory_bytes is None
        return start_allocator(
            DeviceKind.CUDA, device, settings=settings, memory_bytes=memory_bytes, is_lasting=is_lasting
        )


def record_torch_devices(devices: Iterable[int]) -> None:
    """Writes into the recording under which settings ours serves PyTorch on these devices, where it does."""
    settings = _torch_settings
    if settings is not None:
        for device in devices:
            _record_given(device, number_in_torch_place(settings), settings, None, _torch_version)


def number_in_torch_place(settings: str) -> int:
    """What events of our allocators are numbered that serve PyTorch."""
    with _lock:
        return _number_of(_Setup(None, settings))


def _number_of(setup: _Setup) -> int:
    """Called with the lock held."""
    return _setups.setdefault(setup, min(len(_setups), NUMBERS_SHARED))


def _keep(own: OwnAllocator) -> None:
    """Called with the lock held."""
    _alive[own.kind, own.device] = own
    if recording.is_armed() and recording.ensure_started():
        _record_facts(own)


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
                state = {
                    "snapshot_event": heap.position,
                    "devices": [own.device],
                    "allocator": own.number,
                    "segments": segments,
                }
                abi.record_fact(f"initial_state:own{own.device}:{own.number}", json.dumps(state))


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
        return _torch_settings is not None or any(kind is DeviceKind.CUDA for kind, _ in _alive)


def torch_settings() -> str | None:
    """The settings under which ours serves PyTorch; None where it does not."""
    return _torch_settings


def torch_version() -> str | None:
    """Of the PyTorch that ours serves; None where it does not."""
    return _torch_version


def note_torch_served(settings: str, torch_version: str) -> None:
    """PyTorch's requests come to ours from now on, where another library's allocator has its settings to that one."""
    global _torch_settings, _torch_version
    with _lock:
        _torch_settings, _torch_version = settings, torch_version
        for own in list(_alive.values()):
            if own.kind is DeviceKind.CUDA and own.is_lasting and own.settings == settings:
                own.native.share_with_torch()
                _keep(replace(own, is_torch_s=True))


def _record_facts(own: OwnAllocator) -> None:
    device = own.native.describe_device()
    given = (device.memory_bytes, device.limit_bytes)
    if not recording.has_torch_devices():
        capacity_bytes, limit_bytes = _widest_card(own.device, *given)
        facts = {
            "uuid": device.uuid,
            "nvml_index": None,
            "name": device.name,
            "capacity_bytes": capacity_bytes,
            "memory_limit_bytes": limit_bytes,
        }
        abi.record_fact(f"device:{own.device}", json.dumps(facts))
    abi.record_fact("own_allocator", json.dumps({"settings": own.settings}))
    _record_given(own.device, own.number, own.settings, None if own.is_torch_s else given, own.torch_version)
    recording.note_own_allocator()
    uuids = {
        DeviceOrdinal(each.device): uuid
        for each in _alive.values()
        if (uuid := each.native.describe_device().uuid) is not None
    }
    recording.note_cuda_started(uuids)


def _widest_card(device: int, memory_bytes: int, limit_bytes: int | None) -> tuple[int, int | None]:
    """Memory and limit of the card that an allocator's device is: the most of those that it had in this recording, and
    a limit that all had.
    """
    global _cards_of
    if _cards_of is not recording.current():
        _cards_of = recording.current()
        _cards.clear()
    known_bytes, known_limit = _cards.get(device, (memory_bytes, limit_bytes))
    card = max(known_bytes, memory_bytes), limit_bytes if limit_bytes == known_limit else None
    _cards[device] = card
    return card


def _record_given(
    device: int, number: int, settings: str, given: tuple[int, int | None] | None, torch_version: str | None
) -> None:
    """What an allocator was given, None: memory and limit are the device's; and the PyTorch that it follows."""
    facts: dict[str, object] = {"settings": settings, "torch_version": torch_version}
    if given is not None:
        facts["capacity_bytes"], facts["memory_limit_bytes"] = given
    abi.record_fact(f"allocator:{device}:{number}", json.dumps(facts))


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
