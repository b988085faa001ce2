"""NVML figures as they are, and reasons instead of figures where there are none."""

from __future__ import annotations

import sys

import pytest

from gpumem.nvml import MemoryFigures, Nvml, NvmlDevice, ProcessFigures, Unavailable, open_nvml
from nvml_stand_in import MIB, Figures, ListedProcess, StandInDevice, StandInError, StandInNvml, split_device

OWN = frozenset({100})


def open_stand_in(device: StandInDevice) -> tuple[Nvml, NvmlDevice]:
    nvml = open_nvml(StandInNvml(device))
    assert isinstance(nvml, Nvml)
    devices = nvml.read_devices()
    assert isinstance(devices, list)
    return nvml, devices[0]


def read_processes(device: StandInDevice, *, own_expected: bool = True) -> ProcessFigures:
    nvml, found = open_stand_in(device)
    return nvml.read_processes(found, OWN, own_expected=own_expected)


def test_device_is_described_by_index_uuid_name_and_capacity() -> None:
    _, device = open_stand_in(StandInDevice(uuid="GPU-abc", name="NVIDIA H200"))
    assert device == NvmlDevice(0, "GPU-abc", "NVIDIA H200", 1000 * MIB)


def test_memory_comes_from_the_second_version_of_the_call() -> None:
    nvml, device = open_stand_in(StandInDevice())
    assert nvml.read_memory(device) == MemoryFigures(1000 * MIB, 300 * MIB, 600 * MIB, 100 * MIB)


def test_reserve_is_taken_out_where_the_driver_counts_it_as_used() -> None:
    nvml, device = open_stand_in(StandInDevice(memory=Figures(1000 * MIB, 400 * MIB, 600 * MIB, 100 * MIB)))
    assert nvml.read_memory(device).used_bytes == 300 * MIB


def test_used_is_unavailable_where_only_the_first_version_answers() -> None:
    nvml, device = open_stand_in(StandInDevice(has_version_2=False))
    figures = nvml.read_memory(device)
    assert (figures.total_bytes, figures.free_bytes) == (1000 * MIB, 600 * MIB)
    reason = "used and reserved cannot be told apart: NVML: Function Not Found"
    assert figures.used_bytes == figures.reserved_bytes == Unavailable(reason)


def test_own_process_and_the_others_are_told_apart() -> None:
    device = StandInDevice(compute=[ListedProcess(100, 518 * MIB), ListedProcess(7, 10 * MIB), ListedProcess(8, MIB)])
    assert read_processes(device) == ProcessFigures(518 * MIB, 11 * MIB)


def test_process_in_two_lists_counts_once() -> None:
    device = StandInDevice(
        compute=[ListedProcess(100, 518 * MIB), ListedProcess(7, 10 * MIB)], graphics=[ListedProcess(7, 10 * MIB)]
    )
    assert read_processes(device) == ProcessFigures(518 * MIB, 10 * MIB)


def test_hidden_figures_are_said_to_be_hidden() -> None:
    device = StandInDevice(compute=[ListedProcess(100, None), ListedProcess(7, 5), ListedProcess(8, None)])
    assert read_processes(device) == ProcessFigures(
        Unavailable("the driver hides the memory of this process"),
        Unavailable("the driver hides the memory of 1 of 2 other processes"),
    )


def test_all_ones_is_no_figure() -> None:
    device = StandInDevice(compute=[ListedProcess(100, (1 << 64) - 1)])
    assert read_processes(device).process_bytes == Unavailable("the driver hides the memory of this process")


def test_missing_own_process_points_at_pid_namespaces() -> None:
    figures = read_processes(StandInDevice(compute=[ListedProcess(4711, 518 * MIB)]))
    assert figures.process_bytes == Unavailable("process not listed (another pid namespace?)")
    assert figures.other_processes_bytes == Unavailable("this process cannot be told apart from the others")


def test_process_without_cuda_is_not_expected_in_the_list() -> None:
    figures = read_processes(StandInDevice(compute=[ListedProcess(4711, 518 * MIB)]), own_expected=False)
    assert figures.process_bytes == Unavailable("process not listed: it has not started CUDA on this device")
    assert figures.other_processes_bytes == 518 * MIB


def test_refused_process_list_gives_the_drivers_reason() -> None:
    refused = Unavailable("NVML: Insufficient Permissions")
    figures = read_processes(StandInDevice(compute=StandInError("Insufficient Permissions")))
    assert figures == ProcessFigures(refused, refused)


def test_unsupported_graphics_list_is_left_out() -> None:
    device = StandInDevice(compute=[ListedProcess(100, MIB)], graphics=StandInError("Not Supported"))
    assert read_processes(device) == ProcessFigures(MIB, 0)


def test_missing_driver_is_unavailable() -> None:
    assert open_nvml(StandInNvml(init_error="Driver Not Loaded")) == Unavailable("NVML: Driver Not Loaded")


def test_missing_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml = open_nvml()
    assert isinstance(nvml, Unavailable)
    assert "install nvidia-ml-py" in nvml.reason


def test_split_device_is_followed_by_the_instances_that_may_be_seen() -> None:
    instances = {1: StandInDevice(uuid="MIG-a", name="card MIG 1g"), 4: StandInDevice(uuid="MIG-b", name="card MIG 2g")}
    nvml = open_nvml(StandInNvml(split_device(instances), StandInDevice(uuid="GPU-c")))
    assert isinstance(nvml, Nvml)
    devices = nvml.read_devices()
    assert isinstance(devices, list)
    assert [(one.number, one.uuid, one.is_split) for one in devices] == [
        ("0", "GPU-99999999-0000", True),
        ("0 (MIG 1)", "MIG-a", False),
        ("0 (MIG 4)", "MIG-b", False),
        ("1", "GPU-c", False),
    ]
    assert nvml.read_memory(devices[0]).total_bytes == Unavailable("NVML: Insufficient Permissions")
    assert nvml.read_memory(devices[2]).used_bytes == 300 * MIB
