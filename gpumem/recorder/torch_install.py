"""The installed torch as its files describe it, without importing it.

Owns: where torch lies, its versions, whether its headers and libraries can carry the tracker. Must not know: how the
tracker is built.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import TrackerUnavailable


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """An installed torch as its files describe it."""

    folder: Path
    version: str
    git_version: str
    cuda_version: str | None
    """None: built without CUDA."""


def find_torch() -> TorchInstall | None:
    """The torch that `import torch` would import, read from its files; None when there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return find_torch_in(Path(next(iter(spec.submodule_search_locations))))


def find_torch_in(folder: Path) -> TorchInstall | None:
    """The torch whose package folder is `folder`; None when it does not look like one."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    return TorchInstall(
        folder=folder,
        version=find_assigned(text, "__version__") or "unknown",
        git_version=find_assigned(text, "git_version") or "unknown",
        cuda_version=find_assigned(text, "cuda"),
    )


def find_assigned(text: str, name: str) -> str | None:
    """The string that Python source `text` assigns to `name`; None when it assigns none."""
    found = re.search(rf"^{name}(?:\s*:[^=\n]+)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def check_headers(torch: TorchInstall) -> None:
    """Raises TrackerUnavailable when torch's headers are missing or know no trace tracker."""
    header = torch.folder / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise TrackerUnavailable(
            f"PyTorch's allocator is not recorded: torch {torch.version} lies here without its C++ headers ({header} "
            "is missing); install torch from its wheel."
        ) from None
    if "AllocatorTraceTracker" not in text:
        raise TrackerUnavailable(
            f"PyTorch's allocator is not recorded: torch {torch.version} cannot hand its events over; install torch "
            "2.2 or newer."
        )


def takes_allocator(torch: TorchInstall | None) -> bool:
    """Whether this torch can be given another allocator than its own, told by its sources."""
    if torch is None:
        return False
    try:
        text = (torch.folder / "cuda" / "memory.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "class CUDAPluggableAllocator" in text


def has_cxx11_abi(torch: TorchInstall) -> bool:
    """Whether torch was built with libstdc++'s newer strings, told by a constructor that libc10.so exports."""
    try:
        with open(torch.folder / "lib" / "libc10.so", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return True
    with mapped:
        return mapped.find(b"_ZN3c105ErrorC2ENS_14SourceLocationESs") < 0
