"""What works on this machine and why not the rest.

Owns: the findings of `gpumem doctor`: one check for each thing a recording needs. Must not know: text's layout, JSON.
Nothing is built and torch is not imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem import abi
from gpumem.errors import DeviceUnavailable, GpumemError, OutputUnwritable
from gpumem.machine.devices import find_closed_devices, find_visible_devices
from gpumem.machine.file_systems import has_mapped_files
from gpumem.nvml import Nvml, NvmlDevice, Unavailable, open_nvml
from gpumem.recorder.interpreter import find_start_up_file
from gpumem.recorder.torch_install import find_torch, takes_allocator
from gpumem.recorder.tracker_build import TrackerDescription, describe_tracker
from gpumem.trace.targets import check_writable
from gpumem.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from gpumem.abi.gpus import Gpu

JOURNAL_BYTES_LEAST = 24 * MIB
"""What an empty journal takes: less room than that and nothing is recorded."""
ROOM_BYTES_ADVISED = GIB


class CheckState(Enum):
    """What a check found."""

    OK = "ok"
    MISSING = "missing"
    """Not here; recording does without, as the text says."""
    BROKEN = "broken"
    """Recording fails until it is put right."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what it is like, and what to do where it is not well."""

    code: str
    state: CheckState
    text: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, in the order of a recording."""

    checks: Sequence[Check]

    @property
    def is_working(self) -> bool:
        """Whether recording would work: nothing is broken."""
        return all(check.state is not CheckState.BROKEN for check in self.checks)


def measure_machine(folder: Path, *, open_library: Callable[[], Nvml | Unavailable] = open_nvml) -> Diagnosis:
    """The state of everything that recording into `folder` needs on this machine."""
    native = _check_native_library()
    nvml = open_library()
    tracker = describe_tracker()
    return Diagnosis(
        (
            native,
            _check_stack_walker(native),
            _check_start_up_file(),
            _check_nvml(nvml),
            _check_devices(nvml),
            _check_torch(tracker),
            _check_compiler(tracker),
            _check_tracker(tracker),
            _check_own_allocator(native),
            _check_pluggable(tracker),
            _check_cupy(),
            _check_folder(folder),
            _check_room(folder),
        )
    )


def _check_native_library() -> Check:
    try:
        abi.clock_ns()
    except GpumemError as error:
        return Check("native_library", CheckState.BROKEN, str(error), "pip install --force-reinstall gpumem")
    return Check("native_library", CheckState.OK, f"{abi.library_path()}, interface {abi.ABI_HASH[:12]}")


def _check_stack_walker(native: Check) -> Check:
    if native.state is not CheckState.OK:
        return Check("stack_walker", CheckState.MISSING, "Not tried without the native library.")
    from gpumem.recorder.walker_check import start_walker

    reason = start_walker()
    if reason is None:
        version = ".".join(str(part) for part in sys.version_info[:3])
        return Check("stack_walker", CheckState.OK, f"Python {version}: stacks walked as sys._getframe gives them")
    return Check("stack_walker", CheckState.MISSING, reason, "Use CPython 3.11 to 3.15; all else is recorded.")


def _check_start_up_file() -> Check:
    path = find_start_up_file()
    if path is not None:
        return Check("start_up_file", CheckState.OK, str(path))
    return Check(
        "start_up_file",
        CheckState.MISSING,
        "This Python reads no gpumem.pth: the script is recorded, but none of the processes that it starts.",
        f"{sys.executable} -m pip install gpumem",
    )


def _check_nvml(nvml: Nvml | Unavailable) -> Check:
    version = nvml.read_driver_version() if isinstance(nvml, Nvml) else nvml
    if isinstance(version, Unavailable):
        return Check(
            "nvml",
            CheckState.MISSING,
            f"{version.reason}; there are no readings of the device beside the allocator.",
            "Install NVIDIA's driver, or in a container make it visible (docker run --gpus all).",
        )
    return Check("nvml", CheckState.OK, f"driver {version}")


def _check_devices(nvml: Nvml | Unavailable) -> Check:
    devices = nvml.read_devices() if isinstance(nvml, Nvml) else nvml
    if isinstance(devices, Unavailable) or not devices:
        return Check("devices", CheckState.MISSING, "No GPU answers, so there is nothing to record.", "gpumem demo")
    visible = find_visible_devices(devices, os.environ)
    if not visible:
        whole = [device for device in devices if device.instance is None]
        if find_closed_devices(devices) == whole:
            text = "Every GPU here is split into MIG instances, and programs started here may see none of those."
            return Check("devices", CheckState.MISSING, text, "nvidia-smi -L")
        text = f"CUDA_VISIBLE_DEVICES hides all {len(whole)} GPUs from programs started here."
        return Check("devices", CheckState.MISSING, text, "unset CUDA_VISIBLE_DEVICES")
    listed = "; ".join(f"GPU {ordinal}: {_describe_device(device)}" for ordinal, device in visible.items())
    return Check("devices", CheckState.OK, listed)


def _describe_device(device: NvmlDevice) -> str:
    capacity = device.capacity_bytes
    room = "capacity not available" if isinstance(capacity, Unavailable) else format_bytes(capacity)
    return f"{device.name}, {room}, NVML index {device.number}"


def _check_torch(tracker: TrackerDescription) -> Check:
    if tracker.torch_version is None:
        return Check("torch", CheckState.MISSING, "torch is not installed for this Python.", "pip install torch")
    if tracker.cuda_version is None:
        text = f"torch {tracker.torch_version} was built without CUDA."
        return Check("torch", CheckState.MISSING, text, "Install a CUDA build of torch: https://pytorch.org")
    return Check("torch", CheckState.OK, f"torch {tracker.torch_version}, CUDA {tracker.cuda_version}")


def _check_compiler(tracker: TrackerDescription) -> Check:
    if tracker.compiler is not None:
        return Check("compiler", CheckState.OK, tracker.compiler)
    text = "There is no C++ compiler, and one is needed once for each version of torch."
    return Check("compiler", CheckState.MISSING, text, "Install g++ (apt-get install g++), or name one in CXX.")


def _check_tracker(tracker: TrackerDescription) -> Check:
    if tracker.reason is not None:
        return Check("tracker", CheckState.MISSING, f"PyTorch's allocations are not recorded: {tracker.reason}.")
    if tracker.is_built:
        return Check("tracker", CheckState.OK, f"built: {tracker.library}")
    return Check("tracker", CheckState.OK, f"will be built in a few seconds at first use: {tracker.library}")


def _check_own_allocator(native: Check) -> Check:
    """Where gpumem's own allocator can be: what the CUDA driver itself says, which NVML does not need."""
    if native.state is not CheckState.OK:
        return Check("own_allocator", CheckState.MISSING, "Not tried without the native library.")
    from gpumem.abi.gpus import count_gpus, describe_gpu

    count, reason = count_gpus()
    if reason is not None:
        text = f"gpumem's own allocator has no GPU here: {reason}; its simulated device needs none."
        return Check("own_allocator", CheckState.MISSING, text, "gpumem demo")
    try:
        gpus = [describe_gpu(device) for device in range(count)]
    except DeviceUnavailable as error:
        return Check("own_allocator", CheckState.MISSING, str(error))
    listed = "; ".join(f"GPU {device}: {_describe_gpu(gpu)}" for device, gpu in enumerate(gpus))
    return Check("own_allocator", CheckState.OK, f"libcuda.so.1 answers. {listed}")


def _describe_gpu(gpu: Gpu) -> str:
    segments = "expandable segments" if gpu.has_expandable_segments else "no expandable segments"
    return f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, {segments}"


def _check_pluggable(tracker: TrackerDescription) -> Check:
    """Whether PyTorch can be served by gpumem's own allocator."""
    code = "pluggable_allocator"
    if tracker.torch_version is None or tracker.cuda_version is None:
        why = "torch is not installed" if tracker.torch_version is None else "this torch was built without CUDA"
        return Check(code, CheckState.MISSING, f"gpumem's own allocator has no PyTorch to serve: {why}.")
    if not takes_allocator(find_torch()):
        text = f"torch {tracker.torch_version} takes no other allocator than its own."
        return Check(code, CheckState.MISSING, text, "Install torch 2.0 or newer for gpumem run --allocator gpumem.")
    text = f"torch {tracker.torch_version} takes gpumem's own allocator: gpumem run --allocator gpumem"
    return Check(code, CheckState.OK, text)


def _check_cupy() -> Check:
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            version = importlib.metadata.version(name)
            return Check("cupy", CheckState.OK, f"{name} {version}, served by gpumem's own allocator when recorded")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check("cupy", CheckState.MISSING, "CuPy is not installed; programs without it need none.")


def _check_folder(folder: Path) -> Check:
    try:
        check_writable(folder)
    except OutputUnwritable as error:
        return Check("folder", CheckState.BROKEN, str(error), "gpumem run -o OTHER_FOLDER/ SCRIPT")
    if not has_mapped_files(folder):
        text = f"{folder} cannot map files; a run's journal stands in the temporary folder until it is a trace."
        return Check("folder", CheckState.MISSING, text)
    return Check("folder", CheckState.OK, f"{folder} can be written to and mapped")


def _check_room(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    text = f"{format_bytes(free_bytes)} free in {folder}"
    if free_bytes < JOURNAL_BYTES_LEAST:
        return Check("disk_room", CheckState.BROKEN, text, "Make room, or record elsewhere with -o.")
    if free_bytes < ROOM_BYTES_ADVISED:
        advice = f"Make {format_bytes(ROOM_BYTES_ADVISED)} free for a long run, or record elsewhere with -o."
        return Check("disk_room", CheckState.MISSING, text, advice)
    return Check("disk_room", CheckState.OK, text)
