"""Nothing but a file is ever replaced by one, whatever -f says."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpumem.errors import OutputUnwritable, TargetExists, UsageError
from gpumem.trace.targets import check_replaceable, check_writable


@pytest.fixture
def socket_at() -> Iterator[Callable[[Path], None]]:
    with socket.socket(socket.AF_UNIX) as opened:
        yield lambda path: opened.bind(str(path))


def test_a_free_name_may_be_taken_and_a_file_with_force_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.gpumem"
    check_replaceable(target, force=False)
    target.write_text("old")
    with pytest.raises(TargetExists, match=r"a\.gpumem exists already; choose another name with --report, or"):
        check_replaceable(target, force=False, option="--report")
    check_replaceable(target, force=True)


def test_a_link_to_a_file_or_to_nothing_is_taken_with_force_alone(tmp_path: Path) -> None:
    link = tmp_path / "latest.html"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TargetExists):
        check_replaceable(link, force=False)
    check_replaceable(link, force=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_a_folder_or_a_socket_is_never_replaced(
    tmp_path: Path, socket_at: Callable[[Path], None], force: bool
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    socket_at(tmp_path / "socket")
    for name, kind in (("pipe", "a pipe"), ("folder", "a folder"), ("socket", "a socket")):
        with pytest.raises(UsageError, match=f"{name} is {kind}, not a file; choose another name with -o"):
            check_replaceable(tmp_path / name, force=force)


@pytest.mark.parametrize("force", [False, True])
def test_a_device_or_a_link_to_one_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(UsageError, match="is a device, not a file"):
            check_replaceable(path, force=force)


def test_a_name_for_standard_output_is_never_replaced_even_where_that_is_a_file(tmp_path: Path) -> None:
    with (tmp_path / "redirected").open("w") as file:
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{file.fileno()}")
        with pytest.raises(UsageError, match="a name for what a process has open"):
            check_replaceable(tmp_path / "stdout", force=True)


def test_a_folder_that_is_not_there_or_takes_no_files_is_told(tmp_path: Path) -> None:
    check_writable(tmp_path)
    with pytest.raises(OutputUnwritable, match="nowhere is not there; make the folder first"):
        check_writable(tmp_path / "nowhere")
    with pytest.raises(OutputUnwritable, match="/proc cannot be written to"):
        check_writable(Path("/proc"))
