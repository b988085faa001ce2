"""The two functions that CuPy calls for every block, made by the native core, which looks up the stream itself.

Owns: typed calls on gm_cupy_*. Must not know: when CuPy gets them, what its errors are. CuPy is never imported.

All of gm_cupy_* makes or keeps Python objects, so it is called with the interpreter lock held (ctypes.PyDLL).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int32, c_uint32, c_void_p, py_object

from gpumem import abi
from gpumem.abi.allocator import NativeAllocator, Status, load_core

STREAM_SIGNATURE = b"intptr_t (void)"
"""What a capsule with CuPy's question for the current stream is named after."""

Malloc = Callable[[int, int], int]
Free = Callable[[int, int], None]


class CupyFunctions:
    """Built-in functions malloc(bytes, device) and free(address, device), and the allocators behind them."""

    def __init__(self, handle: c_void_p, core: ctypes.PyDLL) -> None:
        self._handle = handle
        self._core = core
        self.malloc: Malloc = core.gm_cupy_malloc_function(handle)
        self.free: Free = core.gm_cupy_free_function(handle)

    def serve(self, device: int, native: NativeAllocator) -> None:
        """Has a device served by `native` from now on, which then lives as long as the process."""
        self._core.gm_cupy_serve(self._handle, device, native.handle)


def make_functions(current_stream: int, on_failure: Callable[[int, int, Status], int]) -> CupyFunctions | None:
    """The functions; `current_stream` is the address of CuPy's own. None where this Python is not known to the core.

    `on_failure` answers for a device that is not served (Status.NO_DEVICE) and for a refused request.
    """
    load_core()
    core = ctypes.PyDLL(str(abi.library_path()))
    core.gm_cupy_create.restype = c_int32
    core.gm_cupy_create.argtypes = (c_void_p, py_object, ctypes.POINTER(c_void_p))
    for name in ("gm_cupy_malloc_function", "gm_cupy_free_function"):
        function = getattr(core, name)
        function.restype, function.argtypes = py_object, (c_void_p,)
    core.gm_cupy_serve.restype, core.gm_cupy_serve.argtypes = c_int32, (c_void_p, c_uint32, c_void_p)
    handle = c_void_p()

    def answer(byte_count: int, device: int, status: int) -> int:
        return on_failure(byte_count, device, Status(status))

    if core.gm_cupy_create(current_stream, answer, byref(handle)) != Status.OK:
        return None
    return CupyFunctions(handle, core)


def find_stream_function(capsule: object) -> int | None:
    """The address in a capsule of CuPy's C interface; None where it holds another kind of function, or is none."""
    is_valid, pointer_of = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes, is_valid.restype = (py_object, ctypes.c_char_p), c_int32
    pointer_of.argtypes, pointer_of.restype = (py_object, ctypes.c_char_p), c_void_p
    if not is_valid(capsule, STREAM_SIGNATURE):
        return None
    address: int | None = pointer_of(capsule, STREAM_SIGNATURE)
    return address
