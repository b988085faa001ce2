"""Odd surroundings of a command: streams full or closed, a folder that is gone, long names. One sentence says so."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem.trace.file import read_trace, write_trace
from training_trace import training_trace

COMMAND = shlex.join([sys.executable, "-m", "gpumem_cli"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("streams")
    write_trace(training_trace(), made / "a.gpumem")
    return made


def shell(words: str, folder: Path, *, unbuffered: bool = False) -> tuple[int, str]:
    """Exit code and stderr of `gpumem WORDS` as a shell runs it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} {words}"], capture_output=True, text=True, cwd=folder, env=environment
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("words", ["summary a.gpumem", "summary a.gpumem --json"])
@pytest.mark.parametrize(
    ("stdout", "reason"), [("/dev/full", "No space left on device"), ("&-", "Bad file descriptor")]
)
def test_report_that_cannot_be_written_is_said(
    words: str, stdout: str, reason: str, folder: Path, unbuffered: bool
) -> None:
    assert shell(f"{words} >{stdout}", folder, unbuffered=unbuffered) == (
        3,
        f"gpumem: Standard output cannot be written: {reason}; send it to a file or a program that takes it.\n",
    )


def test_help_that_cannot_be_written_is_said(folder: Path) -> None:
    code, note = shell("--help >/dev/full", folder)
    assert (code, note.count("\n"), "No space left on device" in note) == (3, 1, True)


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("summary a.gpumem 2>&- >/dev/null", 0),
        ("summary nowhere 2>&-", 3),
        ("summary nowhere 2>/dev/full", 3),
        ("report a.gpumem -f -o a.html 2>&-", 0),
        ("report a.gpumem -f -o a.html 2>/dev/full", 0),
        ("summary a.gpumem <&- >&- 2>&-", 3),
    ],
)
def test_code_is_right_where_nothing_can_be_said(words: str, code: int, folder: Path, unbuffered: bool) -> None:
    assert shell(words, folder, unbuffered=unbuffered) == (code, "")


def test_closed_standard_input_is_an_empty_one(folder: Path) -> None:
    code, note = shell("oom - <&-", folder)
    assert (code, note.startswith("gpumem: standard input is empty")) == (3, True)


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-", "2>&-", "2>/dev/full"])
def test_program_is_recorded_and_its_code_handed_on_without_standard_streams(streams: str, folder: Path) -> None:
    code = "import gpumem; a = gpumem.Allocator(device='simulated'); a.alloc(512); raise SystemExit(7)"
    ran, _ = shell(f"run -f -o b.gpumem -c {shlex.quote(code)} {streams}", folder)
    assert ran == 7
    found, _ = shell("summary b.gpumem >/dev/null", folder)
    assert found == 0
    (folder / "b.gpumem").unlink()


def test_what_c_code_prints_to_a_closed_stream_never_goes_into_the_journal(folder: Path) -> None:
    code = (
        "import ctypes, gpumem\n"
        "gpumem.mark('here')\n"
        "for number in range(3): ctypes.CDLL(None).write(number, b'x' * 64, 64)\n"
    )
    assert shell(f"run -q -o c.gpumem -c {shlex.quote(code)} <&- >&- 2>&-", folder) == (0, "")
    assert [mark.name for mark in read_trace(folder / "c.gpumem").marks] == ["here"]


def test_folder_that_is_gone_and_name_too_long_are_one_sentence(folder: Path) -> None:
    gone = "mkdir gone; cd gone; rmdir ../gone; "
    done = subprocess.run(["bash", "-c", f"{gone}{COMMAND} run -c pass"], capture_output=True, text=True, cwd=folder)
    sentence = "gpumem: The folder that this command was started in is gone; change to another one.\n"
    assert (done.returncode, done.stderr) == (3, sentence)
    code, note = shell(f"summary {'x' * 300}", folder)
    assert (code, note.count("\n"), "File name too long" in note) == (3, 1, True)


def test_program_with_a_name_as_long_as_names_can_be_is_recorded(folder: Path) -> None:
    place = folder / "long"
    place.mkdir()
    (place / f"{'x' * 252}.py").write_text("import gpumem\ngpumem.Allocator(device='simulated').alloc(512)\n")
    assert shell("run -q x*.py", place) == (0, "")
    assert [len(trace.name.split(".")[0]) for trace in place.glob("*.gpumem")] == [160]


@pytest.mark.parametrize(("module", "code"), [("gpumem_cli.main", -signal.SIGINT), ("gpumem_cli.summary", 130)])
def test_ctrl_c_ends_the_command_without_a_traceback_at_any_moment(module: str, code: int, folder: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from gpumem_cli.entry import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv[1:] = ['summary', 'a.gpumem']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "")
