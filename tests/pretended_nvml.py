"""nvidia-ml-py over a pretended driver: tests/native/pretended_nvml_devices.cpp as libnvidia-ml.so.1."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from ctypes import c_int, c_uint, c_ulonglong
from pathlib import Path
from types import ModuleType

from pretended_driver import build_library

MIB = 1 << 20
HIDDEN = 2**64 - 1
SOURCE = Path(__file__).parent / "native" / "pretended_nvml_devices.cpp"
COMPUTE, GRAPHICS, MPS = range(3)


def build_nvml_devices(folder: Path) -> Path:
    """Compiles the driver into `folder`, which becomes part of LD_LIBRARY_PATH."""
    return build_library(SOURCE, folder / "libnvidia-ml.so.1")


class PretendedNvml:
    """A pretended driver of its own, by the folder that it was built into; figures in bytes."""

    def __init__(self, folder: Path) -> None:
        self.core = ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))
        self.core.pretend_memory.argtypes = (c_int, c_ulonglong, c_ulonglong, c_ulonglong, c_ulonglong, c_int)
        self.core.pretend_calls.restype = c_ulonglong
        self.set_devices(1)

    def module(self, *, gives_functions: bool = True) -> ModuleType:
        """A fresh pynvml that has opened this driver."""
        found = importlib.util.find_spec("pynvml")
        assert found is not None
        assert found.origin is not None
        spec = importlib.util.spec_from_file_location("pretended_pynvml", found.origin)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # it looks itself up there
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[spec.name]
        module.nvmlLib = self.core  # type: ignore[attr-defined]
        if gives_functions:
            return module
        names = ("NVMLError", "nvmlMemory_v2", *(name for name in vars(module) if name.startswith("nvml")))
        kept = ModuleType("pynvml_without_functions")
        vars(kept).update({name: getattr(module, name) for name in names})
        return kept

    def set_devices(self, count: int) -> None:
        """That many devices, each as the stand-in's and without processes."""
        self.core.pretend_devices(count)

    def set_memory(self, device: int, total: int, used: int, free: int, reserved: int, code: int = 0) -> None:
        """What version 2 of the memory call says."""
        self.core.pretend_memory(device, total, used, free, reserved, code)

    def set_list(self, device: int, which: int, rows: Sequence[tuple[int, int]] = (), code: int = 0) -> None:
        """The processes (pid, bytes) of one list."""
        pids = (c_uint * len(rows))(*(pid for pid, _ in rows))
        held = (c_ulonglong * len(rows))(*(held_bytes for _, held_bytes in rows))
        self.core.pretend_list(device, which, pids, held, len(rows), code)

    def hang(self, is_hanging: bool) -> None:
        """Whether every call hangs."""
        self.core.pretend_hang(int(is_hanging))

    def count_hanging(self) -> int:
        """Calls that hang now."""
        return int(self.core.pretend_hanging())

    def count_calls(self) -> int:
        """Calls so far."""
        return int(self.core.pretend_calls())
