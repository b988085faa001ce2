"""Where the bytes go that nvidia-smi shows: a ledger of a device at a moment, and what follows from it.

Owns: joining NVML's figures, what lies outside the allocator and the allocator's own split into one sum. Must not know:
screens, JSON, sentences.

    process = context + what came later outside the allocator + gpumem's own + reserved + rest, the rest with its sign
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpumem.analyses.explain_findings import Finding, find_findings
from gpumem.analyses.explain_heap import CARRIED, HeapLedger, find_heap_ledger
from gpumem.analyses.explain_outside import find_outside, find_process_memory
from gpumem.analyses.ledger_parts import (
    Component,
    ComponentName,
    Evidence,
    EvidenceSums,
    make_parent,
    sum_evidence,
)
from gpumem.analyses.readings import PlacedReading, choose_reading, place_readings
from gpumem.analyses.workspaces import WorkspaceFinder
from gpumem.heap.instants import Instant, find_instant
from gpumem.heap.reserved import ReservedCurve, find_reserved_curve
from gpumem.heap.stops import HeapTable, heaps_at
from gpumem.trace.model import DeviceFacts, Reading, Trace
from gpumem.trace.moments import End, Moment, Peak
from gpumem.vocabulary import DeviceOrdinal, EventKind, TraceSource

_RECORDED_INSIDE = (TraceSource.NATIVE, TraceSource.GPUMEM)
"""Sources whose recorder ran in the program itself."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The process's bytes on one device at a moment; `process_bytes` is None where NVML gave no figure."""

    facts: DeviceFacts
    instant: Instant
    reading: Reading | None
    """The reading that the figures are from."""
    reserved_bytes: int | None
    """What the allocator held at the moment; None where none was recorded."""
    process_bytes: int | None
    components: Sequence[Component]
    """They add up, with `unexplained_bytes`, to the process's bytes; without a figure they are the allocator alone."""
    unexplained_bytes: int | None
    sums: EvidenceSums
    card: Sequence[Component]
    """The device's bytes: used (with its parts), the driver's reserve, free; empty where NVML gave none."""
    heap: HeapLedger
    findings: Sequence[Finding]

    @property
    def card_bytes(self) -> int:
        """What `card` is a part of: NVML's total, else its parts where they are all there, else the known capacity."""
        if self.reading is not None and self.reading.total_bytes is not None:
            return self.reading.total_bytes
        told = sum(one.held_bytes for one in self.card)
        is_whole = {ComponentName.USED, ComponentName.FREE} <= {one.name for one in self.card}
        return told if is_whole else max(told, self.facts.capacity_bytes or 0)

    @property
    def outside_bytes(self) -> int | None:
        """What the process holds outside its allocator, as far as the components tell; None without a figure."""
        if self.process_bytes is None or self.reserved_bytes is None:
            return None
        named = (ComponentName.CUDA_CONTEXT, ComponentName.OUTSIDE_ALLOCATOR)
        return sum(one.held_bytes for one in self.components if one.name in named)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The ledgers of a trace's devices at a moment, the one with most bytes first."""

    path: str
    source: TraceSource
    moment: Moment
    is_default_moment: bool
    is_running: bool
    instant: Instant
    ledgers: Sequence[Ledger]
    rank: int | None = None

    @property
    def held_bytes(self) -> int:
        """What the process, or its allocator where that is all that is known, holds on the device with the most."""
        return max((one.process_bytes or one.reserved_bytes or 0 for one in self.ledgers), default=0)


def choose_moment(trace: Trace) -> Moment:
    """The moment that a question without one is about: now while the program runs, else its peak, of an allocator that
    was not recorded the end.
    """
    is_peak_known = trace.event_count and trace.meta.source is not TraceSource.NONE
    return Peak() if is_peak_known and not trace.meta.running else End()


def find_explanation(
    trace: Trace, moment: Moment | None = None, *, devices: Collection[DeviceOrdinal] | None = None
) -> Explanation:
    """The ledgers at `moment` (the default one without) of `devices`, or of all that the program used."""
    at = choose_moment(trace) if moment is None else moment
    instant = find_instant(trace, at, devices=devices)
    wanted = sorted(_used_devices(trace) if devices is None else devices)
    ledgers = [find_ledger(trace, instant, device) for device in wanted]
    ledgers.sort(key=lambda one: (-(one.process_bytes or one.reserved_bytes or 0), one.facts.device))
    return Explanation(
        str(trace.path), trace.meta.source, at, moment is None, trace.meta.running, instant, ledgers, trace.meta.rank
    )


def find_ledger(trace: Trace, instant: Instant, device: DeviceOrdinal) -> Ledger:
    """The ledger of `device` at `instant`."""
    return find_ledgers(trace, [instant], device, heaps_at(trace, [instant.event], device=device, carried=CARRIED))[0]


def find_ledgers(
    trace: Trace, instants: Sequence[Instant], device: DeviceOrdinal, heaps: Sequence[HeapTable]
) -> list[Ledger]:
    """The ledgers of `device` at several instants; `heaps` are those after their events, with CARRIED columns."""
    facts = next((one for one in trace.meta.devices if one.device == device), DeviceFacts(device))
    curve = find_reserved_curve(trace, device)
    placed = place_readings(trace, device, curve)
    finder = WorkspaceFinder(trace, device)
    return [
        _ledger(trace, facts, instant, find_heap_ledger(trace, heap, device, finder), curve, placed)
        for instant, heap in zip(instants, heaps, strict=True)
    ]


def _ledger(
    trace: Trace,
    facts: DeviceFacts,
    instant: Instant,
    heap: HeapLedger,
    curve: ReservedCurve,
    placed: Sequence[PlacedReading],
) -> Ledger:
    of_device = [one for one in trace.readings if one.device == facts.device]
    reading = choose_reading(of_device, placed, instant, curve)
    at = next((one for one in placed if one.reading is reading), None)
    is_recorded = _is_recorded(trace, curve, heap)
    if is_recorded:
        components, unexplained = _components(trace, placed, at, instant, heap)
    else:
        components, unexplained = _components_unrecorded(trace, placed, at, instant)
    sums = sum_evidence(components, unexplained or 0)
    process = None if at is None else at.process_bytes
    assert process is None or sums.sum_bytes == process, "the parts of the ledger are the process's bytes"
    card = () if reading is None else _card(reading)
    return Ledger(
        facts=facts,
        instant=instant,
        reading=reading,
        reserved_bytes=heap.allocator.held_bytes if is_recorded else None,
        process_bytes=process,
        components=components,
        unexplained_bytes=unexplained,
        sums=sums,
        card=card,
        heap=heap,
        findings=find_findings(
            trace, facts.device, components=components, unexplained_bytes=unexplained, card=card, heap=heap,
            reading=reading, is_recorded=is_recorded, is_unused=not len(curve.events) and not curve.initial_bytes,
        ),
    )  # fmt: skip


def _is_recorded(trace: Trace, curve: ReservedCurve, heap: HeapLedger) -> bool:
    """Whether the device's allocator was recorded; a recording that was killed early may not say so itself."""
    has_events = len(curve.events) or curve.initial_bytes or heap.live_bytes or heap.unplaced_count
    return trace.meta.source is not TraceSource.NONE or bool(has_events)


def _components_unrecorded(
    trace: Trace, placed: Sequence[PlacedReading], at: PlacedReading | None, instant: Instant
) -> tuple[list[Component], int | None]:
    """All of the process as one component, and what is left unexplained; none without a figure."""
    if at is None:
        return [], None
    whole, unexplained = find_process_memory(trace, placed, at, instant)
    return [whole], unexplained


def _components(
    trace: Trace, placed: Sequence[PlacedReading], at: PlacedReading | None, instant: Instant, heap: HeapLedger
) -> tuple[list[Component], int | None]:
    """The components of the process and what they leave unexplained; the allocator's alone without a figure."""
    if at is None:
        return [heap.allocator], None
    outside = find_outside(trace, placed, at, instant)
    components = [outside.context]
    if outside.changes:
        changed = sum(one.held_bytes for one in outside.changes)
        parts = outside.changes if any(one.moment or one.after for one in outside.changes) else ()
        components.append(
            Component(ComponentName.OUTSIDE_ALLOCATOR, changed, Evidence.DIFFERENCE)
            if not parts
            else make_parent(ComponentName.OUTSIDE_ALLOCATOR, changed, Evidence.DIFFERENCE, parts)
        )
    if trace.meta.source in _RECORDED_INSIDE:
        # It opens no context and allocates nothing on the device: the context is as large without it.
        components.append(Component(ComponentName.GPUMEM, 0, Evidence.MEASURED))
    components.append(heap.allocator)
    since = at.reserved_bytes - heap.allocator.held_bytes
    if since:
        components.append(Component(ComponentName.CHANGE_AT_READING, since, Evidence.MEASURED))
    return components, outside.unexplained_bytes


def _card(reading: Reading) -> tuple[Component, ...]:
    """The device's own bytes, as far as NVML gave them."""
    found = []
    if reading.used_bytes is not None:
        found.append(Component(ComponentName.USED, reading.used_bytes, Evidence.MEASURED, _users(reading)))
    for name, figure in (
        (ComponentName.DRIVER_RESERVE, reading.reserved_bytes),
        (ComponentName.FREE, reading.free_bytes),
    ):
        if figure is not None:
            found.append(Component(name, figure, Evidence.MEASURED))
    return tuple(found)


def _users(reading: Reading) -> tuple[Component, ...]:
    """Who uses the device; nobody is told apart where this process's bytes are hidden: the rest would be its own."""
    if reading.process_bytes is None or reading.used_bytes is None:
        return ()
    known = [Component(ComponentName.THIS_PROCESS, reading.process_bytes, Evidence.MEASURED)]
    if reading.other_processes_bytes is not None:
        known.append(Component(ComponentName.OTHER_PROCESSES, reading.other_processes_bytes, Evidence.MEASURED))
    rest = reading.used_bytes - sum(one.held_bytes for one in known)
    return (*known, Component(ComponentName.NO_PROCESS, rest, Evidence.DIFFERENCE))


def _used_devices(trace: Trace) -> set[DeviceOrdinal]:
    """Devices on which the program allocated or had a context; all that are known where there is none."""
    used = {DeviceOrdinal(block.device) for block in trace.initial_blocks}
    used |= {DeviceOrdinal(one.device) for one in trace.readings if one.process_bytes}
    for batch in trace.event_batches(["device", "kind"]):
        chosen = batch["device"][batch["kind"] < EventKind.MARK]
        used |= {DeviceOrdinal(device) for device in set(chosen.tolist())}
    known = {DeviceOrdinal(one.device) for one in trace.meta.devices}
    return used or known or {DeviceOrdinal(one.device) for one in trace.readings}
