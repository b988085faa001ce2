"""Builds a native program of the benchmarks or tests from this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_native_program(name: str, folder: Path) -> Path:
    """The program `name`, built below `folder` with the optimisation that users get."""
    build = folder / "native_build"
    options = ["-DGPUMEM_TESTS=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    subprocess.run(["cmake", "-S", ROOT, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    command = ["cmake", "--build", build, "--parallel", "2", "--target", name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build / "tests" / "native" / name
