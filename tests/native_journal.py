"""The native core's journal on its own, without a recorder, for tests.

Owns: the calls gm_journal_*. Must not know: what is written.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from gpumem import abi


class NativeJournal:
    """A journal that the native core writes, with its windows of 16 MiB."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self.library = ctypes.CDLL(os.fspath(abi.library_path()))
        for name, (result, arguments) in abi.PROTOTYPES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        self.journal = ctypes.c_void_p()
        error_number = ctypes.c_int32()
        created = self.library.gm_journal_create(
            os.fsencode(path), run_id, ctypes.byref(error_number), ctypes.byref(self.journal)
        )
        assert created == abi.Status.OK, os.strerror(error_number.value)

    def append(self, record: abi.CRecord) -> None:
        assert self.library.gm_journal_append(self.journal, ctypes.byref(record), None) == abi.Status.OK

    def append_entry(self, kind: int, entry_id: int, payload: bytes) -> None:
        status = self.library.gm_journal_append_entry(self.journal, kind, entry_id, payload, len(payload))
        assert status == abi.Status.OK

    def close(self, ended_by: str = "exit") -> None:
        self.library.gm_journal_close(self.journal, ended_by.encode())
