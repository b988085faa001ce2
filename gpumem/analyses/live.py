"""Who holds a machine's devices now, and what is odd about it: children left behind, hidden processes, stray contexts.

Owns: the findings of `gpumem explain` on running processes. Must not know: NVML, /proc, sentences. It reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpumem.machine.holders import DeviceNow, MachineNow
from gpumem.machine.processes import Process
from gpumem.nvml import ListedProcess, ProcessKind, Unavailable

UNLISTED_BYTES_LEAST = 64 << 20
"""Used bytes of no process that are worth a sentence: the driver's own are some 10 MiB a context."""
CONTEXT_BYTES_MOST = 1536 << 20
"""A process that holds no more than this may have but a context, with kernels, on a device."""
DEFUNCT_STATES = ("Z", "X")
MPS_SERVER = "nvidia-cuda-mps-server"
_WORKER_WORDS = ("--multiprocessing-fork", "multiprocessing.spawn", "multiprocessing.forkserver")


class LiveCode(Enum):
    """What a finding on running processes says; the values are those of the JSON contract."""

    SURVIVING_CHILD = "surviving_child"
    UNLISTED_HOLDER = "unlisted_holder"
    DEFUNCT = "defunct"
    HIDDEN_PROCESSES = "hidden_processes"
    HIDDEN_FIGURES = "hidden_figures"
    LIST_UNAVAILABLE = "process_list_unavailable"
    MEMORY_UNAVAILABLE = "memory_unavailable"
    OWN_NAMESPACE = "own_pid_namespace"
    PROC_FOREIGN = "proc_of_another_namespace"
    UNLISTED = "unlisted_bytes"
    STRAY_CONTEXT = "stray_context"
    MPS = "mps"
    HIDDEN_FILES = "hidden_open_files"
    NOT_A_HOLDER = "holds_nothing"
    RECORDED = "recorded"
    NOT_RECORDED = "not_recorded"
    DRIVER_RESERVE = "driver_reserve"


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """One thing worth saying of running processes."""

    code: LiveCode
    pids: Sequence[int] = ()
    device: int | None = None
    """NVML's number of the device that it is about; None where it is about no single one."""
    held_bytes: int | None = None
    count: int | None = None
    reason: str | None = None
    parent_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a device; `process` is None where /proc does not show it."""

    pid: int
    held_bytes: int | None
    kinds: frozenset[ProcessKind]
    process: Process | None
    is_left_behind: bool
    journal: Path | None


@dataclass(frozen=True, slots=True)
class LiveDevice:
    """A device with who holds it, most bytes first."""

    now: DeviceNow
    holders: Sequence[Holder]
    listed_bytes: int | None
    """Of all processes together; None where a figure, or the list, is hidden."""
    unlisted_bytes: int | None
    """Used, but of no process that NVML lists."""


@dataclass(frozen=True, slots=True)
class LiveExplanation:
    """The devices of a machine now; `pid` where the question is about one process."""

    driver_version: str | None
    devices: Sequence[LiveDevice]
    pid: int | None
    process: Process | None
    findings: Sequence[LiveFinding]

    @property
    def process_bytes(self) -> int | None:
        """What process `pid` holds of the device on which it holds most; None where that is hidden, or without one."""
        held = (one.held_bytes for device in self.devices for one in device.holders if one.pid == self.pid)
        return max((one for one in held if one is not None), default=None)


def explain_machine(machine: MachineNow, *, pid: int | None = None, device: int | None = None) -> LiveExplanation:
    """Who holds the devices (or the one with NVML's number `device`); of process `pid` alone where it is given."""
    devices = [_live_device(machine, now) for now in machine.devices if device in (None, now.device.index)]
    findings = list(_find_all(machine, devices))
    if pid is not None:
        devices = [_of_pid(one, pid) for one in devices if any(holder.pid == pid for holder in one.holders)]
        findings = [*_find_of_pid(machine, devices, pid), *(one for one in findings if pid in one.pids)]
    version = machine.driver_version
    return LiveExplanation(
        None if isinstance(version, Unavailable) else version,
        devices,
        pid,
        None if pid is None else machine.processes.get(pid),
        findings,
    )


def is_left_behind(process: Process, processes: Mapping[int, Process]) -> bool:
    """Whether a process outlived the program that started it: it was given another parent, and the leader of its group
    is gone; or it is a worker of Python's multiprocessing whose parent is no Python.
    """
    parent = processes.get(process.parent_pid)
    is_reparented = process.parent_pid <= 1 or parent is None or parent.session_pid != process.session_pid
    if not is_reparented:
        return False
    leader = process.group_pid
    is_leader_gone = 0 < leader != process.pid and not _is_alive(processes.get(leader))
    is_worker = any(word in part for part in process.command for word in _WORKER_WORDS)
    return is_leader_gone or (is_worker and not (parent is not None and "python" in parent.name))


def _is_alive(process: Process | None) -> bool:
    return process is not None and process.state not in DEFUNCT_STATES


def _live_device(machine: MachineNow, now: DeviceNow) -> LiveDevice:
    listed: Sequence[ListedProcess] = () if isinstance(now.listed, Unavailable) else now.listed
    holders = [_holder(machine, one) for one in listed]
    holders.sort(key=lambda one: (-(one.held_bytes or 0), one.pid))
    is_known = not isinstance(now.listed, Unavailable) and all(one.held_bytes is not None for one in listed)
    listed_bytes = sum(one.held_bytes or 0 for one in listed) if is_known else None
    used = now.memory.used_bytes
    unlisted = None if isinstance(used, Unavailable) or listed_bytes is None else used - listed_bytes
    return LiveDevice(now, holders, listed_bytes, unlisted)


def _holder(machine: MachineNow, listed: ListedProcess) -> Holder:
    process = machine.processes.get(listed.pid)
    left = process is not None and is_left_behind(process, machine.processes)
    return Holder(listed.pid, listed.held_bytes, listed.kinds, process, left, machine.journals.get(listed.pid))


def _of_pid(device: LiveDevice, pid: int) -> LiveDevice:
    """The device with this one process in its table; the sums stay those of all."""
    holders = [one for one in device.holders if one.pid == pid]
    return LiveDevice(device.now, holders, device.listed_bytes, device.unlisted_bytes)


def _find_all(machine: MachineNow, devices: Sequence[LiveDevice]) -> Iterator[LiveFinding]:
    holders = _by_pid(devices)
    yield from _find_left_behind(machine, holders)
    yield from _find_unlisted_holders(machine, holders)
    defunct = [pid for pid, held in holders.items() if held[0].process and held[0].process.state in DEFUNCT_STATES]
    if defunct:
        yield LiveFinding(LiveCode.DEFUNCT, defunct, held_bytes=_sum_of(holders, defunct))
    hidden = [pid for pid, held in holders.items() if held[0].process is None]
    if machine.is_proc_foreign:
        yield LiveFinding(LiveCode.PROC_FOREIGN)
    elif hidden:
        yield LiveFinding(LiveCode.HIDDEN_PROCESSES, hidden, held_bytes=_sum_of(holders, hidden), count=len(hidden))
    yield from _find_stray_contexts(holders, devices)
    for device in devices:
        yield from _find_of_device(device)
    if machine.has_own_pid_namespace:
        yield LiveFinding(LiveCode.OWN_NAMESPACE)
    mps = [pid for pid, held in holders.items() if any(_is_of_mps(one) for one in held)]
    if mps:
        yield LiveFinding(LiveCode.MPS, mps)
    if machine.hidden_file_count:
        yield LiveFinding(LiveCode.HIDDEN_FILES, count=machine.hidden_file_count)
    for pid in holders:
        if pid in machine.journals:
            yield LiveFinding(LiveCode.RECORDED, [pid], reason=str(machine.journals[pid]))
    reserves = [device.now.memory.reserved_bytes for device in devices]
    known = [reserve for reserve in reserves if isinstance(reserve, int) and reserve]
    if known:
        yield LiveFinding(LiveCode.DRIVER_RESERVE, held_bytes=sum(known), count=len(known))


def _find_of_pid(machine: MachineNow, devices: Sequence[LiveDevice], pid: int) -> Iterator[LiveFinding]:
    if not devices:
        holds_open = pid in machine.compute_pids
        yield LiveFinding(LiveCode.NOT_A_HOLDER, [pid], count=int(holds_open))
    if pid not in machine.journals and not machine.is_proc_foreign:
        yield LiveFinding(LiveCode.NOT_RECORDED, [pid])


def _by_pid(devices: Sequence[LiveDevice]) -> dict[int, list[Holder]]:
    """What each process holds, over the devices."""
    found: dict[int, list[Holder]] = {}
    for device in devices:
        for holder in device.holders:
            found.setdefault(holder.pid, []).append(holder)
    return found


def _sum_of(holders: Mapping[int, Sequence[Holder]], pids: Sequence[int]) -> int | None:
    figures = [one.held_bytes for pid in pids for one in holders.get(pid, ())]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _find_left_behind(machine: MachineNow, holders: Mapping[int, Sequence[Holder]]) -> Iterator[LiveFinding]:
    """Children that outlived the program they belong to, by that program's group."""
    groups: dict[int, list[int]] = {}
    for pid, held in holders.items():
        process = held[0].process
        if process is not None and held[0].is_left_behind:
            groups.setdefault(process.group_pid, []).append(pid)
    for group, pids in groups.items():
        gone = None if _is_alive(machine.processes.get(group)) else group
        yield LiveFinding(
            LiveCode.SURVIVING_CHILD, pids, held_bytes=_sum_of(holders, pids), count=len(pids), parent_pid=gone
        )


def _find_unlisted_holders(machine: MachineNow, holders: Mapping[int, Sequence[Holder]]) -> Iterator[LiveFinding]:
    """Processes that have used CUDA, of which NVML lists neither them nor one that they descend from."""
    pids = [
        pid
        for pid in sorted(machine.compute_pids)
        if not any(one in holders for one in _ancestors(machine.processes, pid))
    ]
    if pids:
        left = [pid for pid in pids if is_left_behind(machine.processes[pid], machine.processes)]
        yield LiveFinding(LiveCode.UNLISTED_HOLDER, pids, count=len(left))


def _ancestors(processes: Mapping[int, Process], pid: int) -> Iterator[int]:
    """The process and those it descends from, as far as they live."""
    seen: set[int] = set()
    while pid in processes and pid not in seen:
        seen.add(pid)
        yield pid
        pid = processes[pid].parent_pid


def _find_stray_contexts(
    holders: Mapping[int, Sequence[Holder]], devices: Sequence[LiveDevice]
) -> Iterator[LiveFinding]:
    """Processes with most of their bytes on one device and no more than a context on another, by that device."""
    most = {pid: max(one.held_bytes or 0 for one in held) for pid, held in holders.items()}
    for device in devices:
        stray = [
            one
            for one in device.holders
            if len(holders[one.pid]) > 1
            and one.held_bytes is not None
            and one.held_bytes <= CONTEXT_BYTES_MOST
            and 2 * one.held_bytes < most[one.pid]
        ]
        if stray:
            held = sum(one.held_bytes or 0 for one in stray)
            pids = [one.pid for one in stray]
            yield LiveFinding(LiveCode.STRAY_CONTEXT, pids, device.now.device.index, held, len(pids))


def _find_of_device(device: LiveDevice) -> Iterator[LiveFinding]:
    now, index = device.now, device.now.device.index
    if isinstance(now.listed, Unavailable):
        yield LiveFinding(LiveCode.LIST_UNAVAILABLE, (), index, reason=now.listed.reason)
    used = now.memory.used_bytes
    if isinstance(used, Unavailable):
        yield LiveFinding(LiveCode.MEMORY_UNAVAILABLE, (), index, reason=used.reason)
    hidden = [one.pid for one in device.holders if one.held_bytes is None]
    if hidden:
        yield LiveFinding(LiveCode.HIDDEN_FIGURES, hidden, index, count=len(hidden))
    if device.unlisted_bytes is not None and device.unlisted_bytes >= UNLISTED_BYTES_LEAST:
        yield LiveFinding(LiveCode.UNLISTED, (), index, device.unlisted_bytes, len(device.holders))


def _is_of_mps(holder: Holder) -> bool:
    is_server = holder.process is not None and MPS_SERVER.startswith(holder.process.name) and holder.process.name != ""
    return ProcessKind.MPS in holder.kinds or is_server
