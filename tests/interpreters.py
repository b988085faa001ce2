"""The CPythons whose stacks gpumem walks, as tests name them.

Owns: the list and who of it is at hand. Must not know: what runs in them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig

WALKED = ("3.11", "3.12", "3.13", "3.14", "3.15")
"""Minor versions, as in the name of a program: python3.11."""


def has_interpreter(version: str) -> bool:
    """Whether a CPython of this minor version answers on PATH."""
    program = shutil.which(f"python{version}")
    if program is None:
        return False
    return subprocess.run([program, "-c", "pass"], capture_output=True).returncode == 0


def has_stacks() -> bool:
    """Whether gpumem walks the stacks of this Python, by its version: a walker that fails is no want of one."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return version in WALKED and not sysconfig.get_config_var("Py_GIL_DISABLED")
