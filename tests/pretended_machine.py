"""A machine of pretended devices and processes in place of this one, for commands that look at what runs now."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.machine.holders import MachineNow, read_machine
from gpumem.nvml import Nvml, Unavailable, open_nvml
from nvml_stand_in import StandInDevice, StandInNvml
from pretended_proc import PretendedProc


def pretend_machine(folder: Path, monkeypatch: pytest.MonkeyPatch, *devices: StandInDevice) -> PretendedProc:
    """What `gpumem explain` sees from now on; its processes are added to what is returned."""
    (folder / "proc").mkdir()
    proc = PretendedProc(folder / "proc")
    nvml = open_nvml(StandInNvml(*devices))
    assert isinstance(nvml, Nvml)

    def read_pretended(_: Nvml) -> MachineNow | Unavailable:
        return read_machine(nvml, proc.root)

    monkeypatch.setattr("gpumem.nvml.open_nvml", lambda: nvml)
    monkeypatch.setattr("gpumem.machine.holders.read_machine", read_pretended)
    return proc
