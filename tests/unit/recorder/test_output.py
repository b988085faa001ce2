"""Where traces go, and what is refused before a program starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.errors import InputError, OutputUnwritable, TargetExists, UsageError
from gpumem.recorder import output
from gpumem.recorder.output import find_output
from native_journal import NativeJournal


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_default_is_the_current_folder(tmp_path: Path) -> None:
    found = find_output(None, force=False)
    assert (found.folder, found.first_name, found.is_apart) == (tmp_path, None, False)


def test_file_is_the_first_name(tmp_path: Path) -> None:
    found = find_output("run.gpumem", force=False)
    assert (found.folder, found.first_name) == (tmp_path, "run.gpumem")


def test_slash_makes_a_folder_and_an_existing_one_needs_none(tmp_path: Path) -> None:
    assert find_output("runs/", force=False).folder == tmp_path / "runs"
    assert (tmp_path / "runs").is_dir()
    assert (find_output("runs", force=False).folder, find_output("runs", force=False).first_name) == (
        tmp_path / "runs",
        None,
    )


def test_existing_trace_is_not_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "run.gpumem").write_text("old")
    with pytest.raises(TargetExists, match=r"run\.gpumem exists already; .* -f"):
        find_output("run.gpumem", force=False)
    assert find_output("run.gpumem", force=True).first_name == "run.gpumem"
    assert (tmp_path / "run.gpumem").read_text() == "old"


def test_journal_of_a_killed_run_is_not_overwritten_without_force(tmp_path: Path) -> None:
    journal = tmp_path / "run.gpumem.journal"
    NativeJournal(journal, bytes(16)).close("exit")
    (tmp_path / "run.gpumem.part").touch()
    with pytest.raises(UsageError, match=r"is left of a run that was killed; finish it with gpumem import"):
        find_output("run.gpumem", force=False)
    find_output("run.gpumem", force=True)
    assert list(tmp_path.iterdir()) == []


def test_journal_under_way_is_never_overwritten(tmp_path: Path) -> None:
    writer = NativeJournal(tmp_path / "run.gpumem.journal", bytes(16))
    with pytest.raises(UsageError, match="still records to"):
        find_output("run.gpumem", force=True)
    writer.close()


def test_foreign_file_in_the_journals_place_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.gpumem.journal").write_text("mine")
    with pytest.raises(InputError):
        find_output("run.gpumem", force=True)
    assert (tmp_path / "run.gpumem.journal").read_text() == "mine"


def test_missing_folder_is_not_made_for_a_file() -> None:
    with pytest.raises(OutputUnwritable, match="is not there; make the folder first"):
        find_output("no/run.gpumem", force=False)
    with pytest.raises(OutputUnwritable, match="cannot be made"):
        find_output("no/such/", force=False)


def test_file_with_a_slash_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, not a folder"):
        find_output("file/", force=False)


def test_unwritable_folder_is_refused() -> None:
    with pytest.raises(OutputUnwritable, match="cannot be written to"):
        find_output("/proc/run.gpumem", force=False)


def test_journals_stand_apart_where_files_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "has_mapped_files", lambda folder: False)
    found = find_output("run.gpumem", force=False)
    assert found.is_apart
    assert found.folder == tmp_path
    assert found.journal_folder.is_dir()
    found.journal_folder.rmdir()


def test_folder_is_removed_again_only_if_it_was_made_and_nothing_stands_in_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("old/", "new/", "used/"):
        found = find_output(name, force=False)
        if name == "used/":
            (tmp_path / "used" / "notes.txt").touch()
        output.remove_unused(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "used"]
