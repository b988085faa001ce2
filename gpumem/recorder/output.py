"""Where a run's traces go, checked before the program starts.

Owns: the meaning of -o and -f, and what the target's file system can do. Must not know: the program.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpumem.errors import OutputUnwritable, UsageError
from gpumem.machine.file_systems import has_mapped_files
from gpumem.recorder.spec import is_taken, journal_path, part_path
from gpumem.trace.targets import check_replaceable, check_writable


@dataclass(frozen=True, slots=True)
class Output:
    """A run's place: traces go to `folder`; journals stand in `journal_folder`, the same one where it can be mapped."""

    folder: Path
    first_name: str | None
    """The name the user gave; None: the program's name and pid."""
    journal_folder: Path
    replaced: Path | None = None
    """An older trace of that name, which the new one replaces once it is complete."""
    is_folder_made: bool = False
    """Whether `folder` was not there before."""

    @property
    def is_apart(self) -> bool:
        """Whether journals stand apart, since `folder` cannot map them."""
        return self.folder != self.journal_folder


def find_output(output: str | None, *, force: bool) -> Output:
    """The place that `-o` names: a file, a folder (made if it ends in a slash), or the current folder.

    Raises TargetExists, UsageError and OutputUnwritable. With `force`, what an earlier run left is removed, except a
    finished trace: that one is replaced when the new one is complete.
    """
    is_folder_made = _make_folder(output)
    folder, first_name = _split_output(output)
    check_writable(folder)
    if first_name is not None:
        check_target(folder / first_name, force=force)
    journal_folder = find_journal_folder(folder)
    replaced = None if first_name is None or not os.path.lexists(folder / first_name) else folder / first_name
    return Output(folder, first_name, journal_folder, replaced, is_folder_made)


def remove_unused(output: Output) -> None:
    """Removes the folders that find_output made and that nothing came to stand in."""
    for folder, is_made in ((output.journal_folder, output.is_apart), (output.folder, output.is_folder_made)):
        if is_made:
            with suppress(OSError):  # something stands in it, or it is gone
                folder.rmdir()


def find_journal_folder(folder: Path) -> Path:
    """`folder`, or a new temporary one where its file system cannot map files."""
    return folder if has_mapped_files(folder) else Path(tempfile.mkdtemp(prefix="gpumem-"))


def check_target(trace_path: Path, *, force: bool, option: str | None = "-o") -> None:
    """Raises what check_replaceable does, and UsageError where a run that was killed left its journal.

    `force` removes that; `option` is the flag that named it, None in a program.
    """
    journal = journal_path(trace_path)
    check_replaceable(trace_path, force=force, option=option)
    if not is_taken(trace_path):
        return
    if journal.exists():
        _check_is_left(journal, option)
        if not force:
            raise UsageError(
                f"{journal} is left of a run that was killed; finish it with gpumem import {quote(str(journal))} "
                f"-o {quote(str(trace_path))}, "
                f"or overwrite it with {'force=True' if option is None else '-f'}."
            )
        journal.unlink()
        part_path(trace_path).unlink(missing_ok=True)


def _make_folder(output: str | None) -> bool:
    """Makes the folder that a name with a slash at its end asks for; whether there was none."""
    if output is None or not output.endswith(os.sep) or Path(output).exists():
        return False
    try:
        Path(output).mkdir()
    except OSError as error:
        raise OutputUnwritable(f"{output} cannot be made ({error.strerror}); choose another with -o.") from None
    return True


def _split_output(output: str | None) -> tuple[Path, str | None]:
    if output is None:
        return Path.cwd(), None
    path = Path(output).absolute()
    if path.is_dir():
        return path, None
    if output.endswith(os.sep):
        raise UsageError(f"{output} is a file, not a folder; leave the slash away to write to it.")
    return path.parent, path.name


def _check_is_left(journal: Path, option: str | None) -> None:
    """Raises UsageError when a process still writes `journal`, and InputError when it is none."""
    from gpumem.trace.journal import Journal

    opened = Journal(journal)
    by = "" if option is None else f" with {option}"
    if not opened.is_closed and opened.is_process_alive():
        raise UsageError(f"Process {opened.pid} still records to {journal}; choose another name{by}.")
