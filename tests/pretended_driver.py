"""Runs programs against a pretended CUDA driver: tests/native/pretended_driver.cpp as libcuda.so.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from waits import SECONDS_AT_MOST

SOURCE = Path(__file__).parent / "native" / "pretended_driver.cpp"
MIB = 1 << 20

PROLOGUE = """
import ctypes
import gpumem
from gpumem.errors import DeviceFailed, DeviceUnavailable
MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")
driver.pretend_used_bytes.restype = ctypes.c_size_t
driver.pretend_card.argtypes = (ctypes.c_size_t, ctypes.c_int)
driver.pretend_finish.argtypes = (ctypes.c_uint64,)
driver.pretend_destroy.argtypes = (ctypes.c_uint64,)
used = driver.pretend_used_bytes
"""


def build_driver(folder: Path) -> Path:
    """Compiles the driver into `folder`, which becomes part of LD_LIBRARY_PATH."""
    return build_library(SOURCE, folder / "libcuda.so.1")


def build_nvml(folder: Path) -> Path:
    """Compiles the few functions of NVML that an out-of-memory text takes."""
    return build_library(SOURCE.with_name("pretended_nvml.cpp"), folder / "libnvidia-ml.so.1")


def build_library(source: Path, library: Path) -> Path:
    """Compiles one source into a library; its folder."""
    compiler = next(found for name in ("c++", "g++", "clang++") if (found := shutil.which(name)))
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library.parent


def run_on_driver(folder: Path, program: str, *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python code with the pretended driver in place of a real one."""
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + dedent(program)],
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS_AT_MOST,
    )
