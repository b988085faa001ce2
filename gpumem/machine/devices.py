"""Devices as a program numbers them: CUDA ordinals against NVML's list.

Owns: what CUDA_VISIBLE_DEVICES means. Must not know: how a device is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.nvml import NvmlDevice
from gpumem.vocabulary import DeviceOrdinal


def find_visible_devices(
    devices: Sequence[NvmlDevice], environment: Mapping[str, str]
) -> dict[DeviceOrdinal, NvmlDevice]:
    """The devices a CUDA program sees under `environment`, by its own ordinals.

    As CUDA does it: the list of CUDA_VISIBLE_DEVICES (indices or beginnings of UUIDs) ends at its first invalid entry.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return {DeviceOrdinal(ordinal): device for ordinal, device in enumerate(devices)}
    visible: dict[DeviceOrdinal, NvmlDevice] = {}
    for entry in listed.split(","):
        device = _find_device(devices, entry.strip())
        if device is None or device in visible.values():
            break
        visible[DeviceOrdinal(len(visible))] = device
    return visible


def find_devices_by_uuid(
    devices: Sequence[NvmlDevice], uuids: Mapping[DeviceOrdinal, str]
) -> dict[DeviceOrdinal, NvmlDevice]:
    """The devices whose UUIDs a running program reported, by its own ordinals; those unknown to NVML are left out."""
    by_uuid = {_bare_uuid(device.uuid): device for device in devices}
    return {ordinal: by_uuid[_bare_uuid(uuid)] for ordinal, uuid in uuids.items() if _bare_uuid(uuid) in by_uuid}


def _find_device(devices: Sequence[NvmlDevice], entry: str) -> NvmlDevice | None:
    if entry.isascii() and entry.isdecimal():
        index = int(entry)
        return devices[index] if index < len(devices) else None
    matches = [device for device in devices if entry and device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _bare_uuid(uuid: str) -> str:
    """NVML writes `GPU-…`, torch the bare hexadecimal groups."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
