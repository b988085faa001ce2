"""Opening any trace: what a file is, is told by its content.

Owns: telling formats apart, folders of traces, and the sentence for what is none. Must not know: any format's inside.
Readers are imported when their format is met: all of them take a tenth of a second of a command's start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

from gpumem.errors import TraceForeign, TraceNotFound, TraceTruncated, UsageError
from gpumem.importers.pytorch_snapshot_content import is_other_pickle, is_pytorch_snapshot
from gpumem.trace.file import read_trace
from gpumem.trace.journal import target_of
from gpumem.trace.journal_layout import JOURNAL_MAGIC
from gpumem.trace.model import Trace
from gpumem.trace.zip_parts import LOCAL_SIGNATURE, has_member, is_finished_zip

_SNIFFED_BYTES = 4096


class TraceFormat(Enum):
    """What a file is, by its first bytes."""

    TRACE = "a gpumem trace"
    PART = "the growing part of a recording"
    JOURNAL = "a gpumem journal"
    PYTORCH_SNAPSHOT = "a memory snapshot of PyTorch"
    JSON = "JSON"
    EMPTY = "an empty file"
    UNKNOWN = "no trace"


_TRACES = (TraceFormat.TRACE, TraceFormat.JOURNAL, TraceFormat.PYTORCH_SNAPSHOT)


def open_trace(path: Path | str) -> Trace:
    """The trace in a file, or in a folder that holds just one, as it was recorded (simulate/opening.py fills it in).

    Raises UsageError for a folder that holds several, TraceNotFound, TraceForeign, TraceTruncated or
    TraceVersionUnsupported.
    """
    path = find_trace(Path(path))
    return _READERS[find_format(path)](path)


def find_trace(path: Path) -> Path:
    """The file that `path` means: itself, the one trace in a folder, the trace that a journal became meanwhile, or the
    journal of a trace that is still being recorded.
    """
    if path.is_dir():
        path = find_only_trace(path)
    if not path.exists() and target_of(path).exists() and path.name.endswith(".journal"):
        path = target_of(path)  # finished since its name was looked up
    elif not path.exists() and path.name.endswith(".gpumem") and path.with_name(path.name + ".journal").exists():
        path = path.with_name(path.name + ".journal")
    return path


def find_only_trace(folder: Path) -> Path:
    """The one trace or journal in `folder`; raises UsageError, naming them, when there are several."""
    found = find_traces(folder)
    if len(found) > 1:
        names = ", ".join(entry.name for entry in found)
        raise UsageError(f"{folder} holds {len(found)} traces; name one of {names}.")
    return found[0]


def find_traces(folder: Path) -> list[Path]:
    """The traces and journals in `folder`, by name; raises TraceNotFound when there are none."""
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise TraceNotFound(f"{folder} cannot be read: {error.strerror}.") from error
    found = [entry for entry in files if _is_called_trace(entry) or _looks_like_trace(entry)]
    if not found:
        named = os.path.join(folder, "")
        raise TraceNotFound(f"{folder} holds no trace; record one with gpumem run -o {named} SCRIPT.")
    return found


def _is_called_trace(path: Path) -> bool:
    """Whether the name says that it is one, so that damage to it is said, whatever is left of it."""
    return path.name.endswith(".gpumem")


def _looks_like_trace(path: Path) -> bool:
    return find_format(path) in _TRACES and not _is_plainly_other(path)


def _is_plainly_other(path: Path) -> bool:
    """Whether a file that begins like a trace is another ZIP or pickle, such as the checkpoints that lie in a run's
    folder.
    """
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
    if head.startswith(LOCAL_SIGNATURE):
        return not has_member(path, "meta.json")
    return is_other_pickle(head)


def find_format(path: Path) -> TraceFormat:
    """What the file is, by its content; raises TraceNotFound where it cannot be read, TraceForeign for no file."""
    if path.exists() and not path.is_file():  # opening a pipe waits for its writer
        raise TraceForeign(f"{path} is no file; write what comes out of a pipe or a device to one first.")
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except FileNotFoundError:
        raise TraceNotFound(f"{path} does not exist; check the name.") from None
    except OSError as error:
        raise TraceNotFound(f"{path} cannot be read: {error.strerror}.") from error
    if head.startswith(JOURNAL_MAGIC):
        return TraceFormat.JOURNAL
    if head.startswith(LOCAL_SIGNATURE):
        return TraceFormat.TRACE if is_finished_zip(path) or b"events/" not in head[:64] else TraceFormat.PART
    if is_pytorch_snapshot(head):
        return TraceFormat.PYTORCH_SNAPSHOT
    if head.lstrip()[:1] in (b"{", b"["):
        return TraceFormat.JSON
    return TraceFormat.UNKNOWN if head else TraceFormat.EMPTY


def _refuse_part(path: Path) -> Trace:
    journal = path.with_name(path.name.removesuffix(".part") + ".journal")
    if journal.exists():
        raise TraceForeign(f"{path} is the growing part of a recording; open {journal} instead.")
    raise TraceTruncated(
        f"{path} is cut off, or the growing part of a recording whose journal is gone: it has no directory; copy "
        "it again from where it was recorded.",
        offset=os.stat(path).st_size,
    )


def _read_journal(path: Path) -> Trace:
    from gpumem.importers.journal import read_journal

    return read_journal(path)


def _read_snapshot(path: Path) -> Trace:
    from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot

    return read_pytorch_snapshot(path).trace


def _refuse_json(path: Path) -> Trace:
    raise TraceForeign(f"{path} is JSON, but no memory snapshot of PyTorch.")


def _refuse_empty(path: Path) -> Trace:
    raise TraceTruncated(f"{path} is empty; copy it again from where it was recorded.", offset=0)


def _refuse_unknown(path: Path) -> Trace:
    raise TraceForeign(
        f"{path} is no trace: neither a .gpumem file, nor a journal of a recording, nor a snapshot of PyTorch's."
    )


_READERS: Mapping[TraceFormat, Callable[[Path], Trace]] = {
    TraceFormat.TRACE: read_trace,
    TraceFormat.PART: _refuse_part,
    TraceFormat.JOURNAL: _read_journal,
    TraceFormat.PYTORCH_SNAPSHOT: _read_snapshot,
    TraceFormat.JSON: _refuse_json,
    TraceFormat.EMPTY: _refuse_empty,
    TraceFormat.UNKNOWN: _refuse_unknown,
}
