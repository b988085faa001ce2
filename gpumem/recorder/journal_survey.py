"""The journals of a run when its program has ended: which hold something, and if none does, why.

Owns: what is worth keeping, and the sentences about nothing. Must not know: how journals are sealed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import GpumemError
from gpumem.nvml import Nvml, Unavailable, open_nvml
from gpumem.recorder.sealer import FinishedTrace
from gpumem.recorder.target import Target
from gpumem.trace.entries import JournalEntries
from gpumem.trace.journal import JOURNAL_SUFFIX, Journal
from gpumem.trace.journal_facts import TORCH_NOTE
from gpumem.trace.journal_layout import WindowKind


@dataclass(frozen=True, slots=True)
class SurveyedJournal:
    """A journal of the run as it is now."""

    path: Path
    pid: int
    is_recording: bool
    """Its process lives and has not ended its recording."""
    record_count: int
    facts: Mapping[str, str]
    """JSON by key."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither an event nor a mark, and CUDA never started, so that its readings say nothing."""
        return self.record_count == 0 and not any(key.startswith("device:") for key in self.facts)


def survey_journals(folder: Path, run_id: str) -> list[SurveyedJournal]:
    """The journals of the run in `folder`; those that cannot be read are left to the sealer to complain of."""
    found = []
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        try:
            journal = Journal(path)
        except GpumemError:
            continue
        if journal.run_id == run_id:
            found.append(_survey(journal))
        journal.close()
    return found


def find_reason_for_nothing(
    target: Target, journals: Sequence[SurveyedJournal], dropped: Sequence[FinishedTrace]
) -> str:
    """Why a run recorded nothing, and what to do, in a sentence or two; `dropped`: traces that were sealed before the
    run ended, and hold nothing.
    """
    has_begun = bool(journals or dropped)
    if not has_begun and target.is_python:
        return "The program's recording could not begin, for the reason above."
    no_gpu = _find_no_gpu()
    if no_gpu is not None:
        return f"There is no GPU here: {no_gpu}. To see what a recording tells: gpumem demo"
    if not has_begun:
        return (
            f"{target.name} started no Python that reads gpumem.pth; "
            "install gpumem for the interpreter that it runs, or give gpumem run the Python script itself."
        )
    notes = [*(journal.facts.get(TORCH_NOTE) for journal in journals), *(trace.torch_note for trace in dropped)]
    reasons = [str(json.loads(note)) for note in notes if note is not None]
    return reasons[0] if reasons else "The program ended before it used CUDA."


def _survey(journal: Journal) -> SurveyedJournal:
    entries = JournalEntries(journal)
    entries.update()
    return SurveyedJournal(
        path=journal.path,
        pid=journal.pid,
        is_recording=not journal.is_closed and journal.is_process_alive(),
        record_count=sum(window.taken for window in journal.windows(WindowKind.RECORDS)),
        facts=dict(entries.facts),
    )


def _find_no_gpu() -> str | None:
    """Why NVML shows no GPU; None where it shows one."""
    nvml = open_nvml()
    devices = nvml.read_devices() if isinstance(nvml, Nvml) else nvml
    if isinstance(devices, Unavailable):
        return devices.reason
    return None if devices else "NVML lists no device"
