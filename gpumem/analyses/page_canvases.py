"""What the page's own pictures show of a device: the largest allocations as bands, and the heap at its moments.

Owns: finding both from one scan, and the list of stacks that they share. Must not know: pixels, JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.analyses.bands import Bands, find_bands
from gpumem.analyses.explain import Ledger, find_ledgers
from gpumem.analyses.explain_heap import CARRIED
from gpumem.analyses.heap_moments import HeapMoments, find_heap_moments
from gpumem.analyses.moments_chosen import choose_moments
from gpumem.analyses.sites import SiteFinder
from gpumem.heap.scan import DeviceScan
from gpumem.heap.stops import heaps_at
from gpumem.trace.model import Frame, Trace
from gpumem.vocabulary import StackId

FRAMES_MAX = 40
"""Innermost frames kept of a stack."""


@dataclass(frozen=True, slots=True)
class ListedStack:
    """A stack with its site: innermost frames first, `frame_count` of which there are."""

    stack: StackId
    site: Frame | None
    frames: Sequence[Frame]
    frame_count: int


@dataclass(frozen=True, slots=True)
class PageCanvases:
    """One device's pictures; `stacks`, by their number, are all that they name."""

    bands: Bands
    heap: HeapMoments
    ledgers: Sequence[Ledger]
    """One for each moment of the heap."""
    stacks: Sequence[ListedStack]


def find_canvases(trace: Trace, scan: DeviceScan, *, bands_max: int, cells_max: int) -> PageCanvases:
    """The pictures of the device of `scan`, a scan of the whole trace."""
    bands = find_bands(trace, scan.device, bands_max=bands_max, scan=scan)
    chosen = choose_moments(trace, scan)
    instants = [one.instant for one in chosen]
    heaps = heaps_at(trace, [one.event for one in instants], device=scan.device, carried=CARRIED)
    heap = find_heap_moments(trace, scan.device, chosen, heaps, cells_max=cells_max)
    ledgers = find_ledgers(trace, instants, scan.device, heaps)
    named = [np.zeros(1, np.int64), bands.bands.stack, *(one.cells.stack for one in heap.moments)]
    pins = [pin.stack for one in heap.moments for pinned in one.pinned for pin in pinned.pins]
    numbers = np.unique(np.concatenate([*named, np.array(pins, np.int64)]))
    return PageCanvases(bands, heap, ledgers, list_stacks(trace, numbers.tolist()))


def list_stacks(trace: Trace, stacks: Iterable[int]) -> list[ListedStack]:
    """The stacks with their sites and frames, in the order given."""
    finder = SiteFinder(trace)
    listed = []
    for number in stacks:
        stack = StackId(number)
        rows = trace.stacks.frames_of(stack)
        frames = tuple(trace.frames.frame(row) for row in rows[:FRAMES_MAX])
        listed.append(ListedStack(stack, finder.site(stack), frames, len(rows)))
    return listed
