"""Out-of-memory errors as JSON, gpumem.oom/1: a contract that scripts rely on.

Owns: its key names. Must not know: how a verdict is found. No arithmetic.
`allocated_bytes` and `reserved_unallocated_bytes` are as the error has them; bytes are as exact as it prints them.
"""

from __future__ import annotations

from gpumem.analyses.oom import ExplainedMessage, OomLogFindings
from gpumem.analyses.oom_facts import OomVerdict
from gpumem.render.json_parts import Json, document
from gpumem.render.oom_advice import finding_command, finding_text
from gpumem.render.oom_words import verdict_text
from gpumem.trace.oom_message import Figure


def render_oom(findings: OomLogFindings) -> str:
    """gpumem.oom/1."""
    log = findings.log
    return document(
        {
            "schema": "gpumem.oom/1",
            "path": log.name,
            "lines": log.lines,
            "left_out_count": log.left_out_count,
            "settings": log.settings,
            "messages": [_message(one) for one in findings.messages],
            "worst": findings.messages.index(findings.worst),
        }
    )


def oom_verdict(found: OomVerdict, recording: str | None = None) -> dict[str, Json]:
    """A verdict with its findings, as every document has it."""
    findings: list[Json] = [
        {
            "code": finding.code.value,
            "text": finding_text(finding, found),
            "bytes": finding.byte_count,
            "pid": finding.pid,
            "command": finding_command(finding, recording, origin=found.facts.origin),
        }
        for finding in found.findings
    ]
    span = found.request_range
    return {
        "verdict": found.verdict.value,
        "also_possible": [verdict.value for verdict in found.also_possible],
        "text": verdict_text(found),
        "within_reach_bytes": _bytes(found.within_reach),
        "short_bytes": _bytes(found.short),
        "outside_bytes": _bytes(found.outside),
        "own_outside_bytes": _bytes(found.own_outside),
        "request_range_bytes": None if span is None else list(span),
        "findings": findings,
    }


def _message(explained: ExplainedMessage) -> Json:
    found, message = explained.found, explained.found.message
    processes: list[Json] = [{"pid": one.pid, "bytes": _bytes(one.used)} for one in message.other_processes]
    return {
        "line": found.line,
        "rank": found.rank,
        "worker": found.worker,
        "repeats": found.repeats,
        "origin": message.origin.value,
        "versions": message.versions,
        "wording": message.wording,
        "device": message.device,
        "requested_bytes": _bytes(message.asked),
        "free_bytes": _bytes(message.free),
        "total_bytes": _bytes(message.card),
        "allocated_bytes": _bytes(message.allocated),
        "reserved_unallocated_bytes": _bytes(explained.verdict.facts.idle),
        "reserved_bytes": _bytes(explained.verdict.facts.reserved),
        "private_pools_bytes": _bytes(message.private_idle),
        "process_bytes": _bytes(message.process),
        "other_processes": processes,
        "limit_bytes": _bytes(message.limit),
        **oom_verdict(explained.verdict),
    }


def _bytes(figure: Figure | None) -> int | None:
    return None if figure is None else figure.byte_count
