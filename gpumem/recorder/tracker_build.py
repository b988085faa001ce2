"""Builds the torch tracker with the user's compiler against the installed torch, once, and remembers it.

Owns: the compiler, the cache folder and its lock, the process that compiles. Must not know: what the tracker does, or
the recorder.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.resources
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import TrackerUnavailable
from gpumem.recorder.torch_install import TorchInstall, check_headers, find_torch, find_torch_in, has_cxx11_abi

SOURCES = (
    "torch_tracker.cpp",
    "include/gpumem.h",
    "cuda_stand_in/cuda.h",
    "cuda_stand_in/cuda_runtime.h",
    "cuda_stand_in/cuda_runtime_api.h",
)
STANDARDS = ("c++17", "c++20")  # the headers of later versions of torch may ask for the second
BUILD_SECONDS_MAX = 180
INSTALL_COMPILER = (
    "install a C++ compiler (apt install g++, dnf install gcc-c++ or conda install cxx-compiler), "
    "or name one in the variable CXX"
)
CHILD = "import sys; sys.path.append({folder!r}); from gpumem.recorder import tracker_build; tracker_build.main()"


@dataclass(frozen=True, slots=True)
class TrackerPlan:
    """What to compile, with what, and where the library will lie."""

    torch: TorchInstall
    compiler: tuple[str, ...]
    cxx11_abi: bool
    library: Path


@dataclass(frozen=True, slots=True)
class TrackerDescription:
    """How recording PyTorch stands on this machine; `reason` is None where it works or will on first use."""

    torch_version: str | None
    cuda_version: str | None
    compiler: str | None
    library: Path | None
    is_built: bool
    reason: str | None


def plan_tracker(torch: TorchInstall) -> TrackerPlan:
    """The build for `torch`; without a compiler, a library that an earlier one left for it.

    Raises TrackerUnavailable when torch is too old or incomplete, or there is no compiler.
    """
    check_headers(torch)
    abi = has_cxx11_abi(torch)
    key = f"torch-{torch.version}-{torch.git_version[:12]}-abi{int(abi)}-{hash_sources()[:16]}"
    folder = cache_folder() / "tracker" / key
    compiler = find_compiler()
    if compiler is None:
        built = sorted(folder.glob("*.so"))
        if not built:
            raise TrackerUnavailable(
                f"PyTorch's allocator is not recorded: there is no C++ compiler here to build the tracker for torch "
                f"{torch.version}; {INSTALL_COMPILER}."
            )
        return TrackerPlan(torch, (), abi, built[0])
    return TrackerPlan(torch, compiler, abi, folder / f"{identify_compiler(compiler)}.so")


def describe_tracker() -> TrackerDescription:
    """How recording PyTorch stands on this machine, without importing torch or building anything."""
    found = find_compiler()
    compiler = shlex.join(found) if found else None
    torch = find_torch()
    if torch is None:
        return TrackerDescription(None, None, compiler, None, False, "torch is not installed for this Python")
    if torch.cuda_version is None:
        reason = f"torch {torch.version} was built without CUDA"
        return TrackerDescription(torch.version, None, compiler, None, False, reason)
    try:
        plan = plan_tracker(torch)
    except TrackerUnavailable as error:
        return TrackerDescription(torch.version, torch.cuda_version, compiler, None, False, str(error))
    return TrackerDescription(torch.version, torch.cuda_version, compiler, plan.library, plan.library.exists(), None)


class TrackerBuild:
    """A build that may be under way in another process; `wait` gives its library."""

    def __init__(self, plan: TrackerPlan, pipe: int | None) -> None:
        self.plan = plan
        self._pipe = pipe

    def wait(self) -> Path:
        """The built library, at the latest after BUILD_SECONDS_MAX.

        Raises TrackerUnavailable with the compiler's first error.
        """
        failure = read_result(self._pipe) if self._pipe is not None else None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self.plan.library.exists():
            return self.plan.library
        if failure is not None:
            raise TrackerUnavailable(failure)
        return build_tracker(self.plan)


def start_build(plan: TrackerPlan) -> TrackerBuild:
    """Starts compiling in a process of its own unless the library is there already; does not wait for it."""
    if plan.library.exists() or not sys.executable:
        return TrackerBuild(plan, None)
    read_end, write_end = os.pipe()
    folder = str(Path(str(importlib.resources.files("gpumem"))).parent)
    arguments = [sys.executable, "-P", "-c", CHILD.format(folder=folder), str(plan.torch.folder)]
    try:
        # Started by a shell that leaves at once: the program never has a child it did not start.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=subprocess.DEVNULL,
            env=build_environment(),
            start_new_session=True,
            check=False,
        )
    except OSError:
        os.close(read_end)
        return TrackerBuild(plan, None)
    finally:
        os.close(write_end)
    return TrackerBuild(plan, read_end)


def build_tracker(plan: TrackerPlan) -> Path:
    """The library, compiled now unless it is there; several processes may call this at once and one compiles.

    Raises TrackerUnavailable with the compiler's first error and what to do.
    """
    plan.library.parent.mkdir(parents=True, exist_ok=True)
    with locked(plan.library.with_suffix(".lock")):
        if plan.library.exists():
            return plan.library
        handle, temporary = tempfile.mkstemp(dir=plan.library.parent, prefix="building-", suffix=".so.tmp")
        os.close(handle)
        try:
            compile_tracker(plan, Path(temporary))
            os.chmod(temporary, 0o755)
            os.replace(temporary, plan.library)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return plan.library


def compile_tracker(plan: TrackerPlan, target: Path) -> None:
    """Compiles the tracker into `target`, by the first of STANDARDS that works."""
    failures = []
    for standard in STANDARDS:
        command = compile_command(plan, target, standard)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                env=build_environment() | {"LC_ALL": "C"},
                timeout=BUILD_SECONDS_MAX / 2,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(str(error))
            break
        if done.returncode == 0:
            return
        failures.append(find_first_error(done.stderr) or f"exit code {done.returncode}")
    raise TrackerUnavailable(
        f"PyTorch's allocator is not recorded: {shlex.join(plan.compiler)} could not build the tracker for torch "
        f"{plan.torch.version} ({failures[-1]}); {INSTALL_COMPILER}."
    )


def compile_command(plan: TrackerPlan, target: Path, standard: str) -> list[str]:
    """The compiler's command line: our stand-in for CUDA's headers first, torch's libraries by path where they are."""
    native = native_folder()
    include = plan.torch.folder / "include"
    libraries = [plan.torch.folder / "lib" / name for name in ("libc10.so", "libc10_cuda.so")]
    return [
        *plan.compiler,
        f"-std={standard}",
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",  # written by torch's own build; its CPU wheels leave it out
        f"-D_GLIBCXX_USE_CXX11_ABI={int(plan.cxx11_abi)}",
        f"-I{native / 'cuda_stand_in'}",
        f"-I{native / 'include'}",
        f"-I{include}",
        str(native / "torch_tracker.cpp"),
        *(str(library) for library in libraries if library.exists()),
        *("-o", str(target)),
    ]


def find_compiler() -> tuple[str, ...] | None:
    """The user's C++ compiler as words of a command line: $CXX, else the first of c++, g++, clang++ on PATH."""
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        words = shlex.split(candidate)
        program = shutil.which(words[0]) if words else None
        if program is not None:
            return (program, *words[1:])
    return None


def identify_compiler(compiler: Sequence[str]) -> str:
    """A short name of this compiler as it is installed now: of its command line, files, their size and time."""
    parts = []
    for word in compiler:
        program = os.path.realpath(shutil.which(word) or word)
        parts.append(word)
        if os.path.exists(program):
            status = os.stat(program)
            parts.append(f"{program} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def native_folder() -> Path:
    """The folder of the tracker's sources, as they are installed."""
    return Path(str(importlib.resources.files("gpumem").joinpath("native", SOURCES[0]))).parent


def hash_sources() -> str:
    """Hexadecimal SHA-256 over the tracker's sources."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(name.encode() + b"\0" + (native_folder() / name).read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """The user's cache folder for gpumem, made if need be; a private temporary one where that cannot be written."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path(os.path.expanduser("~")) / ".cache"
    folder = base / "gpumem"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        return private_temporary_folder()
    return private_temporary_folder()


def private_temporary_folder() -> Path:
    """A folder under the temporary one that only this user can write; a fresh one if that name is another's."""
    folder = Path(tempfile.gettempdir()) / f"gpumem-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022 and not folder.is_symlink()
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="gpumem-"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; where the file system has no locks the atomic rename alone must do."""
    with open(path, "ab") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_environment() -> dict[str, str]:
    """The environment of the build's processes: the program's own, without recording."""
    return {name: value for name, value in os.environ.items() if name != "GPUMEM_RECORD"}


def find_first_error(text: str) -> str | None:
    """The first line of a compiler's output that says error, else its first line with any text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else None)


def read_result(pipe: int) -> str | None:
    """The failure that a build reported through its pipe; None when it reported none."""
    deadline = time.monotonic() + BUILD_SECONDS_MAX
    received = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        received += chunk
    failure = json.loads(received)["failure"] if received.endswith(b"\n") else None
    return failure if isinstance(failure, str) else None


def main() -> None:
    """Builds the tracker for the torch folder named on the command line and prints one JSON line with the outcome."""
    failure = None
    try:
        torch = find_torch_in(Path(sys.argv[1]))
        assert torch is not None
        build_tracker(plan_tracker(torch))
    except (TrackerUnavailable, OSError) as error:
        failure = str(error)
    print(json.dumps({"failure": failure}), flush=True)
