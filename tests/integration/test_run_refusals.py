"""What `gpumem run` refuses before it starts the program: one sentence, exit 2 or 3, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

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
