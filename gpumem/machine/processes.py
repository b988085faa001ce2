"""Processes as /proc shows them: who they are, who their parents are, which pid namespace they live in.

Owns: reading /proc. Must not know: NVML, traces. `root` is another folder in tests.
A process that ends while it is read is as if it had never been; what its owner hides from us is None.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's name of the pid namespace that all others are in."""
JOURNAL_SUFFIX = ".journal"
JOURNAL_MAGIC = b"GPUMEMJ1"
"""The name and beginning of a journal, as the recorder writes it (a test holds both to trace/)."""

_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")


@dataclass(frozen=True, slots=True)
class Process:
    """A process; ids are those of the namespace that /proc belongs to."""

    pid: int
    parent_pid: int
    group_pid: int
    session_pid: int
    state: str
    """One letter, as `ps` has it: R running, S sleeping, D waiting, T stopped, Z defunct."""
    name: str
    command: tuple[str, ...]
    """Empty of a kernel thread, a defunct process, or where it is hidden."""
    user: str
    container: str | None
    """The beginning of the id of the container it runs in, by its control group."""


def read_own_pids(root: Path = PROC) -> frozenset[int]:
    """Every pid this process is known by, in its own pid namespace and in those around it that /proc shows: which of
    them drivers list it by depends on the driver.
    """
    return frozenset({os.getpid(), *_read_namespace_pids(root)})


def shows_own_namespace(root: Path = PROC) -> bool:
    """Whether /proc numbers processes as this one's pid namespace does: not where it is the host's inside a container
    that has not mounted its own, nor the other way round.
    """
    return _link_target(root / "self") == str(os.getpid()) and len(_read_namespace_pids(root)) <= 1


def has_own_pid_namespace(root: Path = PROC) -> bool | None:
    """Whether this process lives in a pid namespace of its own, as in a container; None where that is hidden."""
    try:
        return os.readlink(root / "self" / "ns" / "pid") != INITIAL_PID_NAMESPACE
    except OSError:
        return None


def read_processes(root: Path = PROC) -> dict[int, Process]:
    """Every process that /proc lists, by pid."""
    found = (read_process(int(entry.name), root) for entry in _entries(root) if entry.name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def read_process(pid: int, root: Path = PROC) -> Process | None:
    """The process with this pid; None where there is none."""
    folder = root / str(pid)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="surrogateescape")
        owner = folder.stat().st_uid
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets and blanks too.
    name, _, rest = stat[stat.find("(") + 1 :].rpartition(")")
    fields = rest.split()
    if len(fields) < 4:
        return None
    return Process(
        pid=pid,
        state=fields[0],
        parent_pid=int(fields[1]),
        group_pid=int(fields[2]),
        session_pid=int(fields[3]),
        name=name,
        command=_read_command(folder),
        user=_user_name(owner),
        container=_read_container(folder),
    )


def find_device_files(pid: int, root: Path = PROC) -> tuple[str, ...] | None:
    """The NVIDIA device files that a process holds open, by name; None where its owner hides them from us."""
    try:
        entries = list((root / str(pid) / "fd").iterdir())
    except OSError:
        return None
    targets = {_link_target(entry) for entry in entries}
    return tuple(sorted(target for target in targets if target is not None and target.startswith("/dev/nvidia")))


def find_journal(pid: int, root: Path = PROC) -> Path | None:
    """The journal that a process records into, by its mapping of it; None without one, or where that is hidden."""
    try:
        maps = (root / str(pid) / "maps").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None
    for line in maps.split("\n"):  # the one sign that the kernel lets no name hold
        if line.endswith(JOURNAL_SUFFIX) and "/" in line:
            mapped = Path(line[line.index("/") :])
            # In a container it is another file system's path, seen through the process itself.
            for path in (mapped, root / str(pid) / "root" / mapped.relative_to("/")):
                if _begins_with(path, JOURNAL_MAGIC):
                    return path
    return None


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def _read_namespace_pids(root: Path) -> tuple[int, ...]:
    """The pids of this process from the namespace of /proc inwards to its own; empty where /proc does not say."""
    try:
        status = (root / "self" / "status").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ()
    for line in status.split("\n"):
        if line.startswith("NSpid:"):
            return tuple(int(word) for word in line.split()[1:])
    return ()


def _read_command(folder: Path) -> tuple[str, ...]:
    try:
        words = (folder / "cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return ()
    return tuple(word.decode("utf-8", "surrogateescape") for word in words.split(b"\0")) if words else ()


def _read_container(folder: Path) -> str | None:
    try:
        groups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _CONTAINER.search(groups)
    return found[1][:12] if found else None


def _user_name(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


def _link_target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None
