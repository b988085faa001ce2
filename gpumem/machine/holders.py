"""Who holds memory on which device right now: NVML's lists beside what /proc says of the processes.

Owns: gathering both, once. Must not know: what follows from it (analyses/live.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumem.machine.processes import (
    PROC,
    Process,
    find_device_files,
    find_journal,
    has_own_pid_namespace,
    read_process,
    read_processes,
    shows_own_namespace,
)
from gpumem.nvml import ListedProcess, MemoryFigures, Nvml, NvmlDevice, Unavailable

COMPUTE_FILE = "/dev/nvidia-uvm"
"""Open in every process that has used CUDA, and not in those that only ask NVML."""


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device with its figures and the processes that NVML lists on it, each once; a split one by its instances."""

    device: NvmlDevice
    memory: MemoryFigures
    listed: Sequence[ListedProcess] | Unavailable


@dataclass(frozen=True, slots=True)
class MachineNow:
    """What a machine's devices hold and for whom."""

    devices: Sequence[DeviceNow]
    driver_version: str | Unavailable
    processes: Mapping[int, Process]
    """Every process that /proc shows, by pid; none where `is_proc_foreign`."""
    compute_pids: frozenset[int]
    """Those but this one that have used CUDA, by the device file they hold open."""
    hidden_file_count: int
    """Processes whose open files their owner hides from us."""
    journals: Mapping[int, Path]
    """Journals that processes on the devices record into."""
    has_own_pid_namespace: bool | None
    is_proc_foreign: bool
    """/proc numbers processes otherwise than NVML may list them, so that no pid of one says anything of the other."""


def read_machine(nvml: Nvml, root: Path = PROC) -> MachineNow | Unavailable:
    """The machine as it is now; the reason where NVML lists no devices."""
    found = nvml.read_devices()
    if isinstance(found, Unavailable):
        return found
    split = {one.index for one in found if one.instance is not None}
    shown = [one for one in found if one.instance is not None or one.index not in split]
    devices = [DeviceNow(one, nvml.read_memory(one), nvml.read_listed(one)) for one in shown]
    is_proc_foreign = not shows_own_namespace(root)
    processes = {} if is_proc_foreign else read_processes(root)
    listed = {one.pid for now in devices if not isinstance(now.listed, Unavailable) for one in now.listed}
    for pid in () if is_proc_foreign else listed - processes.keys():  # started since /proc was read, or foreign
        process = read_process(pid, root)
        if process is not None:
            processes[pid] = process
    files = {pid: find_device_files(pid, root) for pid in processes}
    compute = frozenset(pid for pid, names in files.items() if names is not None and COMPUTE_FILE in names)
    journals = {pid: find_journal(pid, root) for pid in (listed | compute) & processes.keys()}
    return MachineNow(
        devices=devices,
        driver_version=nvml.read_driver_version(),
        processes=processes,
        compute_pids=compute - {os.getpid()},
        hidden_file_count=sum(names is None for names in files.values()),
        journals={pid: path for pid, path in journals.items() if path is not None},
        has_own_pid_namespace=has_own_pid_namespace(root),
        is_proc_foreign=is_proc_foreign,
    )
