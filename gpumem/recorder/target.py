"""The program that `gpumem run` is asked to record: what it is, and how it is started.

Owns: telling Python programs from others, as Python itself and the shell would. Must not know: recording.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpumem.errors import ProgramNotFound

_PYTHON_SUFFIXES = {".py", ".pyw", ".pyc", ".pyz"}


class TargetKind(Enum):
    """How Python is told what to run; a PROGRAM runs by itself."""

    SCRIPT = "script"
    FOLDER = "folder"
    MODULE = "module"
    CODE = "code"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class Target:
    """A program and its arguments."""

    kind: TargetKind
    name: str
    """Path, module, code, or the program as it was named."""
    arguments: Sequence[str]
    stem: str
    """What its traces are called by default."""

    @property
    def is_python(self) -> bool:
        """Whether our own interpreter runs it."""
        return self.kind is not TargetKind.PROGRAM

    @property
    def command(self) -> list[str]:
        """The command line, just as it would be without us."""
        if self.kind is TargetKind.PROGRAM:
            return [self.name, *self.arguments]
        option = {TargetKind.MODULE: ["-m"], TargetKind.CODE: ["-c"]}.get(self.kind, [])
        return [sys.executable, *find_interpreter_flags(), *option, self.name, *self.arguments]


def find_script(script: str, arguments: Sequence[str]) -> Target:
    """What SCRIPT is: a Python file, a folder or ZIP with `__main__`, or another program, also by its name on PATH.

    Raises ProgramNotFound.
    """
    if not script:
        raise ProgramNotFound("The name of the program is empty; name a script or a program.")
    path = Path(script)
    if script == "-":
        return Target(TargetKind.SCRIPT, script, arguments, "stdin")
    if path.is_dir() or (path.is_file() and zipfile.is_zipfile(path)):
        if not _has_main(path):
            raise ProgramNotFound(f"{script} holds no __main__.py, so Python cannot run it; name the script itself.")
        return Target(TargetKind.FOLDER, script, arguments, path.resolve().stem)
    if path.exists():
        if path.suffix in _PYTHON_SUFFIXES or not os.access(path, os.X_OK):
            if not os.access(path, os.R_OK):
                raise ProgramNotFound(f"{script} cannot be read; check its permissions.")
            # Python would take a name that begins with a dash for a flag.
            name = os.path.join(os.curdir, script) if script.startswith("-") else script
            return Target(TargetKind.SCRIPT, name, arguments, path.stem.lstrip("-") or "script")
        # Without a slash the system would look for the name on PATH.
        name = script if os.sep in script else os.path.join(os.curdir, script)
        return Target(TargetKind.PROGRAM, name, arguments, path.stem)
    if os.sep not in script and shutil.which(script) is not None:
        return Target(TargetKind.PROGRAM, script, arguments, path.stem)
    raise ProgramNotFound(f"{script} is neither a file here nor a program on PATH; check the name.")


def find_module(module: str, arguments: Sequence[str]) -> Target:
    """The module that `python -m` would run."""
    return Target(TargetKind.MODULE, module, arguments, module.rpartition(".")[2] or "module")


def find_code(code: str, arguments: Sequence[str]) -> Target:
    """The code that `python -c` would run."""
    return Target(TargetKind.CODE, code, arguments, "command")


def find_interpreter_flags() -> list[str]:
    """The flags given to Python itself where gpumem was started by `python FLAGS -m …`; the program gets them too.

    Flags in the first line of an installed `gpumem` script are the installer's, not the user's.
    """
    before_arguments = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if "-m" not in before_arguments:
        return []
    return before_arguments[: before_arguments.index("-m")]


def _has_main(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in ("__main__.py", "__main__.pyc"))
    with zipfile.ZipFile(path) as archive:
        return not {"__main__.py", "__main__.pyc"}.isdisjoint(archive.namelist())
