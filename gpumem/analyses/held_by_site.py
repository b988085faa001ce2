"""The bytes that each site holds while events stream past, for tables of many blocks that are asked again and again.

Owns: counting few events at a cost that does not grow with the table. Must not know: which events are asked for.

Blocks lie in two layers: an upper one, a live table that takes the events, and a lower one that is only left. It is
counted once; a block in it that an event touches is taken off its site's sum. An upper layer that has grown large
becomes part of the lower.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import DeviceBatch
from gpumem.heap.live import LiveTable, apply_events
from gpumem.vocabulary import EventKind

Int64s = npt.NDArray[np.int64]

UPPER_ROWS = 4096
"""So many rows an upper layer may always have; beyond, one to so many of the lower layer's:"""
LOWER_ROWS_AN_UPPER = 8
_TOUCHES = np.zeros(256, np.bool_)
_TOUCHES[[EventKind.ALLOC, EventKind.FREE, EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED]] = True


class HeldBySite:
    """The blocks of a device that are not pending, with their bytes summed by the number of their site."""

    def __init__(self, table: LiveTable, bytes_column: str, site_numbers: Callable[[Int64s], Int64s]) -> None:
        self._bytes_column, self._site_numbers = bytes_column, site_numbers
        self._upper = table
        self._lower = table.select(np.zeros(0, np.intp))
        self._is_left = np.ones(0, np.bool_)
        self._lower_sums = np.zeros(0, np.int64)

    def apply(self, events: DeviceBatch) -> None:
        """Goes on to the state after a batch of the device's events."""
        self._take_from_lower(events)
        self._upper = apply_events(self._upper, events)
        if len(self._upper) > max(UPPER_ROWS, len(self._lower) // LOWER_ROWS_AN_UPPER):
            self._lower = self.blocks()
            self._upper = self._upper.select(np.zeros(0, np.intp))
            self._is_left = np.ones(len(self._lower), np.bool_)
            self._lower_sums = self._sum(self._lower)

    def sums(self) -> Int64s:
        """The bytes of each site, by number; of those that hold nothing the last may be missing."""
        upper = self._sum(self._upper.held())
        sums = np.zeros(max(len(upper), len(self._lower_sums)), np.int64)
        sums[: len(upper)] += upper
        sums[: len(self._lower_sums)] += self._lower_sums
        return sums

    def blocks(self) -> LiveTable:
        """All blocks that are held, sorted by address."""
        lower, upper = self._lower.select(self._is_left), self._upper.held()
        address = np.concatenate([lower.address, upper.address])
        order = np.argsort(address, kind="stable")
        return LiveTable(
            address[order],
            np.concatenate([lower.event, upper.event])[order],
            np.concatenate([lower.pending, upper.pending])[order],
            {name: np.concatenate([old, upper.columns[name]])[order] for name, old in lower.columns.items()},
        )

    def _take_from_lower(self, events: DeviceBatch) -> None:
        """Whatever befalls a block's address, it is no longer held as it was."""
        if not len(self._lower):
            return
        address = events["address"][_TOUCHES.take(events["kind"])]
        at = np.minimum(np.searchsorted(self._lower.address, address), len(self._lower) - 1)
        at = at[(self._lower.address[at] == address) & self._is_left[at]]
        left = np.unique(at)
        self._is_left[left] = False
        taken = self._sum(self._lower.select(left))
        self._lower_sums[: len(taken)] -= taken

    def _sum(self, blocks: LiveTable) -> Int64s:
        numbers = self._site_numbers(blocks["stack"])
        return np.bincount(numbers, weights=blocks[self._bytes_column]).astype(np.int64)
