"""NVML, typed: devices, memory figures, process figures; what cannot be had is Unavailable, never zero.

Owns: every call to nvidia-ml-py (module pynvml) and what its errors mean; what its figures mean is in nvml_figures.py.
Must not know: CUDA ordinals, traces, when to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from gpumem.nvml_figures import (
    NOT_AVAILABLE,
    NOT_STARTED,
    ListedProcess,
    MemoryFigures,
    ProcessFigures,
    ProcessKind,
    RawFigures,
    Unavailable,
    known_figure,
    measure_memory,
    measure_processes,
    merge_lists,
    merge_raw_lists,
)

__all__ = [
    "NOT_AVAILABLE",
    "NOT_STARTED",
    "CallWatch",
    "ListedProcess",
    "MemoryFigures",
    "Nvml",
    "NvmlCalls",
    "NvmlDevice",
    "ProcessFigures",
    "ProcessKind",
    "RawFigures",
    "Unavailable",
    "import_library",
    "measure_processes",
    "open_nvml",
]

Value = TypeVar("Value")
Handle = object
"""A device as NVML's library hands it out."""


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A device as NVML knows it, or a MIG instance of one; `index` is NVML's own number, not the program's ordinal."""

    index: int
    uuid: str
    name: str
    capacity_bytes: int | Unavailable
    instance: int | None = None
    """NVML's number of the MIG instance on device `index`; None for a device itself."""
    is_split: bool = False
    """Whether the device is split into MIG instances: programs then see those, never the whole."""

    @property
    def number(self) -> str:
        """`0`, or `0 (MIG 2)` for an instance."""
        return str(self.index) if self.instance is None else f"{self.index} (MIG {self.instance})"


@dataclass(frozen=True, slots=True)
class NvmlCalls:
    """The library's C functions as ctypes objects, for callers that do without the interpreter."""

    read_memory: object
    list_processes: tuple[object | None, ...]
    """By position in LISTS; None: the library has no such function."""
    memory_version: int


LIST_FUNCTIONS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)


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
    # Asked only of devices that are split into MIG instances.
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle: ...  # noqa: N802


class Nvml:
    """An open NVML library."""

    def __init__(self, library: NvmlLibrary, watch: CallWatch | None = None) -> None:
        self._library = library
        self._watch = CallWatch() if watch is None else watch
        self._handles: dict[tuple[int, int | None], Handle] = {}

    def start(self) -> Unavailable | None:
        """Connects to the driver; why that failed."""
        return self._call(self._library.nvmlInit)

    def read_driver_version(self) -> str | Unavailable:
        """The driver's version, such as `580.159.04`."""
        return self._call(lambda: _text(self._library.nvmlSystemGetDriverVersion()))

    def read_devices(self) -> list[NvmlDevice] | Unavailable:
        """Every device that this process may see, in NVML's order, each followed by the MIG instances of it.

        What does not answer is left out.
        """
        count = self._call(self._library.nvmlDeviceGetCount)
        if isinstance(count, Unavailable):
            return count
        devices = (self._read_device(index) for index in range(count))
        found = [device for device in devices if isinstance(device, NvmlDevice)]
        return [one for device in found for one in (device, *self._read_instances(device))]

    def read_memory(self, device: NvmlDevice) -> MemoryFigures:
        """The memory figures of `device` now."""
        handle = self._handles[device.index, device.instance]
        version = getattr(self._library, "nvmlMemory_v2", None)
        if version is None:
            return self._read_memory_without_reserve(handle, "the installed nvidia-ml-py has no second memory call")
        figures = self._call(lambda: self._library.nvmlDeviceGetMemoryInfo(handle, version=version))
        if isinstance(figures, Unavailable):
            return self._read_memory_without_reserve(handle, figures.reason)
        return measure_memory(figures.total, figures.used, figures.free, figures.reserved)

    def judge_memory(self, device: NvmlDevice, raw: RawFigures) -> MemoryFigures:
        """The memory figures of `device` by what the C function said; asks once more by version 1 where it refused."""
        if raw.memory_code:
            return self._read_memory_without_reserve(
                self._handles[device.index, device.instance], self._reason_of(raw.memory_code)
            )
        return measure_memory(raw.total_bytes, raw.used_bytes, raw.free_bytes, raw.reserved_bytes)

    def read_processes(self, device: NvmlDevice, own_pids: frozenset[int], *, own_expected: bool) -> ProcessFigures:
        """What the process known as `own_pids` and all others hold on `device`.

        `own_expected`: the process holds memory of a device, so that it must be listed unless pids are foreign.
        """
        listed = self.read_listed(device)
        if isinstance(listed, Unavailable):
            return ProcessFigures(listed, listed)
        held = {one.pid: one.held_bytes for one in listed}
        return measure_processes(held, own_pids, own_expected=own_expected)

    def judge_processes(self, raw: RawFigures, own_pids: frozenset[int], *, own_expected: bool) -> ProcessFigures:
        """As read_processes, by what the C functions said."""
        if raw.list_codes[0]:
            refused = Unavailable(self._reason_of(raw.list_codes[0]))
            return ProcessFigures(refused, refused)
        held = {one.pid: one.held_bytes for one in merge_raw_lists(raw)}
        return measure_processes(held, own_pids, own_expected=own_expected)

    def find_calls(self) -> NvmlCalls | None:
        """The C functions behind the calls; None where the library does not give them away or lacks them."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        memory = self._find_function("nvmlDeviceGetMemoryInfo_v2")
        lists = tuple(self._find_function(name) for name in LIST_FUNCTIONS)
        if version is None or memory is None or lists[0] is None:
            return None
        return NvmlCalls(memory, lists, version)

    def handle(self, device: NvmlDevice) -> Handle:
        """The library's handle of `device`, for its C functions."""
        return self._handles[device.index, device.instance]

    def read_listed(self, device: NvmlDevice) -> list[ListedProcess] | Unavailable:
        """The processes on `device` over all kinds that NVML lists, in the order of its lists."""
        handle = self._handles[device.index, device.instance]
        compute = self._call(partial(_list_processes, self._library.nvmlDeviceGetComputeRunningProcesses, handle))
        if isinstance(compute, Unavailable):
            return compute
        lists = ((ProcessKind.COMPUTE, compute), *self._read_further_lists(handle))
        return merge_lists(
            (kind, int(process.pid), process.usedGpuMemory) for kind, listed in lists for process in listed
        )

    def _read_device(self, index: int) -> NvmlDevice | Unavailable:
        def read() -> NvmlDevice:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            return replace(self._describe(handle, index, None), is_split=self._is_split(handle))

        return self._call(read)

    def _describe(self, handle: Handle, index: int, instance: int | None) -> NvmlDevice:
        self._handles[index, instance] = handle
        uuid, name = self._library.nvmlDeviceGetUUID(handle), self._library.nvmlDeviceGetName(handle)
        capacity = self._call(lambda: int(self._library.nvmlDeviceGetMemoryInfo(handle).total))
        return NvmlDevice(index, _text(uuid), _text(name), capacity, instance)

    def _is_split(self, handle: Handle) -> bool:
        """Whether the device is in MIG mode; most cannot be, and older libraries do not say."""
        read: Callable[[Handle], Sequence[int]] | None = getattr(self._library, "nvmlDeviceGetMigMode", None)
        modes = None if read is None else self._call(partial(read, handle))
        return modes is not None and not isinstance(modes, Unavailable) and modes[0] != 0

    def _read_instances(self, device: NvmlDevice) -> list[NvmlDevice]:
        """The MIG instances that this process may see; their numbers have gaps."""
        if not device.is_split:
            return []
        whole, library = self.handle(device), self._library
        count = self._call(lambda: library.nvmlDeviceGetMaxMigDeviceCount(whole))
        if isinstance(count, Unavailable):
            return []

        def read(number: int) -> NvmlDevice:
            return self._describe(library.nvmlDeviceGetMigDeviceHandleByIndex(whole, number), device.index, number)

        instances = [self._call(partial(read, number)) for number in range(count)]
        return [one for one in instances if isinstance(one, NvmlDevice)]

    def _read_memory_without_reserve(self, handle: Handle, reason: str) -> MemoryFigures:
        """Total and free alone: the first version of the call counts the driver's reserve as used."""
        figures = self._call(lambda: self._library.nvmlDeviceGetMemoryInfo(handle))
        if isinstance(figures, Unavailable):
            return MemoryFigures(figures, figures, figures, figures)
        missing = Unavailable(f"used and reserved cannot be told apart: {reason}")
        return MemoryFigures(known_figure(figures.total), missing, known_figure(figures.free), missing)

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

    def _find_function(self, name: str) -> object | None:
        find: Callable[[str], object] | None = getattr(self._library, "_nvmlGetFunctionPointer", None)
        if find is None:
            return None
        found = self._call(partial(find, name))
        return None if isinstance(found, Unavailable) else found

    def _reason_of(self, code: int) -> str:
        return _reason(self._library.NVMLError(code))

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


def _list_processes(read: Callable[[Handle], Iterable[Any]], handle: Handle) -> list[Any]:
    return list(read(handle))


def _reason(error: Exception) -> str:
    """The library's own words, which name NVML once."""
    return str(error) if str(error).startswith("NVML") else f"NVML: {error}"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
