"""Everything that can go wrong in the world, as types.

    GpumemError                 what, where, what to do next: one sentence or two
      UsageError                exit 2: wrong flags, a moment the trace does not have, a target that exists
        MomentUnknown
        TargetExists
        ProgramNotFound
      InputError                exit 3: input or output that cannot be read or written
        TraceNotFound
        TraceForeign            not a trace of any known kind
        TraceTruncated          cut off or damaged
        TraceVersionUnsupported
        AllocatorNotRecorded    the trace holds no events of an allocator
        OutputUnwritable
          JournalUnmappable     a journal needs a file system that maps and reserves files
          JournalTaken          another process made a journal of this name a moment before
      TrackerUnavailable        exit 3: PyTorch's own allocator cannot be recorded here
      DeviceUnavailable         exit 3: there is no such GPU, or it refuses
      OutOfMemoryError          exit 3: our allocator cannot serve a request
      DeviceFailed              exit 3: the driver reported an error
      NativeCoreError           exit 3: the native library is missing or does not match the Python code

Owns: the tree and the exit codes. Must not know: how a message is shown. Our own bugs are assertions, not these.
"""

from __future__ import annotations

from pathlib import Path

_COPY_AGAIN = "copy it again from where it was recorded"


class GpumemError(Exception):
    """A failure of the world: its text says what, where and what to do next."""

    exit_code = 3


class UsageError(GpumemError):
    """The command was asked for something it cannot do as given."""

    exit_code = 2


class MomentUnknown(UsageError):
    """The trace has no such moment; the text names those it has."""


class TargetExists(UsageError):
    """The output file exists and was not to be overwritten; `option` is the flag that named it, None in a program."""

    def __init__(self, path: Path, option: str | None = "-o") -> None:
        name, force = ("", "force=True") if option is None else (f" with {option}", "-f")
        super().__init__(f"{path} exists already; choose another name{name}, or overwrite it with {force}.")
        self.path = path
        self.option = option

    def __reduce__(self) -> tuple[object, ...]:
        return TargetExists, (self.path, self.option)


class ProgramNotFound(UsageError):
    """The program to record is not there."""


class InputError(GpumemError):
    """Something to be read or written cannot be."""

    exit_code = 3


class TraceNotFound(InputError):
    """The trace file does not exist or cannot be opened."""


class TraceForeign(InputError):
    """The file is no trace of any kind gpumem reads."""


class TraceTruncated(InputError):
    """The file is cut off or damaged; `offset` says where, in bytes, when known.

    A message that says nothing to do `again` (copy, record) is given that.
    """

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        super().__init__(message if " again" in message else f"{message.rstrip('.')}; {_COPY_AGAIN}.")
        self.offset = offset


class TraceVersionUnsupported(InputError):
    """The file was written in a format version this gpumem does not read."""


class AllocatorNotRecorded(InputError):
    """The trace holds no events of an allocator, and an answer needs them."""


class OutputUnwritable(InputError):
    """The output cannot be written."""


class JournalUnmappable(OutputUnwritable):
    """The file system cannot map or reserve files: the journal has to stand in another folder."""


class JournalTaken(OutputUnwritable):
    """There is a journal of this name by now: another process chose it at the same time."""


class NativeCoreError(GpumemError):
    """The native library is missing, cannot be loaded or does not match the Python code."""


class TrackerUnavailable(GpumemError):
    """PyTorch's own allocator cannot be recorded here; the text says why and what to install."""


class DeviceUnavailable(GpumemError):
    """There is no such GPU, or its driver refuses; the text says why."""


class DeviceFailed(GpumemError):
    """The driver reported an error, the heap being as it was before the call; or the allocator serves no more."""


class OutOfMemoryError(GpumemError, MemoryError):
    """A request that our allocator cannot serve, after every attempt; `free_bytes` is what the device had left."""

    def __init__(self, message: str, *, requested_bytes: int, free_bytes: int) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes

    def __reduce__(self) -> tuple[object, ...]:
        # Raised in a worker process it travels to the parent: a pool that cannot take it apart and together hangs.
        return _refuse_again, (str(self), self.requested_bytes, self.free_bytes)


def _refuse_again(message: str, requested_bytes: int, free_bytes: int) -> OutOfMemoryError:
    return OutOfMemoryError(message, requested_bytes=requested_bytes, free_bytes=free_bytes)
