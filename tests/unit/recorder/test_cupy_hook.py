"""CuPy's two functions where threads meet: a pretended CuPy, a simulated card; the native functions are real."""

from __future__ import annotations

import ctypes
from threading import Thread
from types import SimpleNamespace

import pytest

from gpumem.abi.allocator import DeviceKind, NativeAllocator, create_allocator
from gpumem.abi.cupy import STREAM_SIGNATURE, CupyFunctions
from gpumem.recorder import own_allocators
from gpumem.recorder.cupy_hook import CupyAllocator

STREAM_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: 0)


def pretend_cupy() -> object:
    make_capsule = ctypes.pythonapi.PyCapsule_New
    make_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    make_capsule.restype = ctypes.py_object
    capsule = make_capsule(ctypes.cast(STREAM_FUNCTION, ctypes.c_void_p), STREAM_SIGNATURE, None)
    stream = SimpleNamespace(__pyx_capi__={"get_current_stream_ptr": capsule})
    return SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0), stream=stream))


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> NativeAllocator:
    """What serves device 0."""
    made = create_allocator(DeviceKind.SIMULATED, device=0, settings="", memory_bytes=64 << 20, limit_bytes=None)
    monkeypatch.setattr(own_allocators, "share_allocator", lambda device, **_: made)
    return made


def test_a_block_of_a_thread_that_meets_the_start_of_a_device_comes_back(
    monkeypatch: pytest.MonkeyPatch, native: NativeAllocator
) -> None:
    allocator = CupyAllocator(pretend_cupy(), settings="", memory_bytes=None)
    other = Thread(target=lambda: allocator.free(allocator.malloc(1000, 0), 0))
    serve = CupyFunctions.serve

    def serve_late(functions: CupyFunctions, device: int, served: NativeAllocator) -> None:
        other.start()
        other.join(timeout=0.2)
        serve(functions, device, served)

    monkeypatch.setattr(CupyFunctions, "serve", serve_late)
    address = allocator.malloc(3000, 0)
    other.join()
    assert native.statistics().all.allocated_bytes.current == 3072
    allocator.free(address, 0)
    assert native.statistics().all.allocated_bytes.current == 0
