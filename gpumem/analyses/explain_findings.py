"""What follows from a ledger, as findings with a code and their facts.

Owns: which findings a ledger has, in the order of their use. Must not know: sentences (render/explain_text.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.analyses.explain_heap import HeapLedger, PinnedSegment
from gpumem.analyses.ledger_parts import Component, ComponentName
from gpumem.trace.model import Reading, Trace
from gpumem.vocabulary import EventIndex, TraceSource

UNLISTED_BYTES_LEAST = 64 << 20
"""Used bytes of no process that are worth a sentence: the driver's own are some 10 MiB a context."""
GROWN_BYTES_LEAST = 1 << 20
_NOTE_BEGINNINGS = ("There are no NVML readings: ", "There are no NVML readings of device {}: ")
"""Of the recorder's notes on all devices, and on one; what follows is the reason."""


class FindingCode(Enum):
    """What a finding says; the values are those of the JSON contract."""

    EVENTS_LOST = "events_lost"
    ALLOCATOR_NOT_RECORDED = "allocator_not_recorded"
    NO_PROCESS_FIGURE = "no_process_figure"
    EMPTY_CACHE = "empty_cache"
    GAPS_PINNED = "gaps_pinned"
    PENDING = "pending"
    PRIVATE_POOLS = "private_pools_idle"
    IDLE_CONTEXT = "idle_context"
    GROWN_OUTSIDE = "grown_outside_allocator"
    WORKSPACES = "cublas_workspaces"
    OTHER_PROCESSES = "other_processes"
    UNLISTED = "unlisted_bytes"
    UNEXPLAINED = "unexplained"
    CHANGE_AT_READING = "reading_at_other_event"
    BLOCKS_NOT_KNOWN = "block_bytes_not_known"
    DRIVER_RESERVE = "driver_reserve"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying, with the bytes it is about and the facts that its sentence needs."""

    code: FindingCode
    held_bytes: int | None = None
    count: int | None = None
    reason: str | None = None
    """In the words of NVML or of the recording."""
    moment: str | None = None
    """In the grammar of `--at`."""
    moment_event: EventIndex | None = None
    pinned: Sequence[PinnedSegment] = ()
    source: TraceSource | None = None


def find_findings(
    trace: Trace,
    device: int,
    *,
    components: Sequence[Component],
    unexplained_bytes: int | None,
    card: Sequence[Component],
    heap: HeapLedger,
    reading: Reading | None,
    is_recorded: bool,
    is_unused: bool,
) -> list[Finding]:
    """The findings of a ledger; `is_recorded`: its allocator was; `is_unused`: that never allocated on the device."""
    by_name = {one.name: one for one in components}
    found: list[Finding] = []
    if not {ComponentName.CUDA_CONTEXT, ComponentName.PROCESS_MEMORY} & by_name.keys():
        found.append(_no_process_figure(trace, device, reading))
    elif is_unused and is_recorded:
        held = by_name[ComponentName.CUDA_CONTEXT].held_bytes
        found.append(Finding(FindingCode.IDLE_CONTEXT, held + _bytes_of(by_name, ComponentName.OUTSIDE_ALLOCATOR)))
    if not is_recorded:
        why = next((note for note in trace.meta.notes if "NVML" not in note), None)
        found.append(Finding(FindingCode.ALLOCATOR_NOT_RECORDED, reason=why))
    if trace.meta.records_lost:
        found.append(Finding(FindingCode.EVENTS_LOST, count=trace.meta.records_lost))
    found += _of_heap(heap)
    found += _of_outside(by_name, unexplained_bytes)
    found += _of_card(card)
    return found


def _no_process_figure(trace: Trace, device: int, reading: Reading | None) -> Finding:
    reason = None if reading is None else reading.unavailable.get("process_bytes")
    if reason is None:
        beginnings = [beginning.format(device) for beginning in _NOTE_BEGINNINGS]
        told = ((note, one) for note in trace.meta.notes for one in beginnings if note.startswith(one))
        reason = next((note.removeprefix(beginning).rstrip(".") for note, beginning in told), None)
    return Finding(FindingCode.NO_PROCESS_FIGURE, reason=reason, source=trace.meta.source)


def _of_heap(heap: HeapLedger) -> list[Finding]:
    found = []
    if heap.allocator.held_bytes:
        found.append(Finding(FindingCode.EMPTY_CACHE, heap.releasable_bytes))
    if heap.gap_bytes:
        found.append(Finding(FindingCode.GAPS_PINNED, heap.gap_bytes, heap.pinned_count, pinned=heap.pinned))
    if heap.pending_bytes:
        found.append(Finding(FindingCode.PENDING, heap.pending_bytes))
    if heap.private_idle_bytes:
        found.append(Finding(FindingCode.PRIVATE_POOLS, heap.private_idle_bytes))
    if heap.workspace_count:
        found.append(Finding(FindingCode.WORKSPACES, heap.workspace_bytes, heap.workspace_count))
    if not heap.is_known and (heap.allocator.held_bytes or heap.unplaced_count):
        found.append(Finding(FindingCode.BLOCKS_NOT_KNOWN, count=heap.unplaced_count))
    return found


def _of_outside(by_name: dict[ComponentName, Component], unexplained_bytes: int | None) -> list[Finding]:
    found = []
    grown = by_name.get(ComponentName.OUTSIDE_ALLOCATOR)
    if grown is not None and grown.held_bytes >= GROWN_BYTES_LEAST:
        largest = max(grown.children, key=lambda one: one.held_bytes, default=None)
        moment, event = (None, None) if largest is None else (largest.moment, largest.moment_event)
        found.append(Finding(FindingCode.GROWN_OUTSIDE, grown.held_bytes, moment=moment, moment_event=event))
    since = _bytes_of(by_name, ComponentName.CHANGE_AT_READING)
    if since:
        found.append(Finding(FindingCode.CHANGE_AT_READING, since))
    if unexplained_bytes:
        found.append(Finding(FindingCode.UNEXPLAINED, unexplained_bytes))
    return found


def _of_card(card: Sequence[Component]) -> list[Finding]:
    found = []
    parts = {part.name: part.held_bytes for one in card for part in (one, *one.children)}
    others = parts.get(ComponentName.OTHER_PROCESSES)
    if others:
        found.append(Finding(FindingCode.OTHER_PROCESSES, others))
    unlisted = parts.get(ComponentName.NO_PROCESS, 0)
    if unlisted >= UNLISTED_BYTES_LEAST and ComponentName.THIS_PROCESS in parts:
        found.append(Finding(FindingCode.UNLISTED, unlisted))
    reserve = parts.get(ComponentName.DRIVER_RESERVE)
    if reserve:
        found.append(Finding(FindingCode.DRIVER_RESERVE, reserve))
    return found


def _bytes_of(by_name: dict[ComponentName, Component], name: ComponentName) -> int:
    return by_name[name].held_bytes if name in by_name else 0
