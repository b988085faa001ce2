"""Lets a CUDA build of torch allocate and free without a GPU: what its program then costs is the host's part alone.

The installed runtime's symbols are all defined again, the few that matter in pretended_cuda.cpp, the others as stubs
that return 0; the driver is the tests' one. Both libraries go before the real ones by LD_PRELOAD, so that nothing
installed is touched. Tensors have addresses and no content: torch.empty works, whatever starts a kernel does nothing or
fails.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("pretended_cuda.cpp")
DRIVER = "libcuda.so.1"
DRIVER_SOURCE = Path(__file__).parents[1] / "tests" / "native" / "pretended_driver.cpp"


def build_pretended_cuda(folder: Path, torch: Path) -> dict[str, str]:
    """Compiles both libraries into `folder`; the variables under which the torch at `torch` starts on them."""
    runtime = find_runtime(torch)
    known = folder / "known.o"
    run("c++", "-std=c++17", "-O2", "-fPIC", "-c", str(SOURCE), "-o", str(known))
    missing = sorted(list_symbols(runtime, "-D") - list_symbols(known))
    stubs = folder / "stubs.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in missing))
    version = folder / "version.map"
    version.write_text(f"{runtime.name} {{ global: *; }};\n")
    libraries = [folder / runtime.name, folder / DRIVER]
    run("cc", "-O2", "-fPIC", "-w", "-c", str(stubs), "-o", str(folder / "stubs.o"))
    shared = ("c++", "-std=c++17", "-O2", "-fPIC", "-shared")
    named = (f"-Wl,-soname,{runtime.name}", f"-Wl,--version-script={version}")
    run(*shared, str(known), str(folder / "stubs.o"), *named, "-o", str(libraries[0]))
    run(*shared, str(DRIVER_SOURCE), f"-Wl,-soname,{DRIVER}", "-o", str(libraries[1]))
    return {"LD_PRELOAD": ":".join(map(str, libraries))}


def find_runtime(torch: Path) -> Path:
    """The CUDA runtime that a torch brings: beside its own libraries or in NVIDIA's package."""
    for pattern in ("lib/libcudart*.so.*", "../nvidia/*/lib/libcudart.so.*"):
        for found in sorted(torch.glob(pattern)):
            return found
    raise SystemExit(f"{torch} brings no CUDA runtime; install a CUDA build of torch")


def list_symbols(library: Path, *options: str) -> set[str]:
    """The functions that a library or an object defines."""
    if shutil.which("nm") is None:
        raise SystemExit("nm is missing; install binutils")
    rows = (line.split() for line in run("nm", *options, "--defined-only", str(library)).splitlines())
    return {row[2].partition("@")[0] for row in rows if len(row) == 3 and row[1] in "TWi"}


def run(*command: str) -> str:
    """What a command of the compiler's tools prints; ends the benchmark where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout
