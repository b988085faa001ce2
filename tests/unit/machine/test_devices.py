"""CUDA_VISIBLE_DEVICES and UUIDs against NVML's list."""

from __future__ import annotations

import pytest

from gpumem.machine.devices import find_devices_by_uuid, find_visible_devices
from gpumem.nvml import NvmlDevice
from gpumem.vocabulary import DeviceOrdinal

DEVICES = [NvmlDevice(index, f"GPU-{letter * 8}-0000", "card", 1 << 30) for index, letter in enumerate("abc")]


@pytest.mark.parametrize(
    ("listed", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("1, 2", [1, 2]),
        ("1,7,0", [1]),
        ("-1", []),
        ("\u00b2", []),
        ("0,0", [0]),
        ("GPU-cc,GPU-aaaaaaaa-0000", [2, 0]),
        ("GPU-", []),
    ],
)
def test_visible_devices_follow_cuda(listed: str | None, indices: list[int]) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    visible = find_visible_devices(DEVICES, environment)
    assert list(visible) == list(range(len(indices)))
    assert [device.index for device in visible.values()] == indices


def test_reported_uuid_finds_its_device_with_and_without_prefix() -> None:
    uuids = {DeviceOrdinal(0): "bbbbbbbb-0000", DeviceOrdinal(1): "GPU-aaaaaaaa-0000", DeviceOrdinal(2): "unknown"}
    assert {ordinal: device.index for ordinal, device in find_devices_by_uuid(DEVICES, uuids).items()} == {0: 1, 1: 0}
