"""Builds the native test programs, once per session and sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def native_programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`native_programs(sanitize)` is the folder of the programs built with -DGPUMEM_SANITIZE=sanitize."""
    built: dict[str, Path] = {}

    def build(sanitize: str) -> Path:
        if sanitize not in built:
            folder = tmp_path_factory.mktemp("native_build")
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            # What the sanitizers add takes the compiler twice as long to optimise as it saves in the run.
            flags = (
                ["-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1"] if sanitize else ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
            )
            options = ["-DGPUMEM_TESTS=ON", f"-DGPUMEM_SANITIZE={sanitize}", *flags]
            run_build(["cmake", "-S", str(ROOT), "-B", str(folder), *generator, *options])
            run_build(["cmake", "--build", str(folder), "--parallel", "2"])
            built[sanitize] = folder / "tests" / "native"
        return built[sanitize]

    return build


def run_build(command: list[str]) -> None:
    """Runs one build command; its whole output is the failure's text."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
