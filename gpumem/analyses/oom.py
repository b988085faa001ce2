"""Out-of-memory errors explained: any figures to a verdict with its findings, and the messages of a log.

Owns: the one function that judges, and what a message's figures mean to it. Must not know: words, colours, JSON; how a
log is read (importers/oom_log.py); recordings (oom_event.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpumem.analyses.oom_facts import OomFacts, OomVerdict, Verdict
from gpumem.analyses.oom_findings import find_oom_findings
from gpumem.analyses.oom_rule import judge_refusal
from gpumem.errors import UsageError
from gpumem.trace.oom_message import Figure, FoundMessage, OomLog, OomMessage, OomOrigin

EXPANDABLE_ON = ("expandable_segments:true", "expandable_segments=true")
VERSIONS_WITHOUT_EXPANDABLE = ("1.3 or older", "1.4 to 2.0")


@dataclass(frozen=True, slots=True)
class ExplainedMessage:
    """A message of a log and what it means."""

    found: FoundMessage
    verdict: OomVerdict


@dataclass(frozen=True, slots=True)
class OomLogFindings:
    """All messages of a log; `worst` is the one to look at first."""

    log: OomLog
    messages: Sequence[ExplainedMessage]
    worst: ExplainedMessage


def find_oom_verdict(facts: OomFacts) -> OomVerdict:
    """Why a request was refused and what follows, most useful first."""
    judged = judge_refusal(facts)
    return replace(judged, findings=find_oom_findings(judged))


def explain_log(log: OomLog, *, rank: int | None = None) -> OomLogFindings:
    """The verdict on each message of a log, or of one rank; the worst is the one that lacks most, the first of equals.

    Raises UsageError, naming those it has, where the log has no message of this rank.
    """
    wanted = [found for found in log.messages if rank is None or found.rank == rank]
    if not wanted:
        ranks = sorted({found.rank for found in log.messages if found.rank is not None})
        has = f"those of rank {', '.join(map(str, ranks))}" if ranks else "none that names its rank"
        raise UsageError(f"{log.name} has no out-of-memory error of rank {rank}; it has {has}.")
    has_expandable = is_expandable_on(log.settings)
    explained = [
        ExplainedMessage(
            found,
            find_oom_verdict(
                facts_of_message(
                    found.message, has_expandable=has_expandable, is_expandable_refused=log.has_expandable_refused
                )
            ),
        )
        for found in wanted
    ]
    return OomLogFindings(log, explained, max(explained, key=_severity))


def is_expandable_on(settings: str | None) -> bool:
    """Whether allocator settings switch expandable segments on."""
    return any(sign in (settings or "").lower() for sign in EXPANDABLE_ON)


def _severity(explained: ExplainedMessage) -> tuple[bool, int, int, int]:
    verdict = explained.verdict
    lacking = verdict.short or verdict.facts.asked
    return (
        verdict.verdict is not Verdict.UNKNOWN,
        verdict.short is not None,
        0 if lacking is None else lacking.byte_count,
        -explained.found.line,
    )


def facts_of_message(
    message: OomMessage, *, has_expandable: bool = False, is_expandable_refused: bool = False
) -> OomFacts:
    """The facts that a message gives; blocks idle in private pools are counted as idle, not as allocated."""
    allocated, idle = message.allocated, message.idle
    if message.origin is OomOrigin.TORCH_ASYNC:
        idle = Figure(0)  # the driver gives its pools' idle memory up before it refuses
    if allocated is not None and message.private_idle is not None:
        allocated = (allocated - message.private_idle).floored()
    return OomFacts(
        origin=message.origin,
        asked=message.asked,
        free=message.free,
        card=message.card,
        allocated=allocated,
        idle=idle,
        private_idle=message.private_idle,
        reserved=message.reserved,
        limit=message.limit,
        process=message.process,
        other_processes=message.other_processes,
        has_expandable=has_expandable,
        is_expandable_refused=is_expandable_refused,
        is_expandable_unknown=message.versions in VERSIONS_WITHOUT_EXPANDABLE,
        is_preemptive=message.is_preemptive,
    )
