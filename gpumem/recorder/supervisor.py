"""`gpumem run`: starts the program armed, has its journals sealed meanwhile, and says what came of it.

Owns: the run, from the checked target to the finished traces. Must not know: what a trace says (the caller reads it),
how a sentence is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumem.recorder.child import Child, describe_end
from gpumem.recorder.interpreter import find_start_up_file
from gpumem.recorder.launcher import launch_command
from gpumem.recorder.output import Output, remove_unused
from gpumem.recorder.sealer import FailedJournal, FinishedTrace, Sealer
from gpumem.recorder.spec import TRACE_SUFFIX, VARIABLE, RecordSpec, find_default_stem
from gpumem.recorder.target import Target
from gpumem.vocabulary import AllocatorChoice


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be recorded, and how."""

    target: Target
    output: Output
    stacks: bool = True
    nvml_interval_ms: int = 100
    memory_limit_bytes: int | None = None
    allocator: AllocatorChoice = AllocatorChoice.AUTO


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How the program ended and what was recorded of it."""

    wait_status: int
    duration_ns: int
    traces: Sequence[FinishedTrace]
    """Finished traces, the main process's first."""
    failed: Sequence[FailedJournal]
    unfinished: Sequence[Path]
    """Journals that the sealer left behind because it died twice."""
    recording_pids: Sequence[int]
    """Processes of the run that still record."""
    sealer_complaint: str
    """What the sealer said last of itself; empty when it said nothing."""
    nothing_recorded: str | None
    """Why there is no trace; None when there is one."""


def run_program(request: RunRequest) -> RunOutcome:
    """Runs the program to its end and seals what it recorded.

    Raises ProgramNotFound when it cannot be started. Signals stay as the run needs them: call child.leave_as next.
    """
    run_id = os.urandom(16).hex()
    started_ns = time.monotonic_ns()
    sealer = Sealer(request.output.journal_folder, run_id)
    if request.output.replaced is not None:
        sealer.tell_replace(request.output.replaced)
    try:
        child = Child(_find_command(request.target), lambda pid: _make_environment(request, run_id, pid))
        wait_status = child.wait(sealer.output, sealer.read_available)
        duration_ns = time.monotonic_ns() - started_ns
        return _finish(request, run_id, sealer, child.pid, wait_status, duration_ns)
    finally:
        sealer.close()
        remove_unused(request.output)


def _find_command(target: Target) -> list[str]:
    if target.is_python and find_start_up_file() is None:
        return launch_command(target)
    return target.command


def _make_environment(request: RunRequest, run_id: str, pid: int) -> dict[str, str]:
    return {**os.environ, VARIABLE: make_spec(request, run_id, pid).to_json()}


def make_spec(request: RunRequest, run_id: str, pid: int) -> RecordSpec:
    """What the processes of the run are told when its first one is `pid`."""
    output = request.output
    if output.first_name is not None:
        stem = output.first_name.removesuffix(TRACE_SUFFIX)
    else:
        stem = find_default_stem(output.folder, request.target.stem, pid)
    return RecordSpec(
        run_id=run_id,
        folder=str(output.folder),
        stem=stem,
        main_pid=pid if request.target.is_python else 0,
        first_name=output.first_name,
        stacks=request.stacks,
        nvml_interval_ms=request.nvml_interval_ms,
        memory_limit_bytes=request.memory_limit_bytes,
        journal_folder=str(output.journal_folder) if output.is_apart else None,
        allocator=request.allocator.value,
        sealed_by_other=True,
    )


def _finish(
    request: RunRequest, run_id: str, sealer: Sealer, pid: int, wait_status: int, duration_ns: int
) -> RunOutcome:
    # Not before the program has ended: it would wait for numpy.
    from gpumem.recorder.journal_survey import find_reason_for_nothing, survey_journals

    journals = survey_journals(request.output.journal_folder, run_id)
    for journal in journals:
        # The word goes by pid, which two journals share where a process has replaced itself by another program.
        is_all = all(other.is_empty for other in journals if other.pid == journal.pid)
        if is_all and not journal.is_recording:
            sealer.tell_discard(journal.pid)
    kept = [journal for journal in journals if not journal.is_empty]
    sealer.tell_ended(pid, describe_end(wait_status))
    sealer.tell_end()
    is_sealed = sealer.wait_until_done()
    dropped = [trace for trace in sealer.finished if _is_dropped(trace)]
    found = [trace for trace in sealer.finished if trace not in dropped]
    traces = sorted(found, key=lambda trace: (trace.pid != pid, trace.path.name))
    unfinished = [] if is_sealed else [journal.path for journal in kept if journal.path.exists()]
    nothing = None
    if not traces and not kept:
        nothing = find_reason_for_nothing(request.target, journals, dropped)
    recording = [journal.pid for journal in journals if journal.is_recording]
    return RunOutcome(wait_status, duration_ns, traces, sealer.failed, unfinished, recording, sealer.complaint, nothing)


def _is_dropped(trace: FinishedTrace) -> bool:
    """Deletes the trace of a process that recorded nothing and ended long before the run; whether it did."""
    if trace.events:
        return False
    from gpumem.trace.file import read_meta

    if read_meta(trace.path)[0].devices:
        return False
    trace.path.unlink()
    return True
