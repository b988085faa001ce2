"""Lets a CUDA build of torch allocate and free without a GPU: what its program then costs is the host's part alone.

The installed runtime's symbols are all defined again, the few that matter in pretended_cuda.cpp, the others as stubs
that return 0; the driver is the tests' one; NVML is there and knows nothing. NVIDIA's other libraries are left as
they are; those that are not installed are stubs of what torch wants of them, so that `pip install --no-deps torch` is
enough. All go before the real ones by LD_PRELOAD, so that nothing installed is touched. Tensors have addresses and no
content: torch.empty works, whatever starts a kernel does nothing or fails.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

SOURCE = Path(__file__).with_name("pretended_cuda.cpp")
DRIVER = "libcuda.so.1"
DRIVER_SOURCE = Path(__file__).parents[1] / "tests" / "native" / "pretended_driver.cpp"
NVIDIAS = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
RUNTIMES = re.compile(r"libcudart\.so\.\d+")
DRIVER_FUNCTIONS = rb"cu[A-Z][A-Za-z0-9]+(?:_v[0-9])?"
NVML = "libnvidia-ml.so.1"
NVML_FUNCTIONS = rb"nvml[A-Z][A-Za-z0-9]+(?:_v[0-9])?"
NVML_SERVED = ("nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2")
"""What torch does not take a failure of."""
NVML_ERROR_NOT_SUPPORTED = 3


def build_pretended_cuda(folder: Path, torch: Path) -> dict[str, str]:
    """Compiles the libraries into `folder`; the variables under which the torch at `torch` starts on them."""
    needed = sorted({name for library in list_libraries(torch) for name in list_needed(library)})
    runtime = next((name for name in needed if RUNTIMES.fullmatch(name)), None)
    if runtime is None:
        raise SystemExit(f"{torch} wants no CUDA runtime; install a CUDA build of torch")
    wanted = {symbol for library in list_libraries(torch) for symbol in list_symbols(library, "-D", "-u")}
    own_driver, own_runtime = (compile_object(folder, source) for source in (DRIVER_SOURCE, SOURCE))
    installed = find_library(torch, runtime)
    offered = list_symbols(installed, "-D", "--defined-only") if installed else choose_symbols(wanted, runtime)
    asked = list_named(torch, DRIVER_FUNCTIONS)
    driver = build_library(folder, DRIVER, dict.fromkeys(asked - list_defined(own_driver), 0), [own_driver])
    missing = dict.fromkeys(strip_versions(offered) - list_defined(own_runtime), 0)
    libraries = [build_library(folder, runtime, missing, [own_runtime, driver, "-ldl"], version=runtime), driver]
    nvml = list_named(torch, NVML_FUNCTIONS) - list_defined(own_runtime)
    answers = dict.fromkeys(nvml, NVML_ERROR_NOT_SUPPORTED) | dict.fromkeys(NVML_SERVED, 0)
    libraries.append(build_library(folder, NVML, answers, [libraries[0]]))
    for name in needed:
        if NVIDIAS.fullmatch(name) and name not in (runtime, DRIVER) and not find_library(torch, name):
            chosen = choose_symbols(wanted, name)
            versions = {symbol.partition("@")[2] for symbol in chosen} - {""}
            version = min(versions, default=name)
            libraries.append(build_library(folder, name, dict.fromkeys(strip_versions(chosen), 0), [], version=version))
    return {"LD_PRELOAD": ":".join(map(str, libraries))}


def compile_object(folder: Path, source: Path) -> Path:
    made = folder / f"{source.stem}.o"
    run("c++", "-std=c++17", "-O2", "-fPIC", "-c", str(source), "-o", str(made))
    return made


def build_library(
    folder: Path, name: str, stubs: Mapping[str, int], inputs: Iterable[Path | str], *, version: str = ""
) -> Path:
    """A library of this name: the inputs and functions that return a number, all of one version if one is given."""
    source = folder / f"{name}.c"
    source.write_text("".join(f"int {stub}(void) {{ return {answer}; }}\n" for stub, answer in sorted(stubs.items())))
    made = folder / f"{name}.o"
    run("cc", "-O2", "-fPIC", "-w", "-c", str(source), "-o", str(made))
    script = folder / f"{name}.map"
    script.write_text(f"{version} {{ global: *; }};\n")
    named = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script={script}"] if version else [])]
    run("c++", "-shared", "-Wl,--no-as-needed", str(made), *map(str, inputs), *named, "-o", str(folder / name))
    return folder / name


def list_libraries(torch: Path) -> list[Path]:
    """The libraries that torch brings itself."""
    return sorted((torch / "lib").glob("lib*.so*"))


def list_needed(library: Path) -> list[str]:
    """The libraries that this one is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", str(library)))


def find_library(torch: Path, name: str) -> Path | None:
    """A library beside torch's own or in NVIDIA's packages."""
    for pattern in (f"lib/{name}", f"../nvidia/*/lib/{name}", f"../nvidia/{name}", f"../cusparselt/lib/{name}"):
        for found in sorted(torch.glob(pattern)):
            return found
    return None


def choose_symbols(wanted: Set[str], library: str) -> set[str]:
    """What is wanted of this library: by its version, or, where that does not name it, by how its names begin."""
    stem = re.sub(r"^lib|_\w+$", "", library.partition(".")[0]).lower()
    return {
        symbol
        for symbol in wanted
        if symbol.endswith(f"@{library}") or ("@lib" not in symbol and symbol.lower().startswith(stem))
    }


def list_defined(made: Path) -> set[str]:
    return strip_versions(list_symbols(made, "--defined-only"))


def strip_versions(symbols: Iterable[str]) -> set[str]:
    return {symbol.partition("@")[0] for symbol in symbols} - {""}


def list_named(torch: Path, functions: bytes) -> set[str]:
    """The functions that torch looks up by name."""
    named = re.findall(rb"\0(" + functions + rb")(?=\0)", (torch / "lib" / "libc10_cuda.so").read_bytes())
    return {found.decode() for found in named}


def list_symbols(library: Path, *options: str) -> set[str]:
    """The functions that nm lists for a library or an object."""
    if shutil.which("nm") is None:
        raise SystemExit("nm is missing; install binutils")
    rows = (line.split() for line in run("nm", *options, str(library)).splitlines())
    return {row[-1] for row in rows if len(row) >= 2 and row[-2] in "TWiU"}


def run(*command: str) -> str:
    """What a command of the compiler's tools prints; ends the benchmark where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout
