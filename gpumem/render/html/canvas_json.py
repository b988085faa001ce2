"""What assets/bands*.js and assets/heap*.js draw, as parts of the page's document.

Owns: their fields. Must not know: how findings are made or drawn. A stack is its place in the view's `stacks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpumem.analyses.bands import Bands
from gpumem.analyses.explain import Ledger
from gpumem.analyses.heap_cells import Cells, CellState
from gpumem.analyses.heap_moments import HeapMoment, PinnedSegment
from gpumem.analyses.ledger_parts import Component
from gpumem.analyses.page_canvases import ListedStack, PageCanvases
from gpumem.analyses.page_sites import PageSites
from gpumem.heap.figures import HeapFigures
from gpumem.render.explain_text import component_label
from gpumem.render.html.markup import TEXT_CHARACTERS_MAX, foreign
from gpumem.render.html.payload import Payload
from gpumem.render.json_parts import Json

BAND_COLUMNS = ("held_bytes", "requested_bytes", "start_event", "start_time_ns", "end_event", "end_time_ns")
NOT_LISTED = -1
"""The site of the stacks that the page does not list."""
CELL_COLUMNS = ("segment", "offset", "cell_bytes", "state", "block_count", "event", "is_pinning")

Integers = npt.NDArray[np.int64]
Places = Callable[[Integers], Integers]


def canvas_documents(canvases: PageCanvases, sites: PageSites, payload: Payload) -> dict[str, Json]:
    """The fields `stacks`, `bands` and `heap` of a view."""
    numbers = np.array([one.stack for one in canvases.stacks], np.int64)

    def places(stacks: Integers) -> Integers:
        found = np.searchsorted(numbers, stacks).astype(np.int64)
        is_listed = numbers[np.minimum(found, len(numbers) - 1)] == stacks
        return np.where(is_listed, found, len(numbers))

    not_listed: Json = {"site": NOT_LISTED, "frames": [], "frame_count": 0}
    return {
        "stacks": [*(_stack(one, sites, payload) for one in canvases.stacks), not_listed],
        "bands": _bands(canvases.bands, places, payload),
        "heap": {
            "basis": canvases.heap.basis.value,
            "moments": [
                {**_moment(one, places, payload), "ledger": _ledger(ledger)}
                for one, ledger in zip(canvases.heap.moments, canvases.ledgers, strict=True)
            ],
        },
    }


def _stack(stack: ListedStack, sites: PageSites, payload: Payload) -> Json:
    return {
        "site": sites.number(stack.site),
        "frames": [payload.frame(frame) for frame in stack.frames],
        "frame_count": stack.frame_count,
    }


def _bands(found: Bands, places: Places, payload: Payload) -> Json:
    columns = {name: payload.column(getattr(found.bands, name)) for name in BAND_COLUMNS}
    return {
        "basis": found.basis.value,
        "event_count": found.event_count,
        "duration_ns": found.duration_ns,
        "allocation_count": found.allocation_count,
        "peak": {"event": found.peak.event, "time_ns": found.peak.time_ns},
        "peak_bytes": found.peak_bytes,
        "banded_bytes_at_peak": found.banded_bytes_at_peak,
        "bands": {**columns, "stack": payload.column(places(found.bands.stack))},
        "rest": {name: payload.column(getattr(found.rest, name)) for name in ("event", "time_ns", "held_bytes")},
    }


def _moment(found: HeapMoment, places: Places, payload: Payload) -> Mapping[str, Json]:
    segments = found.segments
    return {
        "names": [foreign(name) for name in found.moment.names],
        "event": found.moment.instant.event,
        "time_ns": found.moment.instant.time_ns,
        "segments": {
            "address": payload.column([one.address for one in segments]),
            "segment_bytes": payload.column([one.segment_bytes for one in segments]),
            "is_expandable": payload.column([int(one.expandable) for one in segments]),
            "is_private": payload.column([int(one.pool > 0) for one in segments]),
        },
        "cells": _cells(found.cells, places, payload),
        "cell_count": found.merged_count,
        "segment_count": found.segment_count,
        "left_out": {
            "segment_count": found.left_out.segment_count,
            "reserved_bytes": found.left_out.reserved_bytes,
            "held_bytes": found.left_out.held_bytes,
        },
        "unplaced_count": found.unplaced_count,
        "unplaced_bytes": found.unplaced_bytes,
        "reserved_bytes": found.reserved_bytes,
        "requested_bytes": found.requested_bytes,
        "figures": None if found.figures is None else _figures(found.figures),
        "pinned": [_pinned(one, places) for one in found.pinned],
        "pinned_count": found.pinned_count,
    }


def _cells(cells: Cells, places: Places, payload: Payload) -> Mapping[str, Json]:
    """Columns; allocated bytes only where they are not told by the state."""
    is_mixed = bool((cells.state == CellState.MIXED).any())
    columns = {name: payload.column(getattr(cells, name).astype(np.int64)) for name in CELL_COLUMNS}
    allocated = payload.column(cells.allocated_bytes) if is_mixed else None
    return {**columns, "stack": payload.column(places(cells.stack)), "allocated_bytes": allocated}


def _figures(figures: HeapFigures) -> Json:
    return {
        "allocated_bytes": figures.allocated_bytes,
        "requested_bytes": figures.requested_bytes,
        "slack_bytes": figures.slack_bytes,
        "pending_bytes": figures.pending_bytes,
        "releasable_bytes": figures.releasable_bytes,
        "gap_bytes": figures.gap_bytes,
    }


def _pinned(found: PinnedSegment, places: Places) -> Json:
    stacks: Sequence[int] = places(np.array([pin.stack for pin in found.pins], np.int64)).tolist()
    return {
        "segment": found.segment,
        "gap_bytes": found.gap_bytes,
        "held_bytes": found.held_bytes,
        "block_count": found.block_count,
        "pins": [
            {"stack": stack, "held_bytes": pin.held_bytes, "block_count": pin.block_count}
            for stack, pin in zip(stacks, found.pins, strict=True)
        ],
        "pin_count": found.pin_count,
    }


def _ledger(ledger: Ledger) -> Json:
    """Rows with their depth, in order, the process's figure, and the reading that it is from."""
    rows = [row for one in ledger.components for row in _rows(one, 0)]
    if ledger.unexplained_bytes is not None:
        rows.append({"label": "rest", "bytes": ledger.unexplained_bytes, "evidence": "difference", "depth": 0})
    reading = ledger.reading
    return {
        "rows": rows,
        "process_bytes": ledger.process_bytes,
        "reading_time_ns": None if reading is None else reading.time_ns,
        "used_bytes": None if reading is None else reading.used_bytes,
        "total_bytes": None if reading is None else reading.total_bytes,
    }


def _rows(component: Component, depth: int) -> Iterator[Json]:
    label = component_label(component, TEXT_CHARACTERS_MAX)
    yield {"label": label, "bytes": component.held_bytes, "evidence": component.evidence.value, "depth": depth}
    for child in component.children:
        yield from _rows(child, depth + 1)
