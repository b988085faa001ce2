"""`gpumem report` as it is typed: where the page goes, what is refused, what is left when it fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpumem.errors import TargetExists
from gpumem.trace.file import write_trace
from gpumem_cli.main import run_command_line
from gpumem_cli.report import write_page
from training_trace import training_trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_trace(training_trace(block_bytes_known=True), tmp_path / "train.4711.gpumem")
    return tmp_path


def report(*arguments: str, capture: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr; nothing goes to stdout."""
    code = run_command_line(["report", *arguments])
    out, err = capture.readouterr()
    assert out == ""
    return code, err


def test_page_is_named_after_the_trace_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = report("train.4711.gpumem", capture=capsys)
    assert code == 0
    assert err.startswith("gpumem: wrote train.4711.html (")
    page = folder / "train.4711.html"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    mask = os.umask(0)
    os.umask(mask)
    assert page.stat().st_mode & 0o777 == 0o666 & ~mask
    assert sorted(path.name for path in folder.iterdir()) == ["train.4711.gpumem", "train.4711.html"]


def test_quiet_says_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("-q", "train.4711.gpumem", "-o", "page.html", capture=capsys) == (0, "")
    assert (folder / "page.html").exists()


def test_page_that_exists_is_kept_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "page.html").write_text("mine")
    code, err = report("train.4711.gpumem", "-o", "page.html", capture=capsys)
    assert code == 2
    assert "page.html exists already; choose another name with -o, or overwrite it with -f." in err
    assert (folder / "page.html").read_text() == "mine"
    assert report("-qf", "train.4711.gpumem", "-o", "page.html", capture=capsys) == (0, "")
    assert (folder / "page.html").stat().st_size > 1000


def test_page_is_not_written_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = report("train.4711.gpumem", "-o", "-", capture=capsys)
    assert code == 2
    assert "A page is written to a file, not to standard output; name it with -o FILE.html." in err
    assert [path.name for path in folder.iterdir()] == ["train.4711.gpumem"]


def test_folder_is_asked_for_before_anything_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = report("missing.gpumem", "-o", "nowhere/page.html", capture=capsys)
    assert code == 3
    assert err == "gpumem: nowhere is not there; make the folder first, or choose another with -o.\n"


def test_folder_as_target_takes_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pages").mkdir()
    assert report("-q", "train.4711.gpumem", "-o", "pages", capture=capsys) == (0, "")
    assert (folder / "pages" / "train.4711.html").exists()


def test_trace_is_never_its_own_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "train.4711.gpumem").read_bytes()
    code, err = report("-f", "train.4711.gpumem", "-o", "train.4711.gpumem", capture=capsys)
    assert code == 2
    assert "is the trace itself" in err
    assert (folder / "train.4711.gpumem").read_bytes() == before


def test_unreadable_trace_leaves_no_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "foreign").write_bytes(b"no trace")
    code, err = report("foreign", "-o", "page.html", capture=capsys)
    assert code == 3
    assert "is no trace" in err
    assert not (folder / "page.html").exists()


def test_device_that_the_trace_lacks_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = report("train.4711.gpumem", "--device", "5", capture=capsys)
    assert code == 2
    assert "has no device 5; it has 0." in err


def test_page_that_would_be_too_large_is_drawn_more_coarsely(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report("-q", "train.4711.gpumem", capture=capsys) == (0, "")
    page_bytes = (folder / "train.4711.html").stat().st_size
    monkeypatch.setattr("gpumem_cli.report.PAGE_BYTES_MAX", page_bytes - 1000)
    assert report("-qf", "train.4711.gpumem", capture=capsys) == (0, "")
    assert (folder / "train.4711.html").stat().st_size < page_bytes - 1000


def test_page_goes_where_files_have_one_name_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)  # FAT and some network file systems
    write_page(folder / "a.html", b"<p>", force=False)
    with pytest.raises(TargetExists, match=r"a\.html exists already"):
        write_page(folder / "a.html", b"<b>", force=False)
    assert (folder / "a.html").read_bytes() == b"<p>"
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []
