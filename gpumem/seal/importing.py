"""Making a .gpumem of whatever can be opened; a journal that nobody writes any more is finished.

Owns: which of the two is done. Must not know: formats, the command line.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from gpumem.errors import UsageError
from gpumem.importers.open import TraceFormat, find_format, find_trace
from gpumem.seal.journal_sealer import JournalSealer
from gpumem.simulate.fill import can_be_filled, describe_fills, fill_events, filled_meta, follow_devices
from gpumem.simulate.opening import open_trace
from gpumem.trace.file import TraceWriter, write_trace
from gpumem.trace.journal import JOURNAL_SUFFIX, Journal, target_of
from gpumem.trace.model import Trace
from gpumem.trace.targets import check_replaceable, check_writable

TRACE_SUFFIX = ".gpumem"


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace that was made; `is_partial` when its process still records."""

    path: Path
    event_count: int
    ended_by: str
    is_partial: bool


def import_trace(source: Path, output: Path | None, *, force: bool) -> ImportedTrace:
    """Writes what `source` holds to `output`.

    The journal of a process that ended is finished: journal and part are gone then. Without `output` it gets the name
    it was recorded for. Raises what check_replaceable does, UsageError where a name is missing, and InputErrors.
    """
    if source.is_dir() or not source.name.endswith(JOURNAL_SUFFIX):
        source = find_trace(source)
    journal = Journal(source) if find_format(source) is TraceFormat.JOURNAL else None
    target = _find_target(source, output, is_journal=journal is not None)
    is_over = journal is not None and (journal.is_closed or not journal.is_process_alive())
    if journal is not None and not is_over and target.absolute() == target_of(source).absolute():
        raise UsageError(
            f"{source} belongs to a program that still runs, and {target.name} is what its trace will be called; "
            f"write what there is so far elsewhere: gpumem import {shlex.quote(str(source))} -o so_far{TRACE_SUFFIX}."
        )
    check_writable(target.parent)
    check_replaceable(target, force=force)
    if target.exists() and target.samefile(source) and source.suffix != TRACE_SUFFIX:
        raise UsageError(f"{target} is what is read; choose another name with -o.")
    if journal is not None and is_over:
        sealer = JournalSealer(source)
        finished = sealer.finish(journal.ended_by or "killed", target=target, replace=force)
        return ImportedTrace(finished.path, finished.event_count, finished.ended_by, False)
    trace = open_trace(source)
    if can_be_filled(trace.meta):
        _write_filled(trace, target, force=force)
    else:
        write_trace(trace, target, force=force)
    return ImportedTrace(target, trace.event_count, trace.meta.ended_by, trace.meta.running)


def _write_filled(trace: Trace, target: Path, *, force: bool) -> None:
    """Writes a native recording with what replay tells of its blocks, in memory bounded by a few parts."""
    follower = follow_devices(trace)
    try:
        with TraceWriter(target, force=force) as writer:
            for columns in fill_events(trace, follower):
                writer.append(columns)
            fills = describe_fills(follower.results())
            writer.finish(replace(trace, meta=filled_meta(trace.meta, fills, trace.event_count)))
    finally:
        follower.close()


def _find_target(source: Path, output: Path | None, *, is_journal: bool) -> Path:
    name = target_of(source).name if is_journal else f"{source.name.removesuffix(TRACE_SUFFIX)}{TRACE_SUFFIX}"
    if output is not None:
        return output / name if output.is_dir() else output
    if not is_journal:
        other = name if name != source.name else f"filled.{name}"
        raise UsageError(
            f"Say where the trace shall go: gpumem import {shlex.quote(str(source))} -o {shlex.quote(other)}"
        )
    return source.with_name(name)
