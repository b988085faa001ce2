"""Processes as /proc shows them."""

from __future__ import annotations

import os
from pathlib import Path

from gpumem.machine import processes
from gpumem.machine.processes import (
    find_device_files,
    find_journal,
    has_own_pid_namespace,
    read_own_pids,
    read_process,
    read_processes,
    shows_own_namespace,
)
from gpumem.trace.journal import JOURNAL_SUFFIX
from gpumem.trace.journal_layout import JOURNAL_MAGIC
from pretended_proc import PretendedProc


def test_own_pid_is_among_the_own_pids() -> None:
    assert os.getpid() in read_own_pids()


def test_own_process_is_read_from_the_real_proc() -> None:
    own = read_process(os.getpid())
    assert own is not None
    assert (own.pid, own.parent_pid, own.group_pid) == (os.getpid(), os.getppid(), os.getpgrp())
    assert own.session_pid == os.getsid(0)
    assert any("python" in word for word in own.command)
    assert find_device_files(os.getpid()) == ()
    assert find_journal(os.getpid()) is None


def test_process_is_described_by_its_files(tmp_path: Path) -> None:
    proc = PretendedProc(tmp_path)
    container = "0123456789ab" + "c" * 52
    proc.add(77, name="a) (b", command=("python3", "a b.py"), parent=5, group=70, session=60, container=container)
    found = read_process(77, tmp_path)
    assert found is not None
    assert (found.name, found.command) == ("a) (b", ("python3", "a b.py"))
    assert (found.parent_pid, found.group_pid, found.session_pid, found.state) == (5, 70, 60, "S")
    assert found.container == "0123456789ab"
    assert read_process(78, tmp_path) is None
    assert set(read_processes(tmp_path)) == {1, 77, os.getpid()}


def test_name_that_is_no_text_and_process_cut_short_are_borne(tmp_path: Path) -> None:
    proc = PretendedProc(tmp_path)
    (proc.add(80) / "stat").write_bytes(b"80 (\xff\x1b) Z 1 80 80 0")
    (proc.add(81) / "stat").write_bytes(b"81 (gone)")
    defunct = read_process(80, tmp_path)
    assert defunct is not None
    assert (defunct.name, defunct.state) == ("\udcff\x1b", "Z")
    assert read_process(81, tmp_path) is None


def test_names_cannot_pass_for_lines_of_their_own(tmp_path: Path) -> None:
    folder = PretendedProc(tmp_path).add(82)
    own = tmp_path / str(os.getpid())
    (own / "status").write_text("Name:\ta\x85NSpid:\tx\nNSpid:\t82\t7\n", encoding="utf-8")
    (folder / "maps").write_text("7f00-7f01 rw-s 00 08:01 7  /a\x85b.gpumem.journal\n", encoding="utf-8")
    assert read_own_pids(tmp_path) == {82, 7, os.getpid()}
    assert find_journal(82, tmp_path) is None


def test_device_files_are_told_from_hidden_ones(tmp_path: Path) -> None:
    proc = PretendedProc(tmp_path)
    proc.add(90, files=("/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia0"))
    proc.add(91, files=None)
    assert find_device_files(90, tmp_path) == ("/dev/nvidia-uvm", "/dev/nvidia0")
    assert find_device_files(91, tmp_path) is None


def test_journal_is_found_by_the_process_s_mapping_of_it(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    proc = PretendedProc(tmp_path / "proc")
    written = tmp_path / "my train.1.gpumem.journal"
    written.write_bytes(JOURNAL_MAGIC + b"the rest")
    proc.add(5, journal=written)
    inside = Path("/nowhere/on/this/machine/train.2.gpumem.journal")
    seen = proc.add(6, journal=inside) / "root" / inside.relative_to("/")
    seen.parent.mkdir(parents=True)
    seen.write_bytes(JOURNAL_MAGIC)
    foreign = tmp_path / "database.journal"
    foreign.write_bytes(b"no journal of ours")
    proc.add(7, journal=foreign)
    assert find_journal(5, proc.root) == written
    assert find_journal(6, proc.root) == seen
    assert find_journal(7, proc.root) is None
    assert (processes.JOURNAL_SUFFIX, processes.JOURNAL_MAGIC) == (JOURNAL_SUFFIX, JOURNAL_MAGIC)


def test_proc_of_another_pid_namespace_is_told_from_our_own(tmp_path: Path) -> None:
    assert shows_own_namespace()
    assert shows_own_namespace(PretendedProc(tmp_path).root)
    status = tmp_path / str(os.getpid()) / "status"
    status.write_text(f"Name:\tpython3\nNSpid:\t{os.getpid()}\t1\n")  # the host's, and by chance the same number
    assert not shows_own_namespace(tmp_path)
    status.write_text("Name:\tpython3\n")  # of a kernel that has no NSpid
    assert shows_own_namespace(tmp_path)
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to("4000001")
    assert not shows_own_namespace(tmp_path)
    (tmp_path / "self").unlink()  # an inner namespace's, in which this process has no number
    assert not shows_own_namespace(tmp_path)


def test_pid_namespace_is_told_from_the_initial_one(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "inside").mkdir()
    assert has_own_pid_namespace(PretendedProc(tmp_path / "host").root) is False
    assert has_own_pid_namespace(PretendedProc(tmp_path / "inside", own_namespace="pid:[4026532001]").root) is True
    assert has_own_pid_namespace(tmp_path / "nowhere") is None
