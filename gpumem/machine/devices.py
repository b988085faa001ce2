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

    As CUDA does it: the list of CUDA_VISIBLE_DEVICES (indices or beginnings of UUIDs) ends at its first invalid entry,
    and of a device that is split into MIG instances the program sees one, the first where none is named.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        seen = [_seen_of(devices, device) for device in _whole(devices)]
        return {DeviceOrdinal(number): one for number, one in enumerate(one for one in seen if one is not None)}
    visible: dict[DeviceOrdinal, NvmlDevice] = {}
    for entry in listed.split(","):
        named = _find_device(devices, entry.strip())
        device = None if named is None else _seen_of(devices, named)
        if device is None or device in visible.values():
            break
        visible[DeviceOrdinal(len(visible))] = device
    return visible


def find_devices_by_uuid(
    devices: Sequence[NvmlDevice], uuids: Mapping[DeviceOrdinal, str], environment: Mapping[str, str]
) -> dict[DeviceOrdinal, NvmlDevice]:
    """The devices whose UUIDs a running program reported, by its own ordinals; those unknown to NVML are left out.

    A program on a MIG instance may report the UUID of the whole device: the instance is then the one that
    `environment` names.
    """
    by_uuid = {_bare_uuid(device.uuid): device for device in devices}
    visible = find_visible_devices(devices, environment).values()
    found = {}
    for ordinal, uuid in uuids.items():
        device = by_uuid.get(_bare_uuid(uuid))
        if device is not None and device.is_split:
            named = (one for one in visible if one.index == device.index)
            device = next(named, _seen_of(devices, device))
        if device is not None:
            found[ordinal] = device
    return found


def find_closed_devices(devices: Sequence[NvmlDevice]) -> list[NvmlDevice]:
    """The devices that are split into MIG instances of which this process may see none."""
    return [device for device in devices if device.is_split and _seen_of(devices, device) is None]


def _whole(devices: Sequence[NvmlDevice]) -> list[NvmlDevice]:
    return [device for device in devices if device.instance is None]


def _seen_of(devices: Sequence[NvmlDevice], device: NvmlDevice) -> NvmlDevice | None:
    """What a program sees of a device: it, or its first MIG instance; None where it is split and none can be seen."""
    if not device.is_split:
        return device
    return next((one for one in devices if one.index == device.index and one.instance is not None), None)


def _find_device(devices: Sequence[NvmlDevice], entry: str) -> NvmlDevice | None:
    if entry.isascii() and entry.isdecimal():
        whole, index = _whole(devices), int(entry)
        return whole[index] if index < len(whole) else None
    matches = [device for device in devices if entry and device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _bare_uuid(uuid: str) -> str:
    """NVML writes `GPU-…`, torch the bare hexadecimal groups."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
