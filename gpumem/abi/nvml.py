"""NVML read by the native core, without the interpreter: layouts and prototypes of gpumem_nvml.h, and typed calls.

Owns: the C structures of NVML's sampling (a test compares both sides), turning ctypes functions and handles into the
addresses that the core calls. Must not know: what NVML's figures mean, when they are judged. Nothing is loaded until
the first call.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gpumem import abi
from gpumem.abi.library import open_interface

NVML_ABI_HASH = "4c4dddadb09f43c18e874a3a75d2cfd8c68ddf7f4f900f69840cc0c523109b2a"
"""SHA-256 of the gpumem_nvml.h that this module was written for."""

LISTS = 3
"""Process lists: compute, graphics, MPS."""
NVML_ERROR_MEMORY = 20
"""NVML's code where the process has no memory left for an answer."""


class Outcome(IntEnum):
    """gm_nvml_outcome: what came of readings that were due."""

    RECORDED = 0
    YOUNG = 1
    JUDGE = 2
    JUDGE_LAST = 3
    GIVEN_UP = 4


class Part(IntEnum):
    """gm_nvml_part: which figure of a reading a listed process is counted in."""

    NO_PART = 0
    OWN_PART = 1
    OTHERS_PART = 2


class CNvmlFunctions(ctypes.Structure):
    """gm_nvml_functions: NVML's functions by address."""

    _fields_ = (
        ("read_memory", c_uint64),
        ("list_processes", c_uint64 * LISTS),
        ("memory_version", c_uint32),
        ("reserved", c_uint32),
    )


class CNvmlProcess(ctypes.Structure):
    """gm_nvml_process: a process in one of the lists."""

    _fields_ = (("held_bytes", c_uint64), ("pid", c_uint32), ("list", c_uint32))


class CNvmlFigures(ctypes.Structure):
    """gm_nvml_figures: what NVML says of a device."""

    _fields_ = (
        ("time_ns", c_uint64),
        ("event", c_uint64),
        ("total_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("processes", POINTER(CNvmlProcess)),
        ("process_count", c_uint32),
        ("memory_code", c_int32),
        ("list_codes", c_int32 * LISTS),
        ("reserved", c_uint32),
    )


class CNvmlShare(ctypes.Structure):
    """gm_nvml_share: a process that was listed when its device was judged."""

    _fields_ = (("pid", c_uint32), ("list", c_uint32), ("is_hidden", c_uint32), ("part", c_uint32))


class CNvmlDevice(ctypes.Structure):
    """gm_nvml_device: a device as it was judged."""

    _fields_ = (
        ("handle", c_uint64),
        ("total_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("subtracted_bytes", c_uint64),
        ("used_bytes_least", c_uint64),
        ("rest_bytes_least", c_int64),
        ("rest_bytes_most", c_int64),
        ("shares", POINTER(CNvmlShare)),
        ("share_count", c_uint32),
        ("memory_code", c_int32),
        ("list_codes", c_int32 * LISTS),
        ("device", c_uint32),
        ("unavailable", c_uint32),
        ("reserved", c_uint32),
    )


PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gm_nvml_abi_hash": (c_char_p, ()),
    "gm_nvml_create": (c_int32, (POINTER(CNvmlFunctions), POINTER(c_void_p))),
    "gm_nvml_destroy": (None, (c_void_p,)),
    "gm_nvml_read": (c_int32, (c_void_p, c_uint64, POINTER(CNvmlFigures))),
    "gm_nvml_forget": (c_uint64, (c_void_p,)),
    "gm_nvml_follow": (c_int32, (c_void_p, c_uint64, POINTER(CNvmlDevice), c_uint32)),
    "gm_nvml_sample": (c_int32, (c_void_p, c_uint64)),
    "gm_nvml_run": (c_int32, (c_void_p, c_uint32, c_uint64)),
    "gm_nvml_stop": (None, (c_void_p,)),
    "gm_nvml_give_up": (None, (c_void_p,)),
    "gm_nvml_call_since_ns": (c_uint64, (c_void_p,)),
}


@dataclass(frozen=True, slots=True)
class TakenFigures:
    """What NVML says of a device, unjudged; the memory figures are 0 where memory_code is not."""

    time_ns: int
    event: int
    memory_code: int
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int
    list_codes: tuple[int, ...]
    processes: tuple[tuple[int, int, int], ...]
    """Pid, bytes held or NOT_AVAILABLE, position of the list."""


@dataclass(frozen=True, slots=True)
class JudgedDevice:
    """How figures like `figures`, which have been judged, become readings."""

    handle: object
    """The device as pynvml hands it out."""
    figures: TakenFigures
    ordinal: int
    subtracted_bytes: int
    used_bytes_least: int
    rest_bytes_least: int
    rest_bytes_most: int
    parts: Sequence[Part]
    """By row of `figures.processes`."""
    unavailable: int
    """As in gm_reading."""


class NvmlSampling:
    """NVML's functions in the core's hands. Whoever waits in a call holds no interpreter lock."""

    _pid = 0
    """Of the process that made it; 0 while there is nothing to free."""

    def __init__(self, read_memory: object, list_processes: Sequence[object | None], memory_version: int) -> None:
        """The functions are ctypes'; raises NativeCoreError where the library is another's."""
        self._core = _core()
        self._core_with_gil = _core_with_gil()
        lists = (c_uint64 * LISTS)(*(0 if one is None else _address(one) for one in list_processes))
        functions = CNvmlFunctions(_address(read_memory), lists, memory_version, 0)
        self._handle = c_void_p()
        status = self._core.gm_nvml_create(byref(functions), byref(self._handle))
        assert status == abi.Status.OK, "functions without an address"
        self._find_pid = os.getpid  # the module may be gone when this object goes
        self._pid = os.getpid()

    def __del__(self) -> None:
        # No thread is in a call, or it would have a reference; a forked child's copy may have been in the midst of one.
        if self._pid and self._pid == self._find_pid():
            self._core_with_gil.gm_nvml_destroy(self._handle)

    def read(self, handle: object) -> TakenFigures:
        """What NVML says of a device now."""
        figures = CNvmlFigures()
        if self._core.gm_nvml_read(self._handle, _address(handle), byref(figures)) != abi.Status.OK:
            # As if NVML had said so itself: figures that are not there are no zeros.
            figures.memory_code = NVML_ERROR_MEMORY
            figures.list_codes = (c_int32 * LISTS)(*(NVML_ERROR_MEMORY,) * LISTS)
            figures.process_count = 0
        rows = figures.processes[: figures.process_count] if figures.process_count else []
        return TakenFigures(
            time_ns=figures.time_ns,
            event=figures.event,
            memory_code=figures.memory_code,
            total_bytes=figures.total_bytes,
            used_bytes=figures.used_bytes,
            free_bytes=figures.free_bytes,
            reserved_bytes=figures.reserved_bytes,
            list_codes=tuple(figures.list_codes),
            processes=tuple((row.pid, row.held_bytes, row.list) for row in rows),
        )

    def forget(self) -> int:
        """Has every reading judged again; the generation that a judgement begun now has."""
        return int(self._core_with_gil.gm_nvml_forget(self._handle))

    def follow(self, generation: int, devices: Sequence[JudgedDevice]) -> None:
        """Ends a judgement: devices are read as these say until forget() is called; none: each reading is judged."""
        rows = [_device_row(device) for device in devices]
        self._core.gm_nvml_follow(self._handle, generation, (CNvmlDevice * len(rows))(*rows), len(rows))

    def sample(self, *, age_ns_least: int) -> Outcome:
        """One reading of each device followed, unless the last is younger than `age_ns_least`."""
        return Outcome(self._core.gm_nvml_sample(self._handle, age_ns_least))

    def run(self, *, interval_ms: int, gap_ns: int) -> Outcome:
        """Readings at the interval and after segment events until stop() is called or one is to be judged."""
        return Outcome(self._core.gm_nvml_run(self._handle, interval_ms, gap_ns))

    def stop(self) -> None:
        """Asks run() to end, with a last reading."""
        self._core_with_gil.gm_nvml_stop(self._handle)

    def give_up(self) -> None:
        """Nothing is recorded from now on."""
        self._core_with_gil.gm_nvml_give_up(self._handle)

    def call_since_ns(self) -> int:
        """CLOCK_MONOTONIC when the call to the driver that is under way began; 0: none is."""
        return int(self._core_with_gil.gm_nvml_call_since_ns(self._handle))


def _device_row(judged: JudgedDevice) -> CNvmlDevice:
    figures = judged.figures
    pairs = zip(figures.processes, judged.parts, strict=True)
    shares = [CNvmlShare(pid, place, held == abi.NOT_AVAILABLE, part) for (pid, held, place), part in pairs]
    return CNvmlDevice(
        handle=_address(judged.handle),
        total_bytes=figures.total_bytes,
        reserved_bytes=figures.reserved_bytes,
        subtracted_bytes=judged.subtracted_bytes,
        used_bytes_least=judged.used_bytes_least,
        rest_bytes_least=judged.rest_bytes_least,
        rest_bytes_most=judged.rest_bytes_most,
        shares=(CNvmlShare * len(shares))(*shares),
        share_count=len(shares),
        memory_code=figures.memory_code,
        list_codes=(c_int32 * LISTS)(*figures.list_codes),
        device=judged.ordinal,
        unavailable=judged.unavailable,
    )


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, c_void_p).value or 0


@functools.cache
def _core() -> ctypes.CDLL:
    return open_interface(ctypes.CDLL, abi.loaded_path(), "gm_nvml_abi_hash", NVML_ABI_HASH, PROTOTYPES)


@functools.cache
def _core_with_gil() -> ctypes.PyDLL:
    """For calls that wait for nothing."""
    return open_interface(ctypes.PyDLL, abi.loaded_path(), "gm_nvml_abi_hash", NVML_ABI_HASH, PROTOTYPES)
