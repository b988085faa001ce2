"""Runs a program bare and under `gpumem run`, in folders of their own, for tests that compare the two."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumem.importers.open import open_trace
from gpumem.trace.model import Trace
from waits import SECONDS_AT_MOST

TESTS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def note(self) -> str:
        """What gpumem itself said."""
        lines = self.stderr.decode(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith("gpumem: "))

    @property
    def without_note(self) -> Ended:
        """The same without gpumem's own lines."""
        lines = self.stderr.splitlines(keepends=True)
        return Ended(self.code, self.stdout, b"".join(line for line in lines if not line.startswith(b"gpumem: ")))


def environment(**further: str) -> dict[str, str]:
    """This process's environment with the stand-ins importable and nothing left of a recording."""
    kept = {name: value for name, value in os.environ.items() if name != "GPUMEM_RECORD"}
    return kept | {"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"} | further


def gpumem_command(*words: str) -> list[str]:
    """The command line of `gpumem WORDS`."""
    return [sys.executable, "-m", "gpumem_cli", *words]


def run(command: Sequence[str], folder: Path, *, stdin: bytes = b"", further: Mapping[str, str] | None = None) -> Ended:
    """Runs a command to its end in `folder`."""
    done = subprocess.run(
        list(command),
        cwd=folder,
        input=stdin,
        capture_output=True,
        env=environment(**(further or {})),
        timeout=SECONDS_AT_MOST,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_python(folder: Path, *words: str, stdin: bytes = b"") -> Ended:
    """`python WORDS` as it is without us."""
    return run([sys.executable, *words], folder, stdin=stdin)


def run_recorded(folder: Path, *words: str, stdin: bytes = b"") -> Ended:
    """`gpumem run WORDS`."""
    return run(gpumem_command("run", *words), folder, stdin=stdin)


def write_program(folder: Path, text: str, name: str = "train.py") -> str:
    """Writes a program into `folder`; its name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return name


def traces_in(folder: Path) -> dict[str, Trace]:
    """The finished traces of `folder` by file name."""
    return {path.name: open_trace(path) for path in sorted(folder.glob("*.gpumem"))}


def only_trace(folder: Path) -> Trace:
    """The one trace in `folder`, beside which nothing of the recording is left."""
    traces = traces_in(folder)
    assert len(traces) == 1, sorted(traces)
    assert not list(folder.glob("*.journal")) + list(folder.glob("*.part"))
    return next(iter(traces.values()))
