"""An out-of-memory event of a recording explained, with the heap as it stood after the last attempt.

Owns: the figures that an event, the heap at it and NVML give to the rule. Must not know: the rule (oom_rule.py), words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumem.analyses.oom import find_oom_verdict, is_expandable_on
from gpumem.analyses.oom_facts import OomFacts, OomVerdict
from gpumem.analyses.oom_rule import SMALL_REQUEST_BYTES_MAX, segment_bytes_of
from gpumem.analyses.readings import find_reading
from gpumem.heap.figures import HeapFigures, measure_heap
from gpumem.heap.instants import Instant
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import live_at
from gpumem.heap.segments import Segment, segments_at
from gpumem.simulate.apart import tell_apart
from gpumem.trace.allocators import code_of, find_allocator
from gpumem.trace.model import Reading, Trace
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin, ProcessShare
from gpumem.units import MIB
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind, StreamId

SMALL_SLACK_BYTES_MAX = 511
LARGE_SLACK_BYTES_MAX = MIB
"""Less than that of a free block is not split off in a large segment."""
_COLUMNS = ("kind", "device", "time_ns", "stream", "requested_bytes", "address", "block_bytes", "split_bytes", "flags")


def explain_oom_event(trace: Trace, event: EventIndex) -> OomVerdict:
    """Why the request of an out-of-memory event was refused."""
    batch = next(iter(trace.event_batches(_COLUMNS, first_event=event, end_event=event + 1)))
    kind, number, time_ns, stream, request, free, limit, card, flags = (int(batch[name][0]) for name in _COLUMNS)
    assert kind == EventKind.OOM, "only an out-of-memory event is explained"
    device = DeviceOrdinal(number)
    allocator = find_allocator(trace.meta, device, code_of(flags))
    known, settings = allocator.facts, allocator.settings
    heap_trace, ordinal = tell_apart(trace).find(device, allocator.code)
    segments = segments_at(heap_trace, event, devices=[ordinal])
    blocks = live_at(heap_trace, event, devices=[ordinal], carried=("requested_bytes",)).get(ordinal)
    heap = _Heap(heap_trace, event, ordinal, StreamId(stream), segments, blocks)
    card_bytes = card or known.capacity_bytes
    limit_bytes = limit or known.memory_limit_bytes
    reading = find_reading(trace, device, Instant(event, time_ns))
    return find_oom_verdict(
        OomFacts(
            OomOrigin.TRACE,
            asked=Figure(segment_bytes_of(request)),
            request=Figure(request),
            free=Figure(free),
            card=None if card_bytes is None else Figure(card_bytes),
            allocated=heap.allocated,
            idle=heap.idle,
            private_idle=heap.private_idle,
            reserved=Figure(heap.reserved_bytes),
            limit=Figure(limit_bytes) if limit_bytes is not None and limit_bytes < IMPOSSIBLE_BYTES else None,
            process=_this_process(card_bytes, free, reading),
            other_processes=_other_processes(reading),
            largest_gap_bytes=heap.largest_gap_bytes(request),
            other_streams_idle_bytes=heap.other_streams_idle_bytes(),
            has_max_split="max_split_size_mb" in (settings or ""),
            has_expandable=is_expandable_on(settings) or any(segment.expandable for segment in segments),
        )
    )


def is_oom_event(trace: Trace, event: EventIndex, device: DeviceOrdinal) -> bool:
    """Whether memory ran out on this device at this event."""
    if event < 0:
        return False
    batch = next(iter(trace.event_batches(("kind", "device"), first_event=event, end_event=event + 1)))
    return int(batch["kind"][0]) == EventKind.OOM and int(batch["device"][0]) == device


def _other_processes(reading: Reading | None) -> Sequence[ProcessShare]:
    """The other processes taken together, as NVML read them; none where it could not."""
    if reading is None or reading.other_processes_bytes is None:
        return ()
    return (ProcessShare(None, Figure(reading.other_processes_bytes)),)


def _this_process(card_bytes: int | None, free_bytes: int, reading: Reading | None) -> Figure | None:
    """What the used bytes leave for this process beside others and what no process holds.

    Its own figure in the reading would be of another moment; the rest of the card changes less.
    """
    if card_bytes is None or reading is None or reading.other_processes_bytes is None:
        return None
    elsewhere = reading.other_processes_bytes
    if reading.used_bytes is not None and reading.process_bytes is not None:
        elsewhere = max(elsewhere, reading.used_bytes - reading.process_bytes)
    return Figure(max(0, card_bytes - free_bytes - elsewhere))


class _Heap:
    """The heap of one device after an event, as far as the recording knows its blocks, and the part of one stream."""

    def __init__(
        self,
        trace: Trace,
        event: EventIndex,
        device: DeviceOrdinal,
        stream: StreamId,
        segments: Sequence[Segment],
        blocks: LiveTable | None,
    ) -> None:
        self.reserved_bytes = sum(segment.segment_bytes for segment in segments)
        self.allocated = Figure(0)
        self.private_idle: Figure | None = None
        self._ordinary: HeapFigures | None = None
        self._of_stream: HeapFigures | None = None
        if blocks is not None and trace.knows_blocks(device):
            where = str(trace.path)
            everything = measure_heap(segments, blocks, event, where)
            ordinary = [segment for segment in segments if segment.pool == 0]
            of_stream = [segment for segment in ordinary if segment.stream == stream]
            self._ordinary = measure_heap(ordinary, _blocks_in(ordinary, blocks), event, where)
            self._of_stream = measure_heap(of_stream, _blocks_in(of_stream, blocks), event, where)
            self.allocated = Figure(everything.allocated_bytes + everything.pending_bytes)
            private = everything.idle_bytes - self._ordinary.idle_bytes
            self.private_idle = Figure(private) if private else None
        elif blocks is not None:
            self.allocated = _allocated_at_least(blocks)
        taken = self.allocated if self.private_idle is None else self.allocated + self.private_idle
        self.idle = (Figure(self.reserved_bytes) - taken).floored()

    def largest_gap_bytes(self, request_bytes: int) -> int | None:
        """The largest idle block of the stream and pool that serve the request; None where blocks are not known."""
        if self._of_stream is None:
            return None
        largest = self._of_stream.largest_free
        return largest.small_bytes if request_bytes <= SMALL_REQUEST_BYTES_MAX else largest.large_bytes

    def other_streams_idle_bytes(self) -> int | None:
        """What lies idle in ordinary segments of other streams; None where blocks are not known."""
        if self._ordinary is None or self._of_stream is None:
            return None
        return self._ordinary.idle_bytes - self._of_stream.idle_bytes


def _blocks_in(segments: Sequence[Segment], blocks: LiveTable) -> LiveTable:
    """The blocks that lie in these segments, which are in order of address."""
    if not segments:
        return blocks.select(np.zeros(len(blocks), np.bool_))
    starts = np.array([segment.address for segment in segments], np.uint64)
    ends = np.array([segment.end for segment in segments], np.uint64)
    homes = np.searchsorted(starts, blocks.address, side="right") - 1
    return blocks.select((homes >= 0) & (blocks.address < ends[homes]))


def _allocated_at_least(blocks: LiveTable) -> Figure:
    """From the requests alone: blocks are that and a slack of which only the bounds are known."""
    requests = blocks["requested_bytes"].astype(np.int64)
    is_small = requests <= SMALL_REQUEST_BYTES_MAX
    slack = int(np.where(is_small, SMALL_SLACK_BYTES_MAX, LARGE_SLACK_BYTES_MAX).sum())
    return Figure(int(requests.sum()) + slack // 2, -(-slack // 2))
