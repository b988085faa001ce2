"""What a process holds outside its allocator, from NVML's readings: the CUDA context, and what came later.

Owns: splitting what grew outside by the mark at which it was seen. Must not know: blocks, text, how readings are
matched with the allocator's reserved bytes (readings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpumem.analyses.ledger_parts import Component, ComponentName, Evidence
from gpumem.analyses.readings import PlacedReading
from gpumem.heap.instants import Instant
from gpumem.heap.marks import name_marks
from gpumem.trace.model import Mark, Trace


@dataclass(frozen=True, slots=True)
class Outside:
    """What the process holds outside the allocator at a reading: the context, then each change with its sign."""

    at: PlacedReading
    context: Component
    changes: Sequence[Component]
    unexplained_bytes: int
    """What the reading shows beyond that: it came after the moment, or segments came and went while NVML was read."""


def find_outside(trace: Trace, placed: Sequence[PlacedReading], at: PlacedReading, instant: Instant) -> Outside:
    """What was outside the allocator at the reading `at`, as far as it had been seen by `instant`."""
    chosen = placed.index(at)
    first = min(_find_context_reading(placed), chosen)
    base = placed[first]
    context = Component(
        ComponentName.CUDA_CONTEXT,
        base.outside_bytes,
        Evidence.DIFFERENCE if base.reserved_bytes else Evidence.MEASURED,
    )
    last = _find_last(placed, first, chosen, instant)
    settled = [one for one in placed[first + 1 : last + 1] if one.is_settled]
    changes = _split_changes(trace.marks, settled, base.outside_bytes)
    known = base.outside_bytes + sum(change.held_bytes for change in changes)
    return Outside(at, context, changes, at.outside_bytes - known)


def find_process_memory(
    trace: Trace, placed: Sequence[PlacedReading], at: PlacedReading, instant: Instant
) -> tuple[Component, int]:
    """What a process without a recorded allocator held by `instant`, by the moments at which it was seen, and what the
    reading `at` shows beyond that.
    """
    chosen = placed.index(at)
    last = _find_last(placed, 0, chosen, instant)
    changes = _split_changes(trace.marks, placed[: last + 1], 0)
    parts = tuple(replace(one, name=ComponentName.PROCESS_MEMORY, evidence=Evidence.MEASURED) for one in changes)
    held = placed[last].process_bytes
    whole = Component(ComponentName.PROCESS_MEMORY, held, Evidence.MEASURED, parts if len(parts) > 1 else ())
    return whole, at.process_bytes - held


def _find_last(placed: Sequence[PlacedReading], first: int, chosen: int, instant: Instant) -> int:
    """The last reading up to the chosen one that the moment has seen; the first one where it has seen none."""
    last = chosen
    while last > first and placed[last].reading.event > instant.event:
        last -= 1
    return last


def _find_context_reading(placed: Sequence[PlacedReading]) -> int:
    """The reading that shows the context alone: at the first mark before any segment, else after the first segment.

    Other readings before either may show a context in the making.
    """
    complete = (position for position, one in enumerate(placed) if one.reserved_bytes or one.is_at_mark)
    return next(complete, len(placed) - 1)


def _split_changes(marks: Sequence[Mark], placed: Sequence[PlacedReading], before_bytes: int) -> list[Component]:
    """The changes from reading to reading, beginning with `before_bytes`, summed by the first mark or step at or after
    the reading that shows them.
    """
    named = sorted(zip(marks, name_marks(marks), strict=True), key=lambda one: one[0].event)
    mark_events = np.array([mark.event for mark, _ in named], np.int64)
    sums: dict[int, int] = {}
    for one in placed:
        change = one.outside_bytes - before_bytes
        before_bytes = one.outside_bytes
        if change:
            at = int(np.searchsorted(mark_events, one.reading.event, side="left"))
            sums[at] = sums.get(at, 0) + change
    return [_change(named, at, change) for at, change in sorted(sums.items()) if change]


def _change(named: Sequence[tuple[Mark, str]], at: int, change: int) -> Component:
    """A change that was there by the mark at this position, or came after the last."""
    by = named[at] if at < len(named) else None
    after = named[at - 1] if at else None
    naming = by or after
    return Component(
        ComponentName.OUTSIDE_ALLOCATOR,
        change,
        Evidence.DIFFERENCE,
        moment=None if by is None else by[1],
        after=None if after is None else after[1],
        moment_event=None if naming is None else naming[0].event,
    )
