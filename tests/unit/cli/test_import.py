"""`gpumem import`: finishes the journals of killed programs, copies from running ones, never overwrites unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.seal.journal_sealer import JournalSealer
from gpumem.trace.file import read_trace
from gpumem_cli.main import run_command_line
from journal_maker import JournalMaker
from recorded_snapshots import recording_path


def killed_journal(path: Path) -> Path:
    maker = JournalMaker(path)
    maker.pairs(100)
    sealer = JournalSealer(path)
    sealer.seal_full_windows()
    sealer.close()
    maker.kill()
    return path


@pytest.mark.parametrize("with_name", [True, False])
def test_journal_of_a_killed_process_becomes_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], with_name: bool
) -> None:
    journal = killed_journal(tmp_path / "a.gpumem.journal")
    target = tmp_path / ("b.gpumem" if with_name else "a.gpumem")
    assert run_command_line(["import", str(journal), *(["-o", str(target)] if with_name else [])]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote {target}: 100 events, killed with its recorder\n" in captured.err
    assert read_trace(target).event_count == 100
    assert [entry.name for entry in tmp_path.iterdir()] == [target.name]


def test_existing_target_is_kept_with_exit_2_and_overwritten_with_force(tmp_path: Path) -> None:
    journal = killed_journal(tmp_path / "a.gpumem.journal")
    target = tmp_path / "b.gpumem"
    target.write_text("mine")
    assert run_command_line(["import", str(journal), "-o", str(target)]) == 2
    assert target.read_text() == "mine"
    assert journal.exists()
    assert run_command_line(["import", "-q", str(journal), "-o", str(target), "-f"]) == 0
    assert read_trace(target).event_count == 100


def test_journal_of_a_running_process_is_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(70)
    assert run_command_line(["import", str(maker.path), "-o", str(tmp_path / "now.gpumem")]) == 0
    assert "70 events, its program still runs\n" in capsys.readouterr().err
    maker.pairs(30)
    maker.close()
    finished = JournalSealer(maker.path).finish("exit")
    assert (read_trace(tmp_path / "now.gpumem").event_count, finished.event_count) == (70, 100)
    assert run_command_line(["summary", str(tmp_path / "now.gpumem")]) == 0
    assert "It was copied while its program ran: the figures" in capsys.readouterr().out


def test_trace_that_is_a_journal_yet_is_found_by_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_journal(tmp_path / "a.gpumem.journal")
    assert run_command_line(["import", str(tmp_path / "a.gpumem")]) == 0
    assert f"wrote {tmp_path / 'a.gpumem'}: 100 events, killed with its recorder\n" in capsys.readouterr().err
    maker = JournalMaker(tmp_path / "b.gpumem.journal")
    maker.pairs(70)
    assert run_command_line(["import", str(tmp_path / "b.gpumem"), "-o", str(tmp_path / "now.gpumem")]) == 0
    assert read_trace(tmp_path / "now.gpumem").event_count == 70


def test_trace_is_copied_and_needs_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    JournalSealer(killed_journal(tmp_path / "a.gpumem.journal")).finish("exit")
    assert run_command_line(["import", str(tmp_path / "a.gpumem")]) == 2
    assert "gpumem import" in capsys.readouterr().err
    assert run_command_line(["import", str(tmp_path), "-o", str(tmp_path / "b.gpumem")]) == 0
    assert read_trace(tmp_path / "b.gpumem").event_count == 100


@pytest.mark.parametrize(
    ("source", "target"), [("missing", "b.gpumem"), ("text", "b.gpumem"), (".", "no/such/b.gpumem")]
)
def test_wrong_source_or_target_is_exit_3_with_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, target: str
) -> None:
    killed_journal(tmp_path / "a.gpumem.journal")
    (tmp_path / "text").write_text("hello")
    assert run_command_line(["import", str(tmp_path / source), "-o", str(tmp_path / target)]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str((tmp_path / target).parent if source == "." else tmp_path / source) in said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.gpumem.journal", "a.gpumem.part", "text"]


def test_running_process_keeps_the_name_of_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(70)
    for words in ([], ["-o", str(tmp_path / "a.gpumem")], ["-f"]):
        assert run_command_line(["import", str(maker.path), *words]) == 2
        assert "belongs to a program that still runs" in capsys.readouterr().err
    maker.close()
    assert JournalSealer(maker.path).finish("exit").path == tmp_path / "a.gpumem"


def test_imported_snapshot_can_be_imported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, twice = tmp_path / "once.gpumem", tmp_path / "twice.gpumem"
    assert run_command_line(["import", str(recording_path("leak")), "-o", str(once)]) == 0
    assert f"wrote {once}: 2,060 events\n" in capsys.readouterr().err
    assert run_command_line(["import", str(once), "-o", str(twice)]) == 0
    assert run_command_line(["summary", str(twice), "--by", "thread"]) == 0
    assert "(thread not known)" in capsys.readouterr().out
