"""How gpumem starts Python: its own helper processes, and the program to record.

Owns: command lines and environments of both. Must not know: what the processes do.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import gpumem
from gpumem.recorder.spec import VARIABLE

START_UP_FILE = "gpumem.pth"

# Variables that would change what a helper process prints or how it starts.
_FOR_THE_PROGRAM_ALONE = (
    VARIABLE,
    "PYTHONDEVMODE",
    "PYTHONINSPECT",
    "PYTHONMALLOC",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONSTARTUP",
    "PYTHONTRACEMALLOC",
    "PYTHONVERBOSE",
    "PYTHONWARNINGS",
)


def helper_command(module: str) -> list[str]:
    """The command line that runs one of gpumem's own modules, whatever lies in the current folder."""
    return [sys.executable, "-P", "-m", module]


def helper_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for gpumem's own processes: not recorded, and able to import gpumem."""
    helper = {name: value for name, value in environment.items() if name not in _FOR_THE_PROGRAM_ALONE}
    root = package_root()
    if not is_in_site_folder(root):
        # gpumem came from a path that only this process has.
        helper["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    return helper


def package_root() -> Path:
    """The folder from which `import gpumem` finds this package."""
    [folder] = list(gpumem.__path__)[:1]
    return Path(folder).absolute().parent


def find_start_up_file() -> Path | None:
    """The gpumem.pth that this interpreter reads at its start; None where there is none."""
    if sys.flags.no_site:
        return None
    for folder in site_folders():
        if (folder / START_UP_FILE).is_file():
            return folder / START_UP_FILE
    return None


def site_folders() -> list[Path]:
    """The folders whose .pth files this interpreter reads."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [Path(folder) for folder in folders]


def is_in_site_folder(root: Path) -> bool:
    """Whether every start of this interpreter finds packages in `root` by itself."""
    return root in site_folders() or find_start_up_file() is not None
