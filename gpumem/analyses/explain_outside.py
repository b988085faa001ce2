"""What a process holds outside its allocator, from NVML's readings: the CUDA context, and what came later.

Owns: splitting what grew outside by the mark at which it was seen. Must not know: blocks, text, how readings are
matched with the allocator's reserved bytes (readings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    last = chosen
    while last > first and placed[last].reading.event > instant.event:
        last -= 1
    settled = [base, *(one for one in placed[first + 1 : last + 1] if one.is_settled)]
    changes = _split_changes(trace.marks, settled)
    known = base.outside_bytes + sum(change.held_bytes for change in changes)
    return Outside(at, context, changes, at.outside_bytes - known)


def _find_context_reading(placed: Sequence[PlacedReading]) -> int:
    """The reading that shows the context alone: at the first mark before any segment, else after the first segment.

    Other readings before either may show a context in the making.
    """
    complete = (position for position, one in enumerate(placed) if one.reserved_bytes or one.is_at_mark)
    return next(complete, len(placed) - 1)


def _split_changes(marks: Sequence[Mark], placed: Sequence[PlacedReading]) -> list[Component]:
    """The changes from reading to reading, summed by the first mark or step at or after the reading that shows them."""
    named = sorted(zip(marks, name_marks(marks), strict=True), key=lambda one: one[0].event)
    mark_events = np.array([mark.event for mark, _ in named], np.int64)
    sums: dict[int, int] = {}
    for before, after in pairwise(placed):
        change = after.outside_bytes - before.outside_bytes
        if change:
            at = int(np.searchsorted(mark_events, after.reading.event, side="left"))
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
