"""What the page's own pictures show of a device: the largest allocations as bands, and the heap at its moments.

Owns: finding both from one scan, and the list of stacks that they share. Must not know: pixels, JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from gpumem.trace.stack_links import read_stacks
from gpumem.vocabulary import StackId

FRAMES_MAX = 40
"""Innermost frames kept of a stack."""
CHARACTERS_MAX = 1 << 20
"""Of the frames of a page's stacks, each frame counted once: those of further stacks are not kept, but their sites."""


@dataclass(frozen=True, slots=True)
class ListedStack:
    """A stack with its site: innermost frames first, `frame_count` of which there are."""

    stack: StackId
    site: Frame | None
    frames: Sequence[Frame]
    frame_count: int


@dataclass(frozen=True, slots=True)
class PageCanvases:
    """One device's pictures; `stacks`, by their number, are those they name that hold most."""

    bands: Bands
    heap: HeapMoments
    ledgers: Sequence[Ledger]
    """One for each moment of the heap."""
    stacks: Sequence[ListedStack]


def find_canvases(trace: Trace, scan: DeviceScan, *, bands_max: int, cells_max: int, stacks_max: int) -> PageCanvases:
    """The pictures of the device of `scan`, a scan of the whole trace."""
    bands = find_bands(trace, scan.device, bands_max=bands_max, scan=scan)
    chosen = choose_moments(trace, scan)
    instants = [one.instant for one in chosen]
    heaps = heaps_at(trace, [one.event for one in instants], device=scan.device, carried=CARRIED)
    heap = find_heap_moments(trace, scan.device, chosen, heaps, cells_max=cells_max)
    ledgers = find_ledgers(trace, instants, scan.device, heaps)
    return PageCanvases(bands, heap, ledgers, _list_stacks(trace, _heaviest(bands, heap, stacks_max)))


def _heaviest(bands: Bands, heap: HeapMoments, stacks_max: int) -> list[int]:
    """The stacks that are named, those of the largest bands, blocks and pins first."""
    pins = [pin for one in heap.moments for pinned in one.pinned for pin in pinned.pins]
    columns = [
        (np.zeros(1, np.int64), np.full(1, np.iinfo(np.int64).max)),
        (bands.bands.stack, bands.bands.held_bytes),
        *((one.cells.stack, one.cells.cell_bytes) for one in heap.moments),
        (np.array([pin.stack for pin in pins], np.int64), np.array([pin.held_bytes for pin in pins], np.int64)),
    ]
    stack, held_bytes = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((stack, -held_bytes))
    _, first = np.unique(stack[order], return_index=True)
    return [int(number) for number in stack[order][np.sort(first)[:stacks_max]]]


def _list_stacks(trace: Trace, stacks: Sequence[int]) -> list[ListedStack]:
    """The stacks by number, with their sites, and their frames while there is room: first come, first kept."""
    finder = SiteFinder(trace)
    seen: set[int] = set()
    characters = 0
    listed = []
    for number, all_frames in zip(stacks, read_stacks(trace, np.array(stacks, np.int64)), strict=True):
        frames = all_frames[:FRAMES_MAX] if characters < CHARACTERS_MAX else ()
        characters += sum(len(frame.file) + len(frame.function) for frame in frames if id(frame) not in seen)
        seen.update(map(id, frames))
        listed.append(ListedStack(StackId(number), finder.site(StackId(number)), frames, len(all_frames)))
    return sorted(listed, key=lambda one: one.stack)
