"""Whether a file can be written where it is to go, and what it may take the place of.

Owns: trying the folder, and telling what stands at the name. Must not know: what is written, and how.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from gpumem.errors import OutputUnwritable, TargetExists, UsageError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def check_replaceable(target: Path, *, force: bool, option: str | None = "-o") -> None:
    """Raises unless a file may be put at `target`: finished files are renamed to their names, so whatever stood there
    is gone, a device of the machine too.

    TargetExists where there is a file and `force` is not given, UsageError where there is anything else; `option` is
    the flag that named it, None in a program.
    """
    other = _find_other_kind(target)
    if other is not None:
        raise UsageError(f"{target} is {other}, not a file; choose another name{_by(option)}.")
    if not force and os.path.lexists(target):
        raise TargetExists(target, option)


def check_writable(folder: Path, option: str | None = "-o") -> None:
    """Raises OutputUnwritable unless files can be made in `folder`."""
    if not folder.is_dir():
        raise OutputUnwritable(f"{folder} is not there; make the folder first, or choose another{_by(option)}.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise OutputUnwritable(
            f"{folder} cannot be written to ({error.strerror}); choose another place{_by(option)}."
        ) from None


def _by(option: str | None) -> str:
    return "" if option is None else f" with {option}"


def _find_other_kind(target: Path) -> str | None:
    """What stands at `target`, in words; None for a file, and for nothing."""
    if target.is_symlink() and os.readlink(target).startswith("/proc/"):
        return "a name for what a process has open"  # /dev/stdout: what that is changes with the process
    try:
        mode = stat.S_IFMT(target.stat().st_mode)
    except OSError:
        return None  # nothing, or a link to nothing
    return None if mode == stat.S_IFREG else _KINDS.get(mode, "something else")
