"""What a folder's file system can do.

Owns: trying it, with a file that has no name. Must not know: journals.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from pathlib import Path


def has_mapped_files(folder: Path) -> bool:
    """Whether files in `folder` can be reserved and mapped, as a journal must be: where there is room, that is."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            _reserve(probe.fileno(), mmap.PAGESIZE)
            with mmap.mmap(probe.fileno(), mmap.PAGESIZE) as mapping:
                mapping[0] = 1
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    except ValueError:
        return False
    return True


def _reserve(descriptor: int, byte_count: int) -> None:
    """Reserves as the journal does: os.posix_fallocate would write the bytes where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(byte_count)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
