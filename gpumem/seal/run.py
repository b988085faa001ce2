"""All journals of a run sealed while it goes on: which there are, when each has ended, what is said about it.

Owns: the folder scan, the words on stdin, the lines on stdout, when a journal is finished. Must not know: how a journal
is sealed (seal/journal_sealer.py).

A journal is ready to be finished once its process is dead or has closed it, and either somebody has said how the
process ended, or the run is over, or nobody has said anything for a moment.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpumem.errors import GpumemError, InputError, OutputUnwritable
from gpumem.seal.journal_sealer import FinishedTrace, JournalBusy, JournalSealer
from gpumem.trace.journal import JOURNAL_SUFFIX
from gpumem.trace.journal_facts import TORCH_NOTE

POLL_S = 0.1
WAIT_FOR_WORD_S = 1.0
KILLED = "killed"


@dataclass(slots=True)
class _Sealing:
    """A journal under way."""

    sealer: JournalSealer
    ended_since: float | None = None
    failed: bool = False


@dataclass(slots=True)
class RunSealer:
    """Seals the journals of run `run_id` in `folder`, and those told of by path, until none is left."""

    folder: Path
    run_id: str
    _sealings: dict[Path, _Sealing] = field(default_factory=dict)
    _told_paths: set[Path] = field(default_factory=set)
    _foreign: set[tuple[Path, int]] = field(default_factory=set)
    _ended: dict[int, str] = field(default_factory=dict)
    _discarded: set[int] = field(default_factory=set)
    _replaced: set[Path] = field(default_factory=set)
    _run_over: bool = False
    _said_idle: bool = False
    _can_speak: bool = True

    def run(self, words: int) -> None:
        """Seals until the run is over (end of file `words`) and no journal of it is left."""
        lines = _Lines(words)
        while True:
            for line in lines.wait(POLL_S):
                self._take_word(line)
            self._run_over = lines.at_end
            self._find_journals()
            for path, sealing in list(self._sealings.items()):
                self._advance(path, sealing)
            under_way = [sealing for sealing in self._sealings.values() if not sealing.failed]
            if self._run_over and not self._said_idle and not any(_has_ended(sealing) for sealing in under_way):
                self._said_idle = True
                self._say({"idle": True})
            if self._run_over and not under_way:
                return

    def _take_word(self, line: bytes) -> None:
        try:
            word = json.loads(line)
            ended, discarded = word.get("ended"), word.get("discard")
            journal, replaced = word.get("journal"), word.get("replace")
            if ended:
                self._ended[int(ended["pid"])] = str(ended["ended_by"])
            if discarded:
                self._discarded.add(int(discarded["pid"]))
            if journal:
                self._told_paths.add(Path(journal))
            if replaced:
                self._replaced.add(Path(replaced))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            print(f"gpumem seal: a word was not understood: {line!r}: {error}", file=sys.stderr)

    def _find_journals(self) -> None:
        for path in (*self._told_paths, *_journals_in(self.folder)):
            if path in self._sealings:
                continue
            try:
                key = (path, path.stat().st_ino)
                if key not in self._foreign:
                    self._open(path, key)
            except FileNotFoundError:
                self._told_paths.discard(path)

    def _open(self, path: Path, key: tuple[Path, int]) -> None:
        """Takes a journal on when it is of this run; one not written far enough to tell is looked at again."""
        try:
            sealer = JournalSealer(path)
        except (JournalBusy, InputError):
            return
        if sealer.journal.run_id != self.run_id:
            sealer.close()
            self._foreign.add(key)
            return
        self._sealings[path] = _Sealing(sealer)

    def _advance(self, path: Path, sealing: _Sealing) -> None:
        if sealing.failed:
            return
        pid = sealing.sealer.journal.pid
        try:
            if pid in self._discarded:
                sealing.sealer.discard()
                del self._sealings[path]
            elif self._is_ready(sealing):
                is_replacing = sealing.sealer.target in self._replaced
                torch_note = sealing.sealer.fact(TORCH_NOTE)
                finished = sealing.sealer.finish(self._ended_by(sealing), replace=is_replacing)
                self._say_finished(finished, torch_note)
                del self._sealings[path]
            else:
                self._seal_on(sealing)
        except GpumemError as error:
            sealing.failed = True
            sealing.sealer.close()
            self._say({"failed": {"journal": str(path), "pid": pid, "error": str(error)}})

    def _seal_on(self, sealing: _Sealing) -> None:
        try:
            sealing.sealer.seal_full_windows()
        except OutputUnwritable as error:  # a full disk, for one: the journal keeps everything until the end
            print(f"gpumem seal: {error}", file=sys.stderr)

    def _is_ready(self, sealing: _Sealing) -> bool:
        if not _has_ended(sealing):
            return False
        if sealing.ended_since is None or sealing.sealer.journal.is_process_alive():
            sealing.ended_since = time.monotonic()  # a process that has closed its journal may take its time to end
        waited = time.monotonic() - sealing.ended_since >= WAIT_FOR_WORD_S
        return self._run_over or waited or sealing.sealer.journal.pid in self._ended

    def _ended_by(self, sealing: _Sealing) -> str:
        """The recorder's own reason when it has a special one, else what was said, else its "exit" or a kill."""
        own, said = sealing.sealer.journal.ended_by, self._ended.get(sealing.sealer.journal.pid)
        if own is not None and own != "exit":
            return own
        return said or own or KILLED

    def _say_finished(self, finished: FinishedTrace, torch_note: str | None) -> None:
        words: dict[str, object] = {
            "journal": str(finished.journal),
            "path": str(finished.path),
            "pid": finished.pid,
            "events": finished.event_count,
            "ended_by": finished.ended_by,
            "torch_note": torch_note,
        }
        if finished.path != finished.wanted_path:
            words["wanted_path"] = str(finished.wanted_path)
        self._say({"finished": words})

    def _say(self, words: Mapping[str, object]) -> None:
        if not self._can_speak:
            return
        try:
            os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")
        except OSError:  # whoever started the sealer is gone; the traces are finished all the same
            self._can_speak = False


class _Lines:
    """Lines of a pipe as they come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self.at_end = False

    def wait(self, seconds: float) -> Sequence[bytes]:
        """The lines that are there, waiting up to `seconds` for the first."""
        if self.at_end:
            time.sleep(seconds)
            return ()
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return ()
        content = os.read(self._descriptor, 1 << 16)
        self.at_end = not content
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [line for line in lines if line.strip()]


def _has_ended(sealing: _Sealing) -> bool:
    journal = sealing.sealer.journal
    return journal.is_closed or not journal.is_process_alive()


def _journals_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from [folder / entry.name for entry in entries if entry.name.endswith(JOURNAL_SUFFIX)]
    except OSError as error:
        print(f"gpumem seal: {folder} cannot be read: {error.strerror}.", file=sys.stderr)
