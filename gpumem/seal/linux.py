"""Two calls of Linux that Python does not offer: punching holes into a file, and renaming onto a free name only.

Owns: those calls. Must not know: what is in the files.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def punch_hole(descriptor: int, offset: int, byte_count: int) -> bool:
    """Gives the blocks of a range back to the file system; False where it cannot do that."""
    while _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, byte_count):
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True


def rename_to_free_name(source: Path, target: Path) -> bool:
    """Renames `source` to `target`; False, with nothing changed, when `target` exists. Raises OSError."""
    rename = getattr(_libc, "renameat2", None)
    if rename is not None:
        names = os.fsencode(source), os.fsencode(target)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            return False
        if code not in (errno.EINVAL, errno.ENOSYS):  # those two: this file system or kernel has no such rename
            raise OSError(code, os.strerror(code), str(target))
    if target.exists():
        return False
    source.rename(target)
    return True
