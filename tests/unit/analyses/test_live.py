"""Who holds the devices now: children left behind, what cannot be seen, what is odd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpumem.analyses.live import LiveCode, LiveExplanation, LiveFinding, explain_machine, is_left_behind
from gpumem.machine.holders import MachineNow, read_machine
from gpumem.machine.processes import JOURNAL_MAGIC, read_processes
from gpumem.nvml import MemoryFigures, Nvml, ProcessKind, Unavailable, open_nvml
from nvml_stand_in import MIB, Figures, ListedProcess, StandInDevice, StandInError, StandInNvml
from pretended_proc import PretendedProc

UVM = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")


@dataclass
class Machine:
    """A pretended machine: its /proc, and one device of 1000 MiB with 100 MiB reserve."""

    proc: PretendedProc

    def read(self, *devices: StandInDevice) -> MachineNow:
        nvml = open_nvml(StandInNvml(*devices))
        assert isinstance(nvml, Nvml)
        machine = read_machine(nvml, self.proc.root)
        assert isinstance(machine, MachineNow)
        return machine

    def explain(self, *devices: StandInDevice, pid: int | None = None) -> LiveExplanation:
        return explain_machine(self.read(*devices), pid=pid)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(PretendedProc(tmp_path))


def holding(*processes: tuple[int, int | None], used_mib: int | None = None, number: int = 0) -> StandInDevice:
    """A device with processes by pid and MiB; used is what they hold and 8 MiB more."""
    listed = [ListedProcess(pid, None if mib is None else mib * MIB) for pid, mib in processes]
    used = 8 + sum(mib or 0 for _, mib in processes) if used_mib is None else used_mib
    memory = Figures(1000 * MIB, used * MIB, (900 - used) * MIB, 100 * MIB)
    return StandInDevice(uuid=f"GPU-{number}", memory=memory, compute=listed)


def finding(live: LiveExplanation, code: LiveCode) -> LiveFinding:
    (found,) = [one for one in live.findings if one.code is code]
    return found


def codes(live: LiveExplanation) -> set[LiveCode]:
    return {one.code for one in live.findings}


def test_devices_and_their_processes_are_listed_most_bytes_first(machine: Machine) -> None:
    machine.proc.add(10, parent=5)
    machine.proc.add(11, parent=5)
    (device,) = machine.explain(holding((10, 50), (11, 200))).devices
    assert [(one.pid, one.held_bytes) for one in device.holders] == [(11, 200 * MIB), (10, 50 * MIB)]
    assert (device.listed_bytes, device.unlisted_bytes) == (250 * MIB, 8 * MIB)
    assert device.now.memory == MemoryFigures(1000 * MIB, 258 * MIB, 642 * MIB, 100 * MIB)


def test_ordinary_processes_give_no_finding_but_the_driver_s_reserve(machine: Machine) -> None:
    machine.proc.add(5, name="bash", command=("bash",))
    machine.proc.add(10, parent=5, session=5, files=UVM)
    live = machine.explain(holding((10, 50)))
    assert codes(live) == {LiveCode.DRIVER_RESERVE}
    assert finding(live, LiveCode.DRIVER_RESERVE).held_bytes == 100 * MIB


def test_child_of_a_dead_program_is_found_with_its_bytes(machine: Machine) -> None:
    machine.proc.add(20, parent=1, group=15, session=15, files=UVM)
    machine.proc.add(21, parent=1, group=15, session=15, files=UVM)
    left = finding(machine.explain(holding((20, 100), (21, 30))), LiveCode.SURVIVING_CHILD)
    assert (list(left.pids), left.held_bytes, left.parent_pid) == ([20, 21], 130 * MIB, 15)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("child of a program that lives", False),
        ("child given to init whose leader is gone", True),
        ("child given to init whose leader is defunct", True),
        ("child given to a subreaper of another session", True),
        ("program started with nohup, its shell gone", False),
        ("later part of a pipe whose first ended", False),
        ("daemon that leads a session of its own", False),
        ("worker of multiprocessing given to init in a group that lives", True),
        ("worker of multiprocessing whose parent is process 1 of a container", False),
        ("process whose leader is outside this pid namespace", False),
    ],
)
def test_left_behind_is_told_from_other_orphans(case: str, expected: bool, machine: Machine) -> None:
    add = machine.proc.add
    worker = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork")
    add(5, name="bash", command=("bash",))
    add(8, name="systemd", command=("systemd", "--user"))
    add(15, parent=5, session=5, state="Z" if "defunct" in case else "S")
    places = {
        "child of a program that lives": {"parent": 15, "group": 15, "session": 5},
        "child given to init whose leader is gone": {"parent": 1, "group": 14, "session": 5},
        "child given to init whose leader is defunct": {"parent": 1, "group": 15, "session": 5},
        "child given to a subreaper of another session": {"parent": 8, "group": 14, "session": 5},
        "program started with nohup, its shell gone": {"parent": 1, "session": 4},
        "later part of a pipe whose first ended": {"parent": 5, "group": 14, "session": 5},
        "daemon that leads a session of its own": {"parent": 1},
        "worker of multiprocessing given to init in a group that lives": {"parent": 1, "group": 5, "session": 5},
        "worker of multiprocessing whose parent is process 1 of a container": {"parent": 1, "group": 5, "session": 5},
        "process whose leader is outside this pid namespace": {"parent": 0, "group": 0, "session": 0},
    }
    add(20, command=worker if "multiprocessing" in case else ("python3", "train.py"), **places[case])
    if "container" in case:
        (machine.proc.root / "1" / "stat").write_text("1 (python3) S 0 1 1 0")
    processes = read_processes(machine.proc.root)
    assert is_left_behind(processes[20], processes) is expected


def test_holder_that_nvml_does_not_list_is_found_unless_it_inherited_the_files(machine: Machine) -> None:
    machine.proc.add(30, files=UVM)
    machine.proc.add(31, parent=30, group=30, files=UVM)  # a data loader's worker, forked
    machine.proc.add(40, parent=1, group=39, session=39, files=UVM)
    machine.proc.add(41, files=("/dev/nvidiactl", "/dev/nvidia0"))  # asks NVML, as nvidia-smi does
    found = finding(machine.explain(holding((30, 100))), LiveCode.UNLISTED_HOLDER)
    assert (list(found.pids), found.count) == ([40], 1)


def test_pids_that_proc_lacks_are_hidden_not_nobody_s(machine: Machine) -> None:
    live = machine.explain(holding((900, 100), (901, 50)))
    hidden = finding(live, LiveCode.HIDDEN_PROCESSES)
    assert (list(hidden.pids), hidden.held_bytes) == ([900, 901], 150 * MIB)
    assert [one.process for one in live.devices[0].holders] == [None, None]


def test_namespace_of_its_own_is_said(tmp_path: Path) -> None:
    inside = Machine(PretendedProc(tmp_path, own_namespace="pid:[4026532001]"))
    assert LiveCode.OWN_NAMESPACE in codes(inside.explain(holding()))


def test_proc_of_another_namespace_names_nobody(machine: Machine) -> None:
    machine.proc.add(10, parent=5)
    machine.proc.add(30, files=UVM)
    own = machine.proc.root / str(os.getpid()) / "status"
    own.write_text(f"Name:\tpython3\nNSpid:\t{os.getpid()}\t1\n")
    live = machine.explain(holding((10, 100)), pid=10)
    assert [(one.pid, one.process) for one in live.devices[0].holders] == [(10, None)]
    assert live.process_bytes == 100 * MIB
    found = codes(machine.explain(holding((10, 100))))
    assert LiveCode.PROC_FOREIGN in found
    assert not found & {LiveCode.HIDDEN_PROCESSES, LiveCode.UNLISTED_HOLDER, LiveCode.NOT_RECORDED}


def test_hidden_figure_is_no_zero(machine: Machine) -> None:
    machine.proc.add(10, parent=5)
    live = machine.explain(holding((10, None), used_mib=500))
    (device,) = live.devices
    assert (device.listed_bytes, device.unlisted_bytes, device.holders[0].held_bytes) == (None, None, None)
    assert list(finding(live, LiveCode.HIDDEN_FIGURES).pids) == [10]
    assert LiveCode.UNLISTED not in codes(live)


def test_refused_list_and_refused_memory_give_the_driver_s_words(machine: Machine) -> None:
    refused = StandInDevice(compute=StandInError("Insufficient Permissions"), has_version_2=False)
    live = machine.explain(refused)
    assert finding(live, LiveCode.LIST_UNAVAILABLE).reason == "NVML: Insufficient Permissions"
    assert "Function Not Found" in (finding(live, LiveCode.MEMORY_UNAVAILABLE).reason or "")
    assert live.devices[0].unlisted_bytes is None


def test_used_bytes_of_no_process_are_a_finding_from_64_mib_on(machine: Machine) -> None:
    live = machine.explain(holding(used_mib=63), holding(used_mib=500, number=1))
    unlisted = finding(live, LiveCode.UNLISTED)
    assert (unlisted.device, unlisted.held_bytes) == (1, 500 * MIB)


def test_process_in_compute_and_graphics_lists_counts_once(machine: Machine) -> None:
    device = holding((10, 50))
    device.graphics = [ListedProcess(10, 50 * MIB)]
    (found,) = machine.explain(device).devices
    assert found.listed_bytes == 50 * MIB
    assert found.holders[0].kinds == {ProcessKind.COMPUTE, ProcessKind.GRAPHICS}


def test_ranks_with_contexts_on_the_first_device_are_stray(machine: Machine) -> None:
    for pid in (10, 11, 12):
        machine.proc.add(pid, parent=5)
    devices = [holding((10, 800), (11, 40), (12, 40)), holding((11, 700), number=1), holding((12, 700), number=2)]
    stray = finding(machine.explain(*devices), LiveCode.STRAY_CONTEXT)
    assert (stray.device, list(stray.pids), stray.held_bytes) == (0, [11, 12], 80 * MIB)


def test_defunct_process_and_mps_server_are_named(machine: Machine) -> None:
    machine.proc.add(10, state="Z", command=())
    machine.proc.add(12, name="nvidia-cuda-mps", command=("nvidia-cuda-mps-server",))
    live = machine.explain(holding((10, 50), (12, 30)))
    assert list(finding(live, LiveCode.DEFUNCT).pids) == [10]
    assert list(finding(live, LiveCode.MPS).pids) == [12]


def test_open_files_that_are_hidden_are_counted(machine: Machine) -> None:
    machine.proc.add(10, files=None)
    machine.proc.add(11, files=None)
    assert finding(machine.explain(holding()), LiveCode.HIDDEN_FILES).count == 2


def test_one_process_is_explained_alone(machine: Machine) -> None:
    machine.proc.add(10, parent=5)
    machine.proc.add(11, parent=5)
    live = machine.explain(holding((10, 50), (11, 200)), pid=10)
    assert [[one.pid for one in device.holders] for device in live.devices] == [[10]]
    assert live.devices[0].listed_bytes == 250 * MIB
    assert codes(live) == {LiveCode.NOT_RECORDED}
    nothing = machine.explain(holding((10, 50)), pid=11)
    assert nothing.devices == []
    assert codes(nothing) == {LiveCode.NOT_A_HOLDER, LiveCode.NOT_RECORDED}


def test_recorded_process_is_told_by_its_journal(machine: Machine, tmp_path: Path) -> None:
    journal = tmp_path / "train.10.gpumem.journal"
    journal.write_bytes(JOURNAL_MAGIC)
    machine.proc.add(10, parent=5, journal=journal)
    live = machine.explain(holding((10, 50)))
    assert live.devices[0].holders[0].journal == journal
    assert list(finding(live, LiveCode.RECORDED).pids) == [10]


def test_own_process_is_no_holder_although_it_asks_nvml(machine: Machine) -> None:
    machine.proc.add(40, files=())
    (machine.proc.root / str(os.getpid()) / "fd" / "9").symlink_to("/dev/nvidia-uvm")
    assert LiveCode.UNLISTED_HOLDER not in codes(machine.explain(holding()))


def test_machine_without_devices_gives_the_reason() -> None:
    nvml = open_nvml(StandInNvml())
    assert isinstance(nvml, Nvml)
    machine = read_machine(nvml)
    assert isinstance(machine, MachineNow)
    assert explain_machine(machine).devices == []
    assert isinstance(open_nvml(StandInNvml(init_error="Driver Not Loaded")), Unavailable)
