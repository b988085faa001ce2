"""A closed stand-in for module pynvml: two devices whose figures a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


class StandInError(Exception):
    """NVML's error as the stand-in raises it."""


@dataclass
class Figures:
    """Device memory as the driver gives it: version 1 has no reserved."""

    total: int
    used: int
    free: int
    reserved: int = 0


@dataclass
class ListedProcess:
    """A process as the driver lists it; None where it hides the figure."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815


@dataclass
class StandInDevice:
    """One device: figures in bytes, processes by list; an error in place of a list is raised."""

    uuid: str = "GPU-11111111-0000-0000-0000-000000000000"
    name: str = "Stand-in"
    memory: Figures | StandInError = field(default_factory=lambda: Figures(1000 * MIB, 300 * MIB, 600 * MIB, 100 * MIB))
    compute: list[ListedProcess] | StandInError = field(default_factory=list)
    graphics: list[ListedProcess] | StandInError = field(default_factory=list)
    has_version_2: bool = True
    is_split: bool = False
    instances: dict[int, StandInDevice] = field(default_factory=dict)
    """Those of a split device by NVML's number."""


def split_device(instances: dict[int, StandInDevice]) -> StandInDevice:
    """A device in MIG mode as a user without privileges meets it: its own figures are refused."""
    refused = StandInError("Insufficient Permissions")
    return StandInDevice(uuid="GPU-99999999-0000", memory=refused, compute=refused, is_split=True, instances=instances)


class StandInNvml:
    """What gpumem.nvml needs of module pynvml."""

    NVMLError = StandInError
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def __init__(self, *devices: StandInDevice, init_error: str | None = None) -> None:
        self.devices = devices
        self.init_error = init_error

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise StandInError(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetMigMode(self, handle: StandInDevice) -> list[int]:  # noqa: N802
        return [int(handle.is_split), int(handle.is_split)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: StandInDevice) -> int:  # noqa: N802
        return 7 if handle.is_split else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: StandInDevice, index: int) -> StandInDevice:  # noqa: N802
        if index not in handle.instances:
            raise StandInError("Not Found")
        return handle.instances[index]

    def nvmlDeviceGetUUID(self, handle: StandInDevice) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: StandInDevice) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: StandInDevice, version: int | None = None) -> Figures:  # noqa: N802
        if isinstance(handle.memory, StandInError):
            raise handle.memory
        if version is None:
            first = handle.memory
            return Figures(first.total, first.used + first.reserved, first.free)
        if not handle.has_version_2:
            raise StandInError("Function Not Found")
        return handle.memory

    def nvmlDeviceGetComputeRunningProcesses(self, handle: StandInDevice) -> list[ListedProcess]:  # noqa: N802
        return _listed(handle.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: StandInDevice) -> list[ListedProcess]:  # noqa: N802
        return _listed(handle.graphics)


def _listed(processes: list[ListedProcess] | StandInError) -> list[ListedProcess]:
    if isinstance(processes, StandInError):
        raise processes
    return processes
