"""NVML, typed: devices, memory figures, process figures; what cannot be had is Unavailable, never zero.

Owns: every call to nvidia-ml-py (module pynvml) and what its errors mean. Must not know: CUDA ordinals, traces, when
to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")
Handle = object
"""A device as NVML's library hands it out."""

NOT_AVAILABLE = (1 << 64) - 1
"""NVML's way of saying that a figure is not to be had."""
NOT_STARTED = "process not listed: it has not started CUDA on this device"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A figure that could not be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A device as NVML knows it; `index` is NVML's own number, not the program's ordinal."""

    index: int
    uuid: str
    name: str
    capacity_bytes: int | Unavailable


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Device memory: total = used + free + reserved, where `reserved_bytes` is the driver's own share."""

    total_bytes: int | Unavailable
    used_bytes: int | Unavailable
    free_bytes: int | Unavailable
    reserved_bytes: int | Unavailable


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What NVML attributes to one process on a device, and to all others together."""

    process_bytes: int | Unavailable
    other_processes_bytes: int | Unavailable


class ProcessKind(Enum):
    """In which of NVML's lists a process stands."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process on a device as NVML lists it, once however many lists it stands in; None where bytes are hidden."""

    pid: int
    held_bytes: int | None
    kinds: frozenset[ProcessKind]


class CallWatch:
    """Since when a call to the driver is under way: whoever waits for a thread can see that it hangs there."""

    def __init__(self) -> None:
        self.since_ns = 0
        """CLOCK_MONOTONIC; 0: no call is under way."""

    def has_lasted(self, duration_ns: int) -> bool:
        """Whether one call has been under way for `duration_ns`."""
        since_ns = self.since_ns
        return since_ns != 0 and time.monotonic_ns() - since_ns > duration_ns


class NvmlLibrary(Protocol):
    """The part of module pynvml that is used; tests give an object of their own."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Handle, /) -> str: ...  # noqa: N802
    # Its figures are attributes named by the driver: total, used, free and, asked for version 2, reserved.
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle, /) -> Iterable[Any]: ...  # noqa: N802


class Nvml:
    """An open NVML library."""

    def __init__(self, library: NvmlLibrary, watch: CallWatch | None = None) -> None:
        self._library = library
        self._watch = CallWatch() if watch is None else watch
        self._handles: dict[int, Handle] = {}

    def start(self) -> Unavailable | None:
        """Connects to the driver; why that failed."""
        return self._call(self._library.nvmlInit)

    def read_driver_version(self) -> str | Unavailable:
        """The driver's version, such as `580.159.04`."""
        return self._call(lambda: _text(self._library.nvmlSystemGetDriverVersion()))

    def read_devices(self) -> list[NvmlDevice] | Unavailable:
        """Every device that this process may see, in NVML's order; devices that do not answer are left out."""
        count = self._call(self._library.nvmlDeviceGetCount)
        if isinstance(count, Unavailable):
            return count
        devices = (self._read_device(index) for index in range(count))
        return [device for device in devices if isinstance(device, NvmlDevice)]

    def read_memory(self, device: NvmlDevice) -> MemoryFigures:
        """The memory figures of `device` now."""
        handle = self._handles[device.index]
        version = getattr(self._library, "nvmlMemory_v2", None)
        if version is None:
            return self._read_memory_without_reserve(handle, "the installed nvidia-ml-py has no second memory call")
        figures = self._call(lambda: self._library.nvmlDeviceGetMemoryInfo(handle, version=version))
        if isinstance(figures, Unavailable):
            return self._read_memory_without_reserve(handle, figures.reason)
        total, used, free, reserved = (
            _figure(getattr(figures, name)) for name in ("total", "used", "free", "reserved")
        )
        return MemoryFigures(total, _without_reserve(total, used, free, reserved), free, reserved)

    def read_processes(self, device: NvmlDevice, own_pids: frozenset[int], *, own_expected: bool) -> ProcessFigures:
        """What the process known as `own_pids` and all others hold on `device`.

        `own_expected`: the process holds memory of a device, so that it must be listed unless pids are foreign.
        """
        listed = self.read_listed(device)
        if isinstance(listed, Unavailable):
            return ProcessFigures(listed, listed)
        held = {one.pid: one.held_bytes for one in listed}
        return measure_processes(held, own_pids, own_expected=own_expected)

    def read_listed(self, device: NvmlDevice) -> list[ListedProcess] | Unavailable:
        """The processes on `device` over all kinds that NVML lists, in the order of its lists."""
        handle = self._handles[device.index]
        compute = self._call(partial(_list_processes, self._library.nvmlDeviceGetComputeRunningProcesses, handle))
        if isinstance(compute, Unavailable):
            return compute
        found: dict[int, ListedProcess] = {}
        for kind, listed in ((ProcessKind.COMPUTE, compute), *self._read_further_lists(handle)):
            for process in listed:
                # A process can stand in several lists, with the same figure in each.
                pid, figure = int(process.pid), process.usedGpuMemory
                is_known = figure is not None and figure != NOT_AVAILABLE
                before = found.get(pid, ListedProcess(pid, None, frozenset()))
                held_bytes = int(figure) if is_known else before.held_bytes
                found[pid] = ListedProcess(pid, held_bytes, before.kinds | {kind})
        return list(found.values())

    def _read_device(self, index: int) -> NvmlDevice | Unavailable:
        def read() -> NvmlDevice:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            self._handles[index] = handle
            uuid, name = self._library.nvmlDeviceGetUUID(handle), self._library.nvmlDeviceGetName(handle)
            capacity = self._call(lambda: int(self._library.nvmlDeviceGetMemoryInfo(handle).total))
            return NvmlDevice(index, _text(uuid), _text(name), capacity)

        return self._call(read)

    def _read_memory_without_reserve(self, handle: Handle, reason: str) -> MemoryFigures:
        """Total and free alone: the first version of the call counts the driver's reserve as used."""
        figures = self._call(lambda: self._library.nvmlDeviceGetMemoryInfo(handle))
        if isinstance(figures, Unavailable):
            return MemoryFigures(figures, figures, figures, figures)
        missing = Unavailable(f"used and reserved cannot be told apart: {reason}")
        return MemoryFigures(_figure(figures.total), missing, _figure(figures.free), missing)

    def _read_further_lists(self, handle: Handle) -> list[tuple[ProcessKind, list[Any]]]:
        """Graphics and MPS processes, where driver and library list them."""
        lists = []
        for kind, name in (
            (ProcessKind.GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
            (ProcessKind.MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
        ):
            read: Callable[[Handle], Iterable[Any]] | None = getattr(self._library, name, None)
            if read is not None:
                listed = self._call(partial(_list_processes, read, handle))
                if not isinstance(listed, Unavailable):
                    lists.append((kind, listed))
        return lists

    def _call(self, read: Callable[[], Value]) -> Value | Unavailable:
        """What `read` returns, or why NVML refused."""
        around_ns = self._watch.since_ns
        self._watch.since_ns = around_ns or time.monotonic_ns()
        try:
            return read()
        except self._library.NVMLError as error:
            return Unavailable(_reason(error))
        finally:
            self._watch.since_ns = around_ns


def open_nvml(library: NvmlLibrary | None = None, *, watch: CallWatch | None = None) -> Nvml | Unavailable:
    """NVML ready for use, or why it is not: no nvidia-ml-py, no driver, no permission.

    `watch` shows its calls to the driver, from the first one on.
    """
    found = import_library() if library is None else library
    if isinstance(found, Unavailable):
        return found
    nvml = Nvml(found, watch)
    return nvml.start() or nvml


def import_library() -> NvmlLibrary | Unavailable:
    """nvidia-ml-py's module, or why there is none."""
    try:
        import pynvml
    except ImportError as error:
        return Unavailable(f"module pynvml cannot be imported ({error}); install nvidia-ml-py")
    library: NvmlLibrary = pynvml
    return library


def measure_processes(held: dict[int, int | None], own_pids: frozenset[int], *, own_expected: bool) -> ProcessFigures:
    """Splits bytes by pid into this process and all others, with a reason where that cannot be done."""
    own = [pid for pid in held if pid in own_pids]
    others = [figure for pid, figure in held.items() if pid not in own_pids]
    hidden = sum(figure is None for figure in others)
    others_bytes: int | Unavailable = sum(figure for figure in others if figure is not None)
    if hidden:
        others_bytes = Unavailable(f"the driver hides the memory of {hidden} of {len(others)} other processes")
    if own:
        own_bytes = held[own[0]]
        hides = Unavailable("the driver hides the memory of this process")
        return ProcessFigures(hides if own_bytes is None else own_bytes, others_bytes)
    if not own_expected:
        return ProcessFigures(Unavailable(NOT_STARTED), others_bytes)
    missing = Unavailable("process not listed (another pid namespace?)")
    if others:
        # One of the pids listed may be this very process under its name in another namespace.
        return ProcessFigures(missing, Unavailable("this process cannot be told apart from the others"))
    return ProcessFigures(missing, others_bytes)


def _without_reserve(
    total: int | Unavailable, used: int | Unavailable, free: int | Unavailable, reserved: int | Unavailable
) -> int | Unavailable:
    """`used` without the driver's reserve: some drivers count it in, so that total = used + free."""
    if (
        isinstance(total, int)
        and isinstance(used, int)
        and isinstance(free, int)
        and isinstance(reserved, int)
        and 0 < reserved <= used
        and total - free - used < reserved // 2
    ):
        return used - reserved
    return used


def _list_processes(read: Callable[[Handle], Iterable[Any]], handle: Handle) -> list[Any]:
    return list(read(handle))


def _reason(error: Exception) -> str:
    """The library's own words, which name NVML once."""
    return str(error) if str(error).startswith("NVML") else f"NVML: {error}"


def _figure(value: object) -> int | Unavailable:
    if not isinstance(value, int) or value == NOT_AVAILABLE:
        return Unavailable("NVML says that the figure is not available")
    return value


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
