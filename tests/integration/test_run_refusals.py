"""What `gpumem run` refuses before it starts the program: one sentence, exit 2 or 3, nothing left behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpumem.importers.open import open_trace
from program_runs import Ended, gpumem_command, only_trace, run, run_recorded, write_program


def refused(ended: Ended, code: int) -> str:
    """The sentence of a refusal, after which nothing was run."""
    assert (ended.code, ended.stdout) == (code, b"")
    sentence = ended.stderr.decode()
    assert sentence.startswith("gpumem: ")
    assert sentence.count("\n") == 1
    return sentence.removeprefix("gpumem: ").rstrip("\n")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["no.py"], 2, "no.py is neither a file here nor a program on PATH; check the name."),
        (["folder"], 2, "folder holds no __main__.py, so Python cannot run it; name the script itself."),
        ([], 2, "Name the program to record: gpumem run train.py"),
        (["--no-such-option", "train.py"], 2, "No such option"),
        (["--memory-limit", "much", "train.py"], 2, "'much' is no size"),
        (["--nvml-interval", "-1", "train.py"], 2, "Invalid value for '--nvml-interval'"),
        (["-o", "old.gpumem", "train.py"], 2, "old.gpumem exists already; choose another name with -o"),
        (["-o", "no/out.gpumem", "train.py"], 3, "no is not there; make the folder first"),
        (["-o", "/proc/out.gpumem", "train.py"], 3, "/proc cannot be written to"),
        (["garbled"], 2, "garbled cannot be run: Exec format error."),
    ],
)
def test_refusal_is_one_sentence(tmp_path: Path, words: list[str], code: int, sentence: str) -> None:
    write_program(tmp_path, "print('never')")
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.gpumem").write_text("old")
    (tmp_path / "garbled").write_bytes(b"\x7f\0\0\0")
    (tmp_path / "garbled").chmod(0o755)
    assert sentence in refused(run_recorded(tmp_path, *words), code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "garbled", "old.gpumem", "train.py"]
    assert (tmp_path / "old.gpumem").read_text() == "old"


def test_force_replaces_the_old_trace(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem; gpumem.mark('new')")
    (tmp_path / "old.gpumem").write_text("old")
    assert run_recorded(tmp_path, "-f", "-o", "old.gpumem", "train.py").code == 0
    assert [mark.name for mark in only_trace(tmp_path).marks] == ["new"]


def test_any_name_may_be_given_to_a_trace(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem; gpumem.mark('new')")
    note = run_recorded(tmp_path, "-o", "run.trace", "train.py").note
    assert "gpumem: next: gpumem summary run.trace" in note.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.trace", "train.py"]


def test_doctor_leaves_with_1_where_something_is_broken(tmp_path: Path) -> None:
    assert run(gpumem_command("doctor"), tmp_path).code == 0
    assert run(gpumem_command("doctor", "--json"), Path("/proc")).code == 1


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["-c", "pass"], []),
        (["garbled"], []),
        (["-c", "open('new/log.txt', 'w').close()"], ["log.txt"]),
        (["-c", "import gpumem; gpumem.mark('here')"], ["gpumem"]),
    ],
    ids=["nothing recorded", "nothing started", "the program's own file", "recorded"],
)
def test_new_folder_is_left_only_with_something_in_it(tmp_path: Path, words: list[str], left: list[str]) -> None:
    (tmp_path / "garbled").write_bytes(b"\x7f\0\0\0")
    (tmp_path / "garbled").chmod(0o755)
    run_recorded(tmp_path, "-o", "new/", *words)
    assert (tmp_path / "new").exists() == bool(left)
    assert [path.name.rsplit(".", 1)[-1] for path in (tmp_path / "new").glob("*.gpumem")] == left or left == ["log.txt"]


def test_folder_that_stood_there_stays(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ended = run_recorded(tmp_path, "-o", "old/", "-c", "pass")
    assert "Nothing was recorded" in ended.note
    assert (tmp_path / "old").is_dir()


def test_process_that_begins_when_its_run_has_removed_the_folder_makes_it_again(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import os, time\nwhile os.path.exists('new'): time.sleep(0.01)\nimport gpumem\ngpumem.mark('late')\n"
        "open('marked', 'w').close()\n",
        "late.py",
    )
    started = "import subprocess as s, sys; s.Popen([sys.executable, 'late.py'], stdin=s.DEVNULL, stdout=s.DEVNULL, "
    run_recorded(tmp_path, "-o", "new/", "-c", f"{started}stderr=s.DEVNULL)")
    for _ in range(6000):
        if (tmp_path / "marked").exists():
            break
        time.sleep(0.01)
    [journal] = (tmp_path / "new").iterdir()
    assert [mark.name for mark in open_trace(journal).marks] == ["late"]
