"""Ledgers as JSON: gpumem.explain/1, of several traces gpumem.explanations/1.

Owns: its key names. Must not know: how a ledger is made. No arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.analyses.explain import Explanation, Ledger
from gpumem.analyses.explain_findings import Finding
from gpumem.analyses.explain_heap import PinnedSegment
from gpumem.analyses.ledger_parts import Component
from gpumem.render.explain_text import component_label, component_name, finding_text, pinned_text
from gpumem.render.json_parts import Json, document, frame
from gpumem.trace.model import Reading

_LABEL_CHARACTERS_MAX = 120

_NO_LEDGER: Mapping[str, Json] = {
    "process_bytes": None,
    "components": [],
    "unexplained_bytes": None,
    "findings": [],
}


def render_explanation(explanation: Explanation) -> str:
    """The ledger of the device with most bytes; those of further devices under `others`."""
    return document({"schema": "gpumem.explain/1", **explanation_json(explanation)})


def render_explanations(found: Sequence[Explanation]) -> str:
    """One trace as gpumem.explain/1; several as gpumem.explanations/1: a line for each device, then all whole."""
    if len(found) == 1:
        return render_explanation(found[0])
    ranks: list[Json] = [
        {
            "path": one.path,
            "rank": one.rank,
            "device": ledger.facts.device,
            "process_bytes": ledger.process_bytes,
            "outside_bytes": ledger.outside_bytes,
            "reserved_bytes": ledger.reserved_bytes,
        }
        for one in found
        for ledger in one.ledgers
    ]
    explanations: list[Json] = [{"schema": "gpumem.explain/1", **explanation_json(one)} for one in found]
    return document({"schema": "gpumem.explanations/1", "ranks": ranks, "explanations": explanations})


def explanation_json(explanation: Explanation) -> dict[str, Json]:
    """The document without its schema."""
    ledgers = [ledger_json(ledger) for ledger in explanation.ledgers]
    first = ledgers[0] if ledgers else _NO_LEDGER
    return {
        "path": explanation.path,
        "rank": explanation.rank,
        "source": explanation.source.value,
        "event": explanation.instant.event,
        "time_ns": explanation.instant.time_ns,
        **first,
        "others": list(ledgers[1:]),
    }


def ledger_json(ledger: Ledger) -> dict[str, Json]:
    """A ledger with its findings."""
    return {
        "device": ledger.facts.device,
        "uuid": ledger.facts.uuid,
        "nvml_index": ledger.facts.nvml_index,
        "device_name": ledger.facts.name,
        "capacity_bytes": ledger.facts.capacity_bytes,
        "process_bytes": ledger.process_bytes,
        "reserved_bytes": ledger.reserved_bytes,
        "components": _components(ledger.components),
        "unexplained_bytes": ledger.unexplained_bytes,
        "measured_bytes": ledger.sums.measured_bytes,
        "derived_bytes": ledger.sums.derived_bytes,
        "difference_bytes": ledger.sums.difference_bytes,
        "card": {
            "total_bytes": None if ledger.reading is None else ledger.reading.total_bytes,
            "components": _components(ledger.card),
        },
        "reading": _reading(ledger.reading),
        "findings": [_finding(finding) for finding in ledger.findings],
    }


def _components(components: Sequence[Component]) -> list[Json]:
    return [
        {
            "name": component_name(one),
            "label": component_label(one, _LABEL_CHARACTERS_MAX),
            "bytes": one.held_bytes,
            "evidence": one.evidence.value,
            "blocks": one.block_count,
            "children": _components(one.children),
        }
        for one in components
    ]


def _reading(reading: Reading | None) -> Json:
    if reading is None:
        return None
    return {
        "event": reading.event,
        "time_ns": reading.time_ns,
        "unavailable": dict(reading.unavailable),
    }


def _finding(finding: Finding) -> Json:
    found: dict[str, Json] = {
        "code": finding.code.value,
        "text": finding_text(finding),
        "bytes": finding.held_bytes,
    }
    if finding.pinned:
        found["segments"] = [_pinned(one) for one in finding.pinned]
    return found


def _pinned(pinned: PinnedSegment) -> Json:
    return {
        "text": pinned_text(pinned) + ".",
        "address": pinned.address,
        "bytes": pinned.segment_bytes,
        "gap_bytes": pinned.gap_bytes,
        "block_count": pinned.block_count,
        "block_bytes": pinned.block_bytes,
        "largest_bytes": pinned.largest_bytes,
        "site": None if pinned.largest_site is None else frame(pinned.largest_site),
    }
