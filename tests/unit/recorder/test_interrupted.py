"""A program that Ctrl-C ends dies of SIGINT, whatever code from strings has run after it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

REMEMBER = """\
import atexit
from gpumem.recorder.interrupted import remember_interrupt
atexit.register(remember_interrupt)
"""
FORGET = """\
import atexit
atexit.register(lambda: exec("0"))
"""
INTERRUPT = "raise KeyboardInterrupt"
CONSOLE = """\
import code
console = code.InteractiveConsole(globals())
console.runsource("raise KeyboardInterrupt")
"""
CAUGHT = """\
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
"""


def end_of(folder: Path, *lines: str, how: str = "script") -> int:
    """The exit code of a program of these lines; negative: the signal that it died of."""
    (folder / "program.py").write_text("\n".join(lines) + "\n")
    (folder / "package").mkdir(exist_ok=True)
    (folder / "package" / "__main__.py").write_text("\n".join(lines) + "\n")
    words = {
        "script": ["program.py"],
        "module": ["-m", "program"],
        "folder": ["package"],
        "command": ["-c", "\n".join(lines)],
        "stdin": ["-"],
    }[how]
    stdin = "\n".join(lines).encode() if how == "stdin" else b""
    return subprocess.run([sys.executable, *words], cwd=folder, input=stdin, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("how", ["script", "module", "folder", "command", "stdin"])
def test_interrupted_program_dies_of_its_interrupt(tmp_path: Path, how: str) -> None:
    # What is to be made good: from 3.14 on Python forgets no interrupt.
    assert end_of(tmp_path, FORGET, INTERRUPT, how=how) == (1 if sys.version_info < (3, 14) else -signal.SIGINT)
    assert end_of(tmp_path, REMEMBER, FORGET, INTERRUPT, how=how) == -signal.SIGINT


@pytest.mark.parametrize("body", ["", CONSOLE, CAUGHT], ids=["nothing", "console", "caught"])
@pytest.mark.parametrize("how", ["script", "module", "command"])
def test_program_that_no_interrupt_ended_exits_as_it_does(tmp_path: Path, how: str, body: str) -> None:
    assert end_of(tmp_path, REMEMBER, FORGET, body, how=how) == 0
    assert end_of(tmp_path, REMEMBER, FORGET, body, "raise SystemExit(3)", how=how) == 3
    assert end_of(tmp_path, REMEMBER, FORGET, body, "raise ValueError", how=how) == 1
