"""Recording from inside a program: gpumem.record(), without gpumem run.

Owns: the session's life, from the sealer's start to the sealed trace. Must not know: how a trace is made, what a
recording inside another one is (recording_part.py).
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import secrets
import sys
from pathlib import Path
from types import TracebackType

from gpumem.errors import InputError, UsageError
from gpumem.recorder import recording, torch_hook
from gpumem.recorder.interrupted import remember_interrupt
from gpumem.recorder.notes import say
from gpumem.recorder.recording import ensure_started as ensure_started
from gpumem.recorder.recording_part import RecordingPart
from gpumem.recorder.sealer import Sealer
from gpumem.recorder.spec import TRACE_SUFFIX, RecordSpec, find_default_stem, milliseconds_of

SEALING_SECONDS_AT_MOST = 60.0
"""How long the end of a session waits for its trace; two seconds are the rule."""


class record:  # noqa: N801 (a function to its users, as contextlib's classes are)
    """Records this process between `start()` and `stop()`, or inside a `with`; the trace is complete afterwards.

    `path`: the trace to write, by default `<program>.<pid>.gpumem` in the current folder. `nvml_interval`: seconds
    between two NVML readings, 0 for none. `force`: overwrite an existing trace. Raises UsageError for a second
    recording to the same path, TargetExists, and OutputUnwritable.

    Where this process is recorded already, by `gpumem run` or by another gpumem.record, that recording goes on and
    holds this one too, between two marks named after `path`. No file of its own is written then, one sentence on
    stderr says so, and `path` is the trace of the recording under way, complete when that one ends.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        stacks: bool = True,
        nvml_interval: float = 0.1,
        force: bool = False,
    ) -> None:
        self.path = _default_path() if path is None else Path(path).absolute()
        if not self.path.name:
            raise UsageError(f"{self.path} is a folder, not a file; choose another name.")
        self._spec = RecordSpec(
            run_id=secrets.token_hex(16),
            folder=str(self.path.parent),
            stem=self.path.name.removesuffix(TRACE_SUFFIX),
            main_pid=os.getpid(),
            first_name=self.path.name,
            stacks=stacks,
            nvml_interval_ms=milliseconds_of(nvml_interval),
            sealed_by_other=False,
        )
        self._force = force
        self._sealer: Sealer | None = None
        self._part: RecordingPart | None = None
        self._own_path = self.path

    def start(self) -> record:
        """Begins to record; a GPU in use already is recorded with what it holds."""
        if self._sealer is not None or self._part is not None:
            raise UsageError("This recording has been started already; stop it first, or make another one.")
        self.path = self._own_path
        with recording.one_at_a_time():
            if recording.is_armed() and recording.ensure_started():
                self._part = RecordingPart.begin(self.path)
                self.path = self._part.outer.trace_path
                return self
            self._prepare_folder()
            self._begin()
        atexit.register(self._stop_at_exit)
        _record_own_allocators()
        if "torch" in sys.modules:
            torch_hook.attach_now()
        else:
            torch_hook.install()
        return self

    def stop(self) -> Path:
        """Ends recording and waits for the sealed trace; its path.

        Raises InputError when it could not be sealed, and UsageError when the recording it is a part of ended before.
        """
        if self._part is not None:
            part, self._part = self._part, None
            part.end()
            return self.path
        if self._sealer is None:
            raise UsageError("This recording has not been started, or has been stopped already.")
        sealer, self._sealer = self._sealer, None
        atexit.unregister(self._stop_at_exit)
        torch_hook.record_end_facts()
        recording.end("exit")
        if self._force:
            sealer.tell_replace(self.path)
        finish_own_journal(sealer, self._spec.journal_path(self.path))
        if self._spec.journal_folder is not None:
            os.rmdir(self._spec.journal_folder)
        return self.path

    def _begin(self) -> None:
        sealer = Sealer(self._spec.journals, self._spec.run_id)
        try:
            recording.begin(self.path, self._spec)
        except BaseException:
            sealer.close()
            raise
        self._sealer = sealer

    def __enter__(self) -> record:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _stop_at_exit(self) -> None:
        """Stops a recording that the program left running; not in a forked child, whose recording it is not."""
        if self._spec.main_pid == os.getpid():
            self.stop()
            remember_interrupt()

    def _prepare_folder(self) -> None:
        """Checks the target; where its folder cannot map files, the journal stands in a temporary one."""
        from gpumem.recorder.output import check_target, find_journal_folder
        from gpumem.trace.targets import check_writable

        folder = self.path.parent
        check_writable(folder, option=None)
        check_target(self.path, force=self._force, option=None)
        journal_folder = find_journal_folder(folder)
        if journal_folder != folder:
            self._spec = dataclasses.replace(self._spec, journal_folder=str(journal_folder))
            say(f"{folder} cannot map files, so the journal stands in {journal_folder}.")


def _record_own_allocators() -> None:
    """Has the state of our own allocators recorded, if this process has made any."""
    own_allocators = sys.modules.get("gpumem.recorder.own_allocators")
    if own_allocators is not None:
        own_allocators.record_found()


def finish_own_journal(sealer: Sealer, journal: Path) -> None:
    """Has the closed journal of this process made a trace, and lets go of the sealer.

    Raises InputError when that fails.
    """
    try:
        sealer.tell_ended(os.getpid(), "exit")
        sealer.tell_end()
        is_done = sealer.wait_for_journal(journal, seconds_at_most=SEALING_SECONDS_AT_MOST)
        for failed in sealer.failed:
            raise InputError(f"{failed.journal} could not be sealed: {failed.error}")
        if not is_done:
            from shlex import quote

            raise InputError(
                f"{journal} is not sealed, since its sealer died ({sealer.complaint or 'killed'}); "
                f"finish it with gpumem import {quote(str(journal))} -o {quote(str(journal.with_suffix('')))}."
            )
    finally:
        sealer.close()


def _default_path() -> Path:
    script = sys.argv[0] if sys.argv and isinstance(sys.argv[0], str) else ""
    program = "" if script in ("-c", "-m") else Path(script).stem.lstrip("-.")  # `-` is standard input
    folder = Path.cwd()
    return folder / (find_default_stem(folder, program or "python", os.getpid()) + TRACE_SUFFIX)
