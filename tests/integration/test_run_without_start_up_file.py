"""An interpreter that reads no gpumem.pth: the script is recorded all the same, and looks as under Python."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from program_runs import Ended, only_trace, run, write_program

ROOT = Path(__file__).parents[2]
FLAGS = ["-S"]
FURTHER = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli"), *filter(None, sys.path)])}

SHOWS_ITSELF = """
import sys
main = sys.modules["__main__"]
names = ("__name__", "__file__", "__doc__", "__package__", "__cached__")
print({name: getattr(main, name, "absent") for name in names})
print(main.__spec__ and main.__spec__.name, type(main.__loader__).__name__, sorted(vars(main)))
print(sys.argv, sys.path[:2], sys.flags)
"""


def compare(folder: Path, *words: str, stdin: bytes = b"") -> Ended:
    bare = run([sys.executable, *FLAGS, *words], folder, stdin=stdin, further=FURTHER)
    command = [sys.executable, *FLAGS, "-m", "gpumem_cli", "run", "-o", "out.gpumem", "-f", *words]
    recorded = run(command, folder, stdin=stdin, further=FURTHER)
    assert recorded.without_note == bare
    return recorded


def test_script_is_recorded_and_looks_as_under_python(tmp_path: Path) -> None:
    write_program(tmp_path, SHOWS_ITSELF + "import gpumem; gpumem.mark('here')")
    compare(tmp_path, "train.py", "-x", "--", "y")
    trace = only_trace(tmp_path)
    assert [mark.name for mark in trace.marks] == ["here"]


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('text')",
        "def fail():\n    raise ValueError('no') from KeyError('why')\n\nfail()\n",
        "def def",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import sys; sys.excepthook = lambda *error: print(error[0])\n1 / 0\n",
        "import pickle\nclass Thing: pass\nprint(pickle.loads(pickle.dumps(Thing())).__class__)\n",
    ],
)
def test_end_is_the_programs_own(tmp_path: Path, text: str) -> None:
    write_program(tmp_path, text)
    compare(tmp_path, "train.py")


def test_module_code_folder_archive_and_stdin_look_as_under_python(tmp_path: Path) -> None:
    write_program(tmp_path / "package", SHOWS_ITSELF, "__main__.py")
    with zipfile.ZipFile(tmp_path / "application.pyz", "w") as archive:
        archive.write(tmp_path / "package" / "__main__.py", "__main__.py")
    for words in (["-m", "package"], ["-c", SHOWS_ITSELF], ["package"], ["application.pyz"]):
        compare(tmp_path, *words, "-q", "last")
    for text in ("1 / 0", "def fail():\n    1 / 0\n\nfail()\n", "\n  1 / 0\n", "1 +"):
        compare(tmp_path, "-c", text)
    compare(tmp_path, "-m", "no_such_module")
    compare(tmp_path, "-", "x", stdin=SHOWS_ITSELF.encode())
