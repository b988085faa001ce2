"""A gpumem.record() inside a recording that is under way: two marks in that one instead of a file.

Owns: what such a part is called, what is said of it, and that it ends before the recording around it. Must not know:
how a recording begins or is sealed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import UsageError
from gpumem.recorder import recording
from gpumem.recorder.marks import mark
from gpumem.recorder.notes import say

_told: set[str] = set()
"""The marks that this process has been told of: a block in a loop says it once."""


@dataclass(frozen=True, slots=True)
class RecordingPart:
    """What a gpumem.record() is where the process is recorded already."""

    outer: recording.Recording
    """The recording that it is a part of."""
    name: str
    """Of both of its marks: the file name it would have had."""
    pid: int

    @classmethod
    def begin(cls, path: Path) -> RecordingPart:
        """Sets the first mark in the recording under way, and says on stderr where the part is to be found.

        Raises UsageError when that one is a gpumem.record() to the same path.
        """
        outer = recording.current()
        assert outer is not None
        if _is_in_program(outer) and os.path.realpath(path) == os.path.realpath(outer.trace_path):
            raise UsageError(f"{path} is being recorded already; give the second recording a path of its own.")
        part = cls(outer, path.name, os.getpid())
        if part.name not in _told:
            _told.add(part.name)
            say(part._sentence())
        mark(part.name)
        return part

    def end(self) -> None:
        """Sets the second mark; raises UsageError when the recording around it has ended before."""
        if self.pid != os.getpid():
            return  # a forked child leaves its parent's block
        if recording.current() is not self.outer:
            raise UsageError(
                f"The recording of {self.name} is a part of {self.outer.trace_path}, which was stopped before it; "
                "stop the inner recording first."
            )
        mark(self.name)

    def _sentence(self) -> str:
        if _is_in_program(self.outer):
            cure = "stop that recording first"
        elif self.outer.spec.sealed_by_other:
            cure = "start the program without gpumem run"
        else:
            cure = "start the program without GPUMEM_RECORD"
        return (
            f"this process is recorded already, into {self.outer.trace_path}; {self.name} is no file of its "
            f"own but the part of it from mark:{self.name} to mark:{self.name}:2 (for the file, {cure})."
        )


def _is_in_program(outer: recording.Recording) -> bool:
    """Whether gpumem.record() began it, not gpumem run or GPUMEM_RECORD."""
    return not recording.is_armed_by_spec(outer.spec)
