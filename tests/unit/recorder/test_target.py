"""What SCRIPT is: Python's, or a program of its own."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from gpumem.errors import ProgramNotFound
from gpumem.recorder.target import TargetKind, find_code, find_module, find_script


def make_file(path: Path, mode: int = 0o644, text: str = "#!/bin/sh\n") -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [
        ("train.py", 0o644, TargetKind.SCRIPT),
        ("train.py", 0o755, TargetKind.SCRIPT),
        ("train.pyc", 0o644, TargetKind.SCRIPT),
        ("train", 0o644, TargetKind.SCRIPT),
        ("train.txt", 0o644, TargetKind.SCRIPT),
        ("train", 0o755, TargetKind.PROGRAM),
        ("train.sh", 0o755, TargetKind.PROGRAM),
    ],
)
def test_suffix_and_permission_decide(tmp_path: Path, name: str, mode: int, kind: TargetKind) -> None:
    target = find_script(make_file(tmp_path / name, mode), ["-x"])
    assert (target.kind, target.stem) == (kind, "train")
    command = [str(tmp_path / name), "-x"]
    assert target.command[-2:] == command
    assert target.command[:-2] == ([] if kind is TargetKind.PROGRAM else [sys.executable])


def test_folder_and_archive_need_a_main(tmp_path: Path) -> None:
    (tmp_path / "application").mkdir()
    with pytest.raises(ProgramNotFound, match=r"holds no __main__\.py"):
        find_script(str(tmp_path / "application"), [])
    make_file(tmp_path / "application" / "__main__.py")
    assert find_script(str(tmp_path / "application"), []).kind is TargetKind.FOLDER
    for name, member in (("with.zip", "__main__.py"), ("without.zip", "other.py")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, "")
    assert find_script(str(tmp_path / "with.zip"), []).kind is TargetKind.FOLDER
    with pytest.raises(ProgramNotFound):
        find_script(str(tmp_path / "without.zip"), [])


def test_file_here_comes_before_a_program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_script("sh", ["a"]).command == ["sh", "a"]
    make_file(tmp_path / "sh", 0o755)
    assert find_script("sh", ["a"]).command == ["./sh", "a"]


def test_script_whose_name_begins_with_a_dash_is_no_flag_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_file(tmp_path / "-x.py")
    target = find_script("-x.py", [])
    assert (target.command[-1], target.stem) == ("./-x.py", "x")


def test_missing_program_is_named() -> None:
    with pytest.raises(ProgramNotFound, match=r"no/such\.py is neither a file here nor a program on PATH"):
        find_script("no/such.py", [])


def test_module_and_code_are_named_after_themselves() -> None:
    module = find_module("package.train", ["-m"])
    assert (module.stem, module.command[-3:]) == ("train", ["-m", "package.train", "-m"])
    code = find_code("pass", [])
    assert (code.stem, code.command[-2:]) == ("command", ["-c", "pass"])
