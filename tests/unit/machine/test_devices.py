"""CUDA_VISIBLE_DEVICES and UUIDs against NVML's list."""

from __future__ import annotations

import pytest

from gpumem.machine.devices import find_closed_devices, find_devices_by_uuid, find_visible_devices
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
    assert {ordinal: device.index for ordinal, device in find_devices_by_uuid(DEVICES, uuids, {}).items()} == {
        0: 1,
        1: 0,
    }


SPLIT = [
    DEVICES[0],
    NvmlDevice(1, "GPU-dddddddd-0000", "card", 1 << 30, is_split=True),
    NvmlDevice(1, "MIG-11111111-0000", "card MIG 1g", 1 << 27, 2),
    NvmlDevice(1, "MIG-22222222-0000", "card MIG 1g", 1 << 27, 5),
    NvmlDevice(2, "GPU-eeeeeeee-0000", "card", 1 << 30, is_split=True),
    NvmlDevice(3, "GPU-ffffffff-0000", "card", 1 << 30),
]


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [
        (None, ["0", "1 (MIG 2)", "3"]),
        ("MIG-22222222-0000", ["1 (MIG 5)"]),
        ("MIG-2", ["1 (MIG 5)"]),
        ("1", ["1 (MIG 2)"]),
        ("GPU-dddddddd-0000", ["1 (MIG 2)"]),
        ("3,0", ["3", "0"]),
        ("2", []),
        ("MIG-33333333-0000", []),
    ],
)
def test_program_sees_instances_of_a_split_device(listed: str | None, numbers: list[str]) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert [device.number for device in find_visible_devices(SPLIT, environment).values()] == numbers


def test_reported_uuid_of_a_split_device_means_the_instance_that_is_visible() -> None:
    def number_of(uuid: str, listed: str) -> str | None:
        found = find_devices_by_uuid(SPLIT, {DeviceOrdinal(0): uuid}, {"CUDA_VISIBLE_DEVICES": listed})
        return found[DeviceOrdinal(0)].number if found else None

    assert number_of("22222222-0000", "MIG-22222222-0000") == "1 (MIG 5)"
    assert number_of("GPU-22222222-0000", "MIG-22222222-0000") == "1 (MIG 5)"
    assert number_of("GPU-dddddddd-0000", "MIG-22222222-0000") == "1 (MIG 5)"
    assert number_of("GPU-dddddddd-0000", "1") == "1 (MIG 2)"
    assert number_of("GPU-eeeeeeee-0000", "2") is None
    assert find_closed_devices(SPLIT) == [SPLIT[4]]
