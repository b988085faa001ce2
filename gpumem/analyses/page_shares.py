"""Who held the bytes at chosen events, and what came from the driver: one pass over a trace, by device.

Owns: the bytes of each site at many events, the stacks at the peak, segment and out-of-memory events with their sites.
Must not know: which events are drawn, HTML.
Blocks are followed and counted at the chosen events (held_by_site.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpumem.analyses.held_by_site import HeldBySite
from gpumem.analyses.sites import SiteFinder
from gpumem.heap.levels import DeviceBatch, basis_column, bytes_columns, read_in_pieces, split_by_device
from gpumem.heap.live import initial_table
from gpumem.trace.model import Frame, Trace
from gpumem.trace.stack_links import read_stacks
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind, StackId

Int64s = npt.NDArray[np.int64]

SITES_FOLLOWED = 48
"""Sites whose bytes are kept over time; the rest is told by what is missing to the held bytes."""
PEAK_STACKS_KEPT = 4000
SEGMENT_EVENTS_KEPT = 600
OOMS_KEPT = 100
_SEGMENT_KINDS = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE, EventKind.SEGMENT_MAP, EventKind.SEGMENT_UNMAP)
_COLUMNS = ("time_ns", "kind", "device", "address", "requested_bytes", "stack")


@dataclass(frozen=True, slots=True)
class SiteBytes:
    """What one site held at each of the sampled events, and how often it allocated in the whole trace."""

    site: Frame | None
    held_bytes: Int64s
    held_bytes_peak: int
    alloc_count: int


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """A segment that came, went, grew or shrank, or a request that ran out of memory, and the site that caused it."""

    event: EventIndex
    time_ns: int
    kind: EventKind
    driver_bytes: int
    """The segment's or range's bytes; of an out-of-memory event those asked for."""
    free_bytes: int | None
    """Free on the card then; None but for out of memory."""
    site: Frame | None


@dataclass(frozen=True, slots=True)
class PeakStack:
    """The blocks at the peak that one call stack made; `frames` innermost first, empty without a stack."""

    frames: Sequence[Frame]
    site: Frame | None
    held_bytes: int
    block_count: int


@dataclass(frozen=True, slots=True)
class PageShares:
    """Who held a device's bytes at the sampled events; the sites' bytes add up to the held bytes there."""

    event: Int64s
    time_ns: Int64s
    by_site: Sequence[SiteBytes]
    """Most bytes at any sampled event first."""
    peak_stacks: Sequence[PeakStack]
    """Most bytes first."""
    peak_rest_bytes: int
    """Held at the peak by the blocks of stacks that are not among `peak_stacks`."""
    driver_events: Sequence[DriverEvent]
    """The largest, in order of time."""
    driver_event_count: int
    oom_events: Sequence[DriverEvent]
    oom_count: int


def find_shares(
    trace: Trace, samples: Mapping[DeviceOrdinal, Int64s], peaks: Mapping[DeviceOrdinal, EventIndex]
) -> Mapping[DeviceOrdinal, PageShares]:
    """The shares of each device in `samples` at the events given for it, in order, and at its peak."""
    finder = SiteFinder(trace)
    followers = {
        device: _Follower(trace, device, np.union1d(events, [peaks[device]]), peaks[device], finder)
        for device, events in samples.items()
    }
    for batch in read_in_pieces(trace, tuple(dict.fromkeys([*_COLUMNS, *bytes_columns(trace)]))):
        for events in split_by_device(batch, followers):
            followers[events.device].take(events)
    return {device: follower.shares() for device, follower in followers.items()}


@dataclass(slots=True)
class _SiteNumbers:
    """Numbers for the sites of stacks, in the order in which they are met."""

    finder: SiteFinder
    by_stack: Int64s
    by_frame: Int64s
    """Of each row of the frames table; the last is that of stacks without a site."""
    sites: list[Frame | None] = field(default_factory=list)
    numbers: dict[Frame | None, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, finder: SiteFinder) -> _SiteNumbers:
        """None numbered yet."""
        stack_count, frame_count = max(1, len(trace.stacks.parents)), len(trace.frames.files)
        return cls(finder, np.full(stack_count, -1, np.int64), np.full(frame_count + 1, -1, np.int64))

    def of_stacks(self, stacks: npt.NDArray[np.int64]) -> Int64s:
        """The site number of each stack."""
        numbers = self.by_stack.take(stacks)
        if len(numbers) and numbers.min() < 0:
            self._number(np.unique(stacks[numbers < 0]))
            numbers = self.by_stack.take(stacks)
        return numbers

    def _number(self, stacks: Int64s) -> None:
        rows = self.finder.find_frames(stacks)
        new = np.flatnonzero(self.by_frame[rows] < 0)
        _, first = np.unique(rows[new], return_index=True)
        for at in new[np.sort(first)].tolist():
            site = self.finder.site(StackId(int(stacks[at])))
            self.by_frame[rows[at]] = number = self.numbers.setdefault(site, len(self.sites))
            if number == len(self.sites):
                self.sites.append(site)
        self.by_stack[stacks] = self.by_frame[rows]


class _Follower:
    """One device on the way through the trace."""

    def __init__(
        self, trace: Trace, device: DeviceOrdinal, samples: Int64s, peak: EventIndex, finder: SiteFinder
    ) -> None:
        self._trace, self._column, self._peak = trace, basis_column(trace, device), peak
        self._finder = finder
        self._sites = _SiteNumbers.of(trace, finder)
        self._alloc_counts = np.zeros(len(self._sites.by_stack), np.int64)
        initial = [block for block in trace.initial_blocks if block.device == device]
        table = initial_table(initial, tuple(dict.fromkeys(["requested_bytes", self._column, "stack"])))
        self._held = HeldBySite(table, self._column, self._sites.of_stacks)
        self._samples, self._next = samples, 0
        self._taken: list[tuple[int, int, Int64s, Int64s]] = []
        self._peak_stacks: list[PeakStack] = []
        self._peak_rest_bytes = 0
        self._segments = _Largest()
        self._ooms: list[tuple[int, ...]] = []
        self._oom_count = 0
        while self._next < len(samples) and samples[self._next] < 0:
            self._count(-1, 0)

    def take(self, events: DeviceBatch) -> None:
        """Follows a batch, stopping after each sampled event to count."""
        kind = events["kind"]
        self._alloc_counts += np.bincount(events["stack"][kind == EventKind.ALLOC], minlength=len(self._alloc_counts))
        self._segments.take(events, np.flatnonzero(np.isin(kind, _SEGMENT_KINDS)))
        self._take_ooms(events)
        begin = 0
        while self._next < len(self._samples):
            event = int(self._samples[self._next])
            if event > events.event_at(events.count - 1):
                break
            end = _position_after(events, event)
            self._held.apply(_cut(events, begin, end))
            self._count(event, int(events["time_ns"][end - 1]) if end else 0)
            begin = end
        self._held.apply(_cut(events, begin, events.count))

    def shares(self) -> PageShares:
        """What was found."""
        events = np.array([event for event, _, _, _ in self._taken], np.int64)
        times = np.array([time_ns for _, time_ns, _, _ in self._taken], np.int64)
        return PageShares(
            events,
            times,
            self._by_site(),
            self._peak_stacks,
            self._peak_rest_bytes,
            [self._driver_event(row) for row in self._segments.rows()],
            self._segments.seen,
            [self._driver_event(row) for row in self._ooms],
            self._oom_count,
        )

    def _count(self, event: int, time_ns: int) -> None:
        """Counts what is held after a sampled event."""
        self._next += 1
        if event == self._peak:
            self._find_peak_stacks()
        sums = self._held.sums()
        present = np.flatnonzero(sums)
        self._taken.append((event, time_ns, present, sums[present]))

    def _by_site(self) -> list[SiteBytes]:
        used = np.flatnonzero(self._alloc_counts)
        numbers = self._sites.of_stacks(used)
        allocs = np.bincount(numbers, weights=self._alloc_counts[used], minlength=len(self._sites.sites))
        most = np.zeros(len(self._sites.sites), np.int64)
        for _, _, present, sums in self._taken:
            most[present] = np.maximum(most[present], sums)
        order = sorted(range(len(most)), key=lambda number: (-int(most[number]), -int(allocs[number]), number))
        dense = self._dense(order)
        return [
            SiteBytes(self._sites.sites[number], dense[place], int(most[number]), int(allocs[number]))
            for place, number in enumerate(order)
        ]

    def _dense(self, order: Sequence[int]) -> list[Int64s]:
        """The bytes at every counted event of the sites in this order; of many sites only the first have them."""
        place = np.full(len(order), -1, np.int64)
        place[np.array(order, np.int64)] = np.arange(len(order))
        kept = min(len(order), SITES_FOLLOWED)
        rows = np.zeros((len(self._taken), kept), np.int64)
        for row, (_, _, present, sums) in enumerate(self._taken):
            chosen = place[present] < kept
            rows[row, place[present[chosen]]] = sums[chosen]
        nothing = np.zeros(0, np.int64)
        return [rows[:, number] for number in range(kept)] + [nothing] * (len(order) - kept)

    def _find_peak_stacks(self) -> None:
        held = self._held.blocks()
        stacks, where = np.unique(held["stack"], return_inverse=True)
        sums = np.bincount(where, weights=held[self._column], minlength=len(stacks)).astype(np.int64)
        counts = np.bincount(where, minlength=len(stacks))
        order = np.argsort(-sums, kind="stable")
        kept = order[:PEAK_STACKS_KEPT]
        for row, frames in zip(kept.tolist(), read_stacks(self._trace, stacks[kept]), strict=True):
            site = self._finder.site(StackId(int(stacks[row])))
            self._peak_stacks.append(PeakStack(frames, site, int(sums[row]), int(counts[row])))
        self._peak_rest_bytes = int(sums[order[PEAK_STACKS_KEPT:]].sum())

    def _take_ooms(self, events: DeviceBatch) -> None:
        rows = np.flatnonzero(events["kind"] == EventKind.OOM)
        self._oom_count += len(rows)
        names = ("time_ns", "kind", "requested_bytes", "stack", "address")
        for row in rows[: OOMS_KEPT - len(self._ooms)].tolist():
            self._ooms.append((events.event_at(row), *(int(events[name][row]) for name in names)))

    def _driver_event(self, row: Sequence[int]) -> DriverEvent:
        event, time_ns, kind, driver_bytes, stack, *free = row
        site = self._finder.site(StackId(stack))
        found = free[0] if free else None
        return DriverEvent(EventIndex(event), time_ns, EventKind(kind), driver_bytes, found, site)


@dataclass(slots=True)
class _Largest:
    """The segment events with the most bytes so far, in columns: event, time, kind, bytes, stack."""

    seen: int = 0
    kept: list[Int64s] = field(default_factory=lambda: [np.zeros(0, np.int64) for _ in range(5)])

    def take(self, events: DeviceBatch, rows: npt.NDArray[np.intp]) -> None:
        if not len(rows):
            return
        self.seen += len(rows)
        new = [events.events_at(rows), *(events[n][rows] for n in ("time_ns", "kind", "requested_bytes", "stack"))]
        self.kept = [np.concatenate([old, one.astype(np.int64)]) for old, one in zip(self.kept, new, strict=True)]
        if len(self.kept[0]) > 4 * SEGMENT_EVENTS_KEPT:
            self._drop()

    def rows(self) -> Iterator[tuple[int, ...]]:
        """The largest, in order of events."""
        self._drop()
        yield from zip(*(column.tolist() for column in self.kept), strict=True)

    def _drop(self) -> None:
        largest = np.sort(np.argsort(-self.kept[3], kind="stable")[:SEGMENT_EVENTS_KEPT])
        self.kept = [column[largest] for column in self.kept]


def _position_after(events: DeviceBatch, event: int) -> int:
    """How many of the batch's events are not after `event`."""
    offset = event - events.first_event + 1
    if events.rows is None:
        return max(0, min(events.count, offset))
    return int(np.searchsorted(events.rows, offset, side="left"))


def _cut(events: DeviceBatch, begin: int, end: int) -> DeviceBatch:
    """The events at positions [begin, end) of a batch."""
    if (begin, end) == (0, events.count):
        return events
    columns = {name: values[begin:end] for name, values in events.columns.items()}
    counts = np.bincount(columns["kind"].astype(np.uint8, copy=False), minlength=len(events.kind_counts))
    if events.rows is None:
        return DeviceBatch(events.device, events.first_event + begin, end - begin, columns, None, counts)
    return DeviceBatch(events.device, events.first_event, end - begin, columns, events.rows[begin:end], counts)
