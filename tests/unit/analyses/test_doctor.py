"""What doctor finds, and what it says to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.abi import gpus
from gpumem.abi.gpus import Gpu
from gpumem.analyses import doctor
from gpumem.analyses.doctor import CheckState, Diagnosis, measure_machine
from gpumem.nvml import open_nvml
from gpumem.recorder.torch_install import TorchInstall
from gpumem.recorder.tracker_build import TrackerDescription
from gpumem.render.json import render_diagnosis
from gpumem.render.terminal import doctor as terminal
from gpumem.render.terminal.theme import ASCII, Page
from nvml_stand_in import StandInDevice, StandInNvml, split_device

CODES = [
    "native_library",
    "stack_walker",
    "start_up_file",
    "nvml",
    "devices",
    "torch",
    "compiler",
    "tracker",
    "own_allocator",
    "pluggable_allocator",
    "cupy",
    "folder",
    "disk_room",
]


def measure(folder: Path, *devices: StandInDevice) -> Diagnosis:
    return measure_machine(folder, open_library=lambda: open_nvml(StandInNvml(*devices)))


def texts(diagnosis: Diagnosis) -> dict[str, tuple[CheckState, str]]:
    return {check.code: (check.state, check.text) for check in diagnosis.checks}


def test_every_part_of_a_recording_is_checked_in_order(tmp_path: Path) -> None:
    diagnosis = measure(tmp_path, StandInDevice())
    assert [check.code for check in diagnosis.checks] == CODES
    found = texts(diagnosis)
    assert found["native_library"][0] is CheckState.OK
    assert found["nvml"] == (CheckState.OK, "driver 580.159.04")
    assert found["devices"] == (CheckState.OK, "GPU 0: Stand-in, 1000.00 MiB, NVML index 0")
    assert found["folder"] == (CheckState.OK, f"{tmp_path} can be written to and mapped")
    assert diagnosis.is_working


def test_machine_without_driver_works_but_has_nothing_to_record(tmp_path: Path) -> None:
    diagnosis = measure_machine(tmp_path, open_library=lambda: open_nvml(StandInNvml(init_error="Not Found")))
    found = texts(diagnosis)
    assert found["nvml"] == (
        CheckState.MISSING,
        "NVML: Not Found; there are no readings of the device beside the allocator.",
    )
    assert found["devices"][0] is CheckState.MISSING
    assert diagnosis.is_working
    assert "There is no GPU here to record." in terminal.render_diagnosis(diagnosis, Page(80, ASCII)).plain


def test_hidden_devices_are_told_from_absent_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [check] = [check for check in measure(tmp_path, StandInDevice()).checks if check.code == "devices"]
    assert check.text == "CUDA_VISIBLE_DEVICES hides all 1 GPUs from programs started here."
    assert check.next_step == "unset CUDA_VISIBLE_DEVICES"


def test_unwritable_folder_is_broken_and_named() -> None:
    diagnosis = measure(Path("/proc"), StandInDevice())
    state, text = texts(diagnosis)["folder"]
    assert state is CheckState.BROKEN
    assert text.startswith("/proc cannot be written to")
    assert not diagnosis.is_working


@pytest.mark.parametrize(
    ("tracker", "state", "text"),
    [
        (
            TrackerDescription("2.11.0", "13.0", "g++", Path("/cache/t.so"), True, None),
            CheckState.OK,
            "built: /cache/t.so",
        ),
        (
            TrackerDescription("2.11.0", "13.0", "g++", Path("/cache/t.so"), False, None),
            CheckState.OK,
            "will be built in a few seconds at first use: /cache/t.so",
        ),
        (
            TrackerDescription("2.11.0", None, None, None, False, "torch 2.11.0 was built without CUDA"),
            CheckState.MISSING,
            "PyTorch's allocations are not recorded: torch 2.11.0 was built without CUDA.",
        ),
    ],
)
def test_tracker_is_built_buildable_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: TrackerDescription, state: CheckState, text: str
) -> None:
    monkeypatch.setattr(doctor, "describe_tracker", lambda: tracker)
    assert texts(measure(tmp_path, StandInDevice()))["tracker"] == (state, text)


def test_own_allocator_says_what_the_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "count_gpus", lambda: (0, "there is no CUDA driver (libcuda.so.1)"))
    assert texts(measure(tmp_path))["own_allocator"] == (
        CheckState.MISSING,
        (
            "gpumem's own allocator has no GPU here: there is no CUDA driver (libcuda.so.1); its simulated device "
            "needs none."
        ),
    )
    monkeypatch.setattr(gpus, "count_gpus", lambda: (2, None))
    monkeypatch.setattr(gpus, "describe_gpu", lambda device: Gpu("H200", "GPU-1", 140 << 30, device == 0))
    assert texts(measure(tmp_path))["own_allocator"] == (
        CheckState.OK,
        (
            "libcuda.so.1 answers. GPU 0: H200, 140.00 GiB, expandable segments; GPU 1: H200, 140.00 GiB, no "
            "expandable segments"
        ),
    )


@pytest.mark.parametrize(
    ("tracker", "source", "state", "text"),
    [
        (
            TrackerDescription("2.11.0", "13.0", "g++", Path("/cache/t.so"), True, None),
            "class CUDAPluggableAllocator(_CUDAAllocator):",
            CheckState.OK,
            "torch 2.11.0 takes gpumem's own allocator: gpumem run --allocator gpumem",
        ),
        (
            TrackerDescription("1.13.1", "11.7", "g++", None, False, "too old"),
            "",
            CheckState.MISSING,
            "torch 1.13.1 takes no other allocator than its own.",
        ),
        (
            TrackerDescription("2.11.0", None, None, None, False, "torch 2.11.0 was built without CUDA"),
            "",
            CheckState.MISSING,
            "gpumem's own allocator has no PyTorch to serve: this torch was built without CUDA.",
        ),
        (
            TrackerDescription(None, None, None, None, False, "torch is not installed for this Python"),
            "",
            CheckState.MISSING,
            "gpumem's own allocator has no PyTorch to serve: torch is not installed.",
        ),
    ],
)
def test_pytorch_can_be_served_or_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracker: TrackerDescription,
    source: str,
    state: CheckState,
    text: str,
) -> None:
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "cuda" / "memory.py").write_text(source)
    installed = TorchInstall(tmp_path / "torch", "2.11.0", "0", "13.0")
    monkeypatch.setattr(doctor, "find_torch", lambda: installed)
    monkeypatch.setattr(doctor, "describe_tracker", lambda: tracker)
    assert texts(measure(tmp_path, StandInDevice()))["pluggable_allocator"] == (state, text)


def test_json_names_the_schema_and_every_check(tmp_path: Path) -> None:
    document = json.loads(render_diagnosis(measure(tmp_path, StandInDevice())))
    assert document["schema"] == "gpumem.doctor/1"
    assert [check["code"] for check in document["checks"]] == CODES
    assert {tuple(check) for check in document["checks"]} == {("code", "state", "text", "next")}
    assert {check["state"] for check in document["checks"]} <= {"ok", "missing", "broken"}


def test_mig_instance_is_described_and_a_split_gpu_without_one_said_to_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    instances = {0: StandInDevice(uuid="MIG-a"), 2: StandInDevice(uuid="MIG-b", name="card MIG 1g")}
    state, text = texts(measure(tmp_path, split_device(instances)))["devices"]
    assert (state, text) == (CheckState.OK, "GPU 0: card MIG 1g, 1000.00 MiB, NVML index 0 (MIG 2)")
    state, text = texts(measure(tmp_path, split_device({})))["devices"]
    assert (state, text) == (
        CheckState.MISSING,
        "Every GPU here is split into MIG instances, and programs started here may see none of those.",
    )
