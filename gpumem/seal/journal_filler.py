"""The events of one journal followed by replay while they are sealed, so that their blocks are known.

Owns: when a device is made known to the replay and with which facts, and the key of those facts: what was filled under
another key has to be filled again. Must not know: parts, files, window states.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpumem.abi.policy import DeviceOptions
from gpumem.abi.torch_release import behaviour_of
from gpumem.errors import NativeCoreError
from gpumem.simulate.fill import DeviceFill, EventFiller, describe_fills, unfollowed
from gpumem.simulate.recorded_device import limit_of, says_pools
from gpumem.simulate.replay import EventFollower
from gpumem.simulate.start_heap import heap_of_rows
from gpumem.trace.entries import JournalEntries
from gpumem.trace.journal_facts import JournalFacts
from gpumem.trace.journal_trace import place_found_blocks
from gpumem.trace.model import Column, DeviceFacts
from gpumem.vocabulary import NO_DEVICE, TraceSource


def fill_key(facts: JournalFacts) -> str:
    """A name for the facts that replay goes by: settings, limits, the heap found at the start."""
    meta = facts.meta()
    told = [(one.device, one.capacity_bytes, one.memory_limit_bytes) for one in meta.devices]
    text = repr((meta.source is TraceSource.GPUMEM, meta.settings, says_pools(meta), told, facts.state_texts()))
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


class JournalFiller:
    """Column sets of a journal in, the same with their blocks' details out, in order, some sets later."""

    def __init__(self, entries: JournalEntries, facts: JournalFacts) -> None:
        self.key = fill_key(facts)
        self._entries = entries
        self._facts = facts
        self._meta = facts.meta()
        self._follower = EventFollower(pools_recorded=says_pools(self._meta), passes_own=True)
        self._filler = EventFiller(self._follower)
        self._devices: set[int] = set()
        self._failure = ""
        self._is_passing = self._meta.source is TraceSource.GPUMEM  # which says its blocks' bytes itself

    @property
    def ready(self) -> deque[dict[str, Column]]:
        """The wanted column sets that are complete, in the order they were fed."""
        return self._filler.ready

    def feed(self, columns: Mapping[str, Column], *, is_wanted: bool = True) -> None:
        """Follows the next events; see EventFiller."""
        if self._is_passing:
            if is_wanted:
                self._filler.ready.append(dict(columns))
            return
        self._follower.know_rows(self._entries.stream_rows(), self._entries.pool_rows())
        for device in np.unique(columns["device"]).tolist():
            if device not in self._devices and device != NO_DEVICE:
                self._add(device)
        try:
            self._filler.feed(columns, is_wanted=is_wanted)
        except NativeCoreError as error:
            self._give_up(str(error))

    def finish(self) -> None:
        """There are no more events: what is held becomes ready."""
        if self._is_passing:
            return
        try:
            self._filler.finish()
        except NativeCoreError as error:
            self._give_up(str(error))

    def fills(self) -> Sequence[DeviceFill]:
        """What is known of each device's blocks, once finished."""
        if self._failure:
            return [unfollowed(device, self._failure) for device in sorted(self._devices)]
        return describe_fills(self._follower.results())

    def close(self) -> None:
        """Frees the replay."""
        self._follower.close()

    def _add(self, device: int) -> None:
        """Makes a device known with its facts and the heap of it that recording found."""
        self._devices.add(device)
        facts = {one.device: one for one in self._meta.devices}.get(device, DeviceFacts(device))
        meta = replace(self._meta, source=TraceSource.NATIVE)  # said a moment after the first events
        options = DeviceOptions(
            device,
            meta.settings or "",
            limit_of(meta, facts, meta.settings),
            facts.capacity_bytes,
            behaviour=behaviour_of(meta.versions.get("torch")),
        )
        streams, pools = self._entries.stream_rows(), self._entries.pool_rows()
        found = [block for block in self._facts.found_blocks() if block.device == device and not block.code]
        blocks = place_found_blocks(found, streams, pools)
        self._follower.add_device(options, heap_of_rows(blocks, streams, pools) if blocks else None)

    def _give_up(self, reason: str) -> None:
        """Passes events on as they are from here: nothing of any device is certain any more."""
        self._is_passing = True
        self._failure = reason
        self._filler.give_up()
