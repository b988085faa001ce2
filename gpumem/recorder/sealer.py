"""The sealer as its parent sees it: a process that turns the run's journals into traces.

Owns: starting it, the lines to and from it, starting it again once when it dies. Must not know: journals' content.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpumem.recorder.interpreter import helper_command, helper_environment

_READ_BYTES = 65536
_DETACHED = ["/bin/sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh"]
"""Starts a command and leaves it alone: it may outlive us, and the program never has a child it did not start."""


@dataclass(frozen=True, slots=True)
class FinishedTrace:
    """A journal that became a complete trace."""

    journal: Path
    path: Path
    pid: int
    events: int
    ended_by: str
    torch_note: str | None = None
    """Why PyTorch's allocator was not recorded in it, as JSON."""


@dataclass(frozen=True, slots=True)
class FailedJournal:
    """A journal that could not be turned into a trace, and why."""

    journal: Path
    error: str


class Sealer:
    """The sealer of one run; what it reported stands in `finished` and `failed`."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.finished: list[FinishedTrace] = []
        self.failed: list[FailedJournal] = []
        self._command = [*helper_command("gpumem.seal"), "--folder", str(folder), "--run-id", run_id]
        self._told: list[bytes] = []
        self._at_end = False
        self._idle = False
        self._unread = b""
        self._restarted = False
        # Not our own stderr: whoever reads that would wait for the sealer, which may outlive us.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = self._start()

    @property
    def output(self) -> int:
        """The descriptor to watch: `read_available` has something to do when it can be read."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to seal but journals of living processes."""
        return self._idle

    @property
    def complaint(self) -> str:
        """The last line that the sealer wrote to its stderr; empty when it wrote none."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace").strip().rpartition("\n")[2]

    def tell_ended(self, pid: int, ended_by: str) -> None:
        """Says how process `pid` ended."""
        self._tell({"ended": {"pid": pid, "ended_by": ended_by}})

    def tell_discard(self, pid: int) -> None:
        """Says that the journal of process `pid` holds nothing worth keeping."""
        self._tell({"discard": {"pid": pid}})

    def tell_replace(self, trace: Path) -> None:
        """Says that a finished trace of this name may be replaced by the one of this run."""
        self._tell({"replace": str(trace)})

    def tell_end(self) -> None:
        """Says that the run is over: what is not sealed yet is sealed and finished now."""
        self._at_end = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read_available(self) -> bool:
        """Takes in what the sealer printed, waiting for the next bytes; False once it is gone for good."""
        received = os.read(self.output, _READ_BYTES)
        if received:
            *lines, self._unread = (self._unread + received).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            return True
        if self._idle or self._restarted:
            return False
        self._restart()
        return True

    def wait_until_done(self) -> bool:
        """Reads until everything is sealed; False when the sealer died twice."""
        while not self._idle:
            if not self.read_available():
                return self._idle
        return True

    def wait_for_journal(self, journal: Path, *, seconds_at_most: float) -> bool:
        """Reads until `journal` is sealed or has failed; False when the sealer died twice or the time is over.

        The run need not be over: forked children keep the sealer's stdin open, and it waits for them.
        """
        deadline = time.monotonic() + seconds_at_most
        while journal not in {*(one.journal for one in self.finished), *(one.journal for one in self.failed)}:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.output], [], [], left)[0] or not self.read_available():
                return False
        return True

    def close(self) -> None:
        """Lets go of the sealer: it ends by itself once nothing is left to do."""
        self._let_go()
        self._complaints.close()

    def _let_go(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: signals to the program's process group and terminal are not meant for it.
        process = subprocess.Popen(
            [*_DETACHED, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=helper_environment(os.environ),
            start_new_session=True,
            bufsize=0,
        )
        process.wait()
        return process

    def _restart(self) -> None:
        self._let_go()
        self._restarted = True
        self._unread = b""
        self._process = self._start()
        for line in self._told:
            self._write(line)
        if self._at_end:
            self.tell_end()

    def _tell(self, message: Mapping[str, object]) -> None:
        line = json.dumps(message).encode() + b"\n"
        self._told.append(line)
        self._write(line)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            # The sealer died: read_available sees its end, starts another and tells it everything again.
            return

    def _take(self, message: dict[str, dict[str, object]]) -> None:
        if "finished" in message:
            values = message["finished"]
            self.finished.append(
                FinishedTrace(
                    Path(str(values["journal"])),
                    Path(str(values["path"])),
                    int(str(values["pid"])),
                    int(str(values["events"])),
                    str(values["ended_by"]),
                    None if values["torch_note"] is None else str(values["torch_note"]),
                )
            )
        elif "failed" in message:
            self.failed.append(FailedJournal(Path(str(message["failed"]["journal"])), str(message["failed"]["error"])))
        elif "idle" in message:
            self._idle = True
