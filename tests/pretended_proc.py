"""A pretended /proc: a folder with the files of processes that a test describes."""

from __future__ import annotations

import os
from pathlib import Path


class PretendedProc:
    """Writes processes into a folder; `root` is what takes the place of /proc."""

    def __init__(self, root: Path, *, own_namespace: str = "pid:[4026531836]") -> None:
        self.root = root
        self.add(1, name="systemd", command=("/sbin/init",))
        own = self.add(os.getpid(), name="python3", command=("gpumem", "explain"), parent=1)
        (own / "status").write_text(f"Name:\tpython3\nNSpid:\t{os.getpid()}\n")
        (own / "ns").mkdir()
        (own / "ns" / "pid").symlink_to(own_namespace)
        (root / "self").symlink_to(str(os.getpid()))
        (root / "meminfo").write_text("MemTotal: 1 kB\n")

    def add(
        self,
        pid: int,
        *,
        name: str = "python3",
        command: tuple[str, ...] = ("python3", "train.py"),
        parent: int = 1,
        group: int | None = None,
        session: int | None = None,
        state: str = "S",
        files: tuple[str, ...] | None = (),
        journal: Path | None = None,
        container: str | None = None,
    ) -> Path:
        """A process; group and session are its own unless given, `files` None makes them unreadable."""
        folder = self.root / str(pid)
        folder.mkdir()
        ids = f"{parent} {pid if group is None else group} {pid if session is None else session}"
        (folder / "stat").write_text(f"{pid} ({name}) {state} {ids} 0 -1 4194560 100", encoding="utf-8")
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}\t{pid % 100}\n")
        (folder / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
        (folder / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n" if container else "0::/user\n")
        mapped = f"7f0000000000-7f0000001000 rw-s 00000000 08:01 77  {journal}\n" if journal else ""
        (folder / "maps").write_text(f"55d000000000-55d000001000 r--p 00000000 08:01 5  /usr/bin/python3\n{mapped}")
        if files is not None:
            (folder / "fd").mkdir()
            for number, target in enumerate(("/dev/null", *files)):
                (folder / "fd" / str(number)).symlink_to(target)
        return folder
