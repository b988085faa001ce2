"""What events do not say of their blocks (bytes, splits, hits, merges), filled in by replay while events stream past.

    filler = EventFiller(EventFollower(...))
    filler.feed(columns); filler.ready  # column sets with their details, in the order they were fed

Owns: joining events and their details, and what a replay's end says of a trace's facts. Must not know: files, journals,
where a heap at the start comes from. A column set is held until all its events are settled; where a device waits for
more events than are worth holding, it is followed as if it had no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpumem.abi.policy import EventDetails, ReplayAssumption, ReplayResult
from gpumem.simulate.recorded_device import are_pools_recorded, device_options, devices_of, recorded_limit
from gpumem.simulate.replay import EventFollower, TraceFollower, TraceReplay, find_own
from gpumem.trace.model import EVENT_COLUMNS, Column, DeviceFacts, Trace, TraceMeta
from gpumem.vocabulary import EventKind, TraceSource

HELD_ROWS_MAX = 1 << 20
"""Events that a device may be waited for, behind those that it holds up."""
DETAIL_COLUMNS = ("block_bytes", "split_bytes", "flags")

_HAS_BLOCK = np.zeros(256, np.bool_)
_HAS_BLOCK[[EventKind.ALLOC, EventKind.FREE, EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED]] = True
_SAID_OF_ASSUMPTIONS = {
    ReplayAssumption.LOST_POOLS: "a private pool that was gone at the end was told by its segments alone",
    ReplayAssumption.DRIVER_REFUSED: "the driver refused memory below any limit that is known",
    ReplayAssumption.SETTINGS_CHANGED: "expandable segments were switched on or off, which no event says",
    ReplayAssumption.SLACK: "the rounding of some blocks from before the recording is not known and counts as little",
    ReplayAssumption.RELEASE: "the memory limit is not known: retries may be more than counted",
}


@dataclass(frozen=True, slots=True)
class DeviceFill:
    """What is known of a device's blocks: all of them (`known_until` None), or those of the events before one."""

    device: int
    known_until: int | None
    notes: Sequence[str]


class EventFiller:
    """Events held until replay has settled them; `ready` has those that are, as they were fed, details included."""

    def __init__(self, follower: EventFollower, *, held_rows_max: int = HELD_ROWS_MAX) -> None:
        self._follower = follower
        self._held_rows_max = held_rows_max
        self._fed_count = 0
        self._held: deque[tuple[Mapping[str, Column], bool]] = deque()
        self._details: deque[EventDetails] = deque()
        self._settled_count = 0
        self._end_of_first_held = 0
        self.ready: deque[dict[str, Column]] = deque()

    def feed(self, columns: Mapping[str, Column], *, is_wanted: bool = True) -> None:
        """Follows the next events: all of EVENT_COLUMNS, or REPLAY_COLUMNS where they are not wanted back."""
        self._fed_count += len(columns["kind"])
        if not self._held:
            self._end_of_first_held = self._fed_count
        self._held.append((columns, is_wanted))
        self._follower.feed(columns)
        self._join(self._follower.take())
        while self._held and self._fed_count - self._end_of_first_held > self._held_rows_max:
            held_count = len(self._held)
            self._follower.settle(self._end_of_first_held)
            self._join(self._follower.take())
            assert len(self._held) < held_count, "what waited has been settled"

    def finish(self) -> None:
        """There are no more events: everything held becomes ready."""
        self._join(self._follower.finish())
        assert not self._held, "a finished replay has settled every event"

    def give_up(self) -> None:
        """Everything held becomes ready as it was fed: it cannot be followed."""
        self.ready.extend(dict(columns) for columns, is_wanted in self._held if is_wanted)
        self._held.clear()

    def _join(self, details: EventDetails) -> None:
        if len(details.flags):
            self._details.append(details)
            self._settled_count += len(details.flags)
        while self._held and self._settled_count >= len(self._held[0][0]["kind"]):
            columns, is_wanted = self._held.popleft()
            settled = self._take(len(columns["kind"]))
            if is_wanted:
                self.ready.append(with_details(columns, settled))
            if self._held:
                self._end_of_first_held += len(self._held[0][0]["kind"])

    def _take(self, count: int) -> EventDetails:
        """The next `count` details."""
        taken: list[EventDetails] = []
        missing = count
        while missing:
            first = self._details.popleft()
            if len(first.flags) > missing:
                self._details.appendleft(_slice(first, missing, len(first.flags)))
                first = _slice(first, 0, missing)
            taken.append(first)
            missing -= len(first.flags)
        self._settled_count -= count
        if len(taken) == 1:
            return taken[0]
        joined = [np.concatenate([getattr(one, name) for one in taken] or [[]]) for name in DETAIL_COLUMNS]
        return EventDetails(*joined)


def with_details(columns: Mapping[str, Column], details: EventDetails) -> dict[str, Column]:
    """The columns with bytes, splits and flags of blocks as replay found them, and an oom's flags; the rest is kept.

    gpumem's own allocator has said these of its events.
    """
    kind = columns["kind"].astype(np.uint8, copy=False)
    is_own = find_own(columns["flags"])
    has_block = _HAS_BLOCK[kind] & ~is_own
    filled = dict(columns)
    for name in DETAIL_COLUMNS:
        found = getattr(details, name).astype(EVENT_COLUMNS[name], copy=False)
        told = has_block if name != "flags" else has_block | ((kind == EventKind.OOM) & ~is_own)
        filled[name] = found if told.all() else np.where(told, found, columns[name])
    return filled


def _slice(details: EventDetails, first: int, end: int) -> EventDetails:
    return EventDetails(
        details.block_bytes[first:end],
        details.split_bytes[first:end],
        details.flags[first:end],
    )


def fill_events(trace: Trace, follower: EventFollower) -> Iterator[dict[str, Column]]:
    """The trace's events, whole columns at a time, with their details."""
    filler = EventFiller(follower)
    for batch in trace.event_batches(list(EVENT_COLUMNS)):
        filler.feed(batch.columns)
        while filler.ready:
            yield filler.ready.popleft()
    filler.finish()
    yield from filler.ready


def can_be_filled(meta: TraceMeta) -> bool:
    """Whether a recording lacks what replay can tell."""
    return meta.source is TraceSource.NATIVE and not meta.block_bytes_known


def follow_devices(trace: Trace) -> TraceFollower:
    """A follower of all devices of a recording, as it says that they were set up."""
    settings, version = trace.meta.settings, trace.meta.versions.get("torch")
    devices = [
        device_options(
            trace, device, settings=settings, limit_bytes=recorded_limit(trace, device), torch_version=version
        )
        for device in devices_of(trace)
    ]
    return TraceFollower(trace, devices, pools_recorded=are_pools_recorded(trace))


def describe_fills(replay: TraceReplay) -> list[DeviceFill]:
    """What is known of the blocks of each device that was, or could not be, followed."""
    refused = [unfollowed(device, reason) for device, reason in replay.refusals.items()]
    followed = [describe_fill(device, one) for device, one in replay.results.items() if device not in replay.refusals]
    return sorted([*refused, *followed], key=lambda fill: fill.device)


def unfollowed(device: int, reason: str) -> DeviceFill:
    """What is known of a device that was not followed: nothing."""
    return DeviceFill(device, 0, (f"Device {device}: block sizes are not known. {reason.rstrip('.')}.",))


def describe_fill(device: int, result: ReplayResult) -> DeviceFill:
    """What a device's replay says of its blocks."""
    notes = [f"Device {device}: {said}." for bit, said in _SAID_OF_ASSUMPTIONS.items() if result.assumptions & bit]
    if result.exact:
        return DeviceFill(device, None, notes)
    position = result.difference_position
    notes.append(
        f"Device {device}: block sizes are known up to event {position} only: what the recording has there, PyTorch's "
        f"allocator as replayed does not do ({result.reason})."
    )
    return DeviceFill(device, position, notes)


def filled_meta(meta: TraceMeta, fills: Sequence[DeviceFill], event_count: int) -> TraceMeta:
    """The facts of a trace after its events were filled."""
    known = {one.device: one.known_until for one in fills}
    is_whole = all(until is None for until in known.values())
    facts = {one.device: one for one in meta.devices}
    if not is_whole:
        for device in facts.keys() | known.keys():
            at_least, until = facts.get(device, DeviceFacts(device)), known.get(device)
            facts[device] = replace(at_least, block_bytes_known_until=event_count if until is None else until)
    notes = [note for one in fills for note in one.notes]
    return replace(
        meta,
        block_bytes_known=is_whole,
        devices=tuple(facts[device] for device in sorted(facts)),
        notes=(*meta.notes, *(note for note in notes if note not in meta.notes)),
    )
