"""Our allocator in CuPy's place: two functions that CuPy calls for every block, native ones where that can be.

Owns: the allocator of each device that CuPy uses, CuPy's own error. Must not know: recordings beyond what
own_allocators does. CuPy is passed in, never imported.

CuPy's hook for Python functions passes no stream, so the current one is looked up; its hook for C functions would end
the process where an exception leaves it. Functions written in Python spend more in ctypes than the allocator needs for
a block, so those of abi/cupy.py are handed to CuPy wherever it says the current stream to C.
"""

from __future__ import annotations

import json
import os
import threading
from types import ModuleType
from typing import Any

from gpumem import abi
from gpumem.abi import cupy as native_functions
from gpumem.abi.allocator import NO_MEMORY, NativeAllocator, Status
from gpumem.recorder import own_allocators, recording
from gpumem.vocabulary import AllocatorChoice

NOTE = "note:cupy"
_lock = threading.Lock()
"""Held while a device is started."""


class CupyAllocator:
    """The allocators that serve CuPy, one per device, started when a device is first used."""

    def __init__(self, cupy: Any, *, settings: str, memory_bytes: int | None) -> None:
        self._cupy = cupy
        self._settings = settings
        self._memory_bytes = memory_bytes
        self._by_device: dict[int, NativeAllocator] = {}
        self._current_stream = cupy.cuda.get_current_stream
        self._functions = self._make_functions()
        self.malloc: native_functions.Malloc = self._functions.malloc if self._functions else self._malloc
        """Address of a block for work on the current stream; raises CuPy's OutOfMemoryError."""
        self.free: native_functions.Free = self._functions.free if self._functions else self._free
        """Takes a block back."""

    def _make_functions(self) -> native_functions.CupyFunctions | None:
        """Native functions; None where this CuPy, or this Python, does not allow them."""
        interface = getattr(getattr(self._cupy.cuda, "stream", None), "__pyx_capi__", {})
        current_stream = native_functions.find_stream_function(interface.get("get_current_stream_ptr"))
        if current_stream is None:
            return None
        return native_functions.make_functions(current_stream, self._answer_failure)

    def _answer_failure(self, byte_count: int, device: int, status: Status) -> int:
        """What the native function cannot: the first block of a device, and CuPy's errors."""
        if status is Status.NO_DEVICE:
            return self._malloc(byte_count, device)
        raise self._error(self._by_device.get(device) or self._start(device), status, byte_count, device)

    def _malloc(self, byte_count: int, device: int) -> int:
        native = self._by_device.get(device) or self._start(device)
        status, address = native.alloc(byte_count, self._current_stream().ptr)
        if status is not Status.OK:
            raise self._error(native, status, byte_count, device)
        return address

    def _free(self, address: int, device: int) -> None:
        self._by_device[device].free(address)

    def _start(self, device: int) -> NativeAllocator:
        with _lock:
            native = self._by_device.get(device)
            if native is None:
                native = own_allocators.share_allocator(
                    device, settings=self._settings, memory_bytes=self._memory_bytes
                )
                if self._functions is not None:
                    self._functions.serve(device, native)
                # Last: the native free passes over the blocks of a device that it does not serve.
                self._by_device[device] = native
            return native

    def _error(self, native: NativeAllocator, status: Status, byte_count: int, device: int) -> Exception:
        if status in (Status.OUT_OF_MEMORY, Status.TOO_LARGE):
            limit = native.describe_device().limit_bytes or 0
            held = native.statistics().all.reserved_bytes.current
            error = self._cupy.cuda.memory.OutOfMemoryError(byte_count, held, limit)
            assert isinstance(error, Exception)
            return error
        if status is Status.NO_MEMORY:
            return MemoryError(NO_MEMORY)
        return RuntimeError(f"GPU {device} failed while {native.describe_failure()}.")


def _renew_after_fork() -> None:
    """In a child nobody gives back what another thread held."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_after_fork)


def plug_in(cupy: Any, *, settings: str = "", memory_bytes: int | None = None) -> CupyAllocator:
    """Has CuPy allocate through ours from now on; what it holds already goes back to its own pool."""
    allocator = CupyAllocator(cupy, settings=settings, memory_bytes=memory_bytes)
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(allocator.malloc, allocator.free).malloc)
    return allocator


def install_armed(cupy: ModuleType) -> None:
    """At the end of the program's `import cupy`: ours takes CuPy's place, or the recording says why not."""
    reason = _why_not()
    if reason is None:
        try:
            plug_in(cupy)
        except AttributeError as error:
            reason = f"CuPy's memory is not recorded: this CuPy is not known to gpumem ({error})."
    if reason is not None and recording.ensure_started():
        abi.record_fact(NOTE, json.dumps(reason))


def _why_not() -> str | None:
    """Why CuPy keeps its own pool in this process; None when ours is to serve it."""
    if recording.armed_allocator() is AllocatorChoice.NATIVE:
        return "CuPy's memory is not recorded: its own pool cannot be heard; choose --allocator gpumem."
    return None
