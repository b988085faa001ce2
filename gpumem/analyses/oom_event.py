"""An out-of-memory event of a recording explained, with the heap as it stood after the last attempt.

Owns: the figures that an event, the heap at it and NVML give to the rule. Must not know: the rule (oom_rule.py), words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumem.analyses.oom import find_oom_verdict, is_expandable_on
from gpumem.analyses.oom_rule import SMALL_REQUEST_BYTES_MAX, OomFacts, OomVerdict, segment_bytes_of
from gpumem.analyses.readings import nearest_reading
from gpumem.heap.figures import measure_heap
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import live_at
from gpumem.heap.segments import Segment, segments_at
from gpumem.trace.model import DeviceFacts, Trace
from gpumem.trace.oom_message import Figure, OomOrigin, ProcessShare
from gpumem.units import MIB
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind

SMALL_SLACK_BYTES_MAX = 511
LARGE_SLACK_BYTES_MAX = MIB
"""Less than that of a free block is not split off in a large segment."""
_UNLIMITED_BYTES = 1 << 60
_COLUMNS = ("kind", "device", "time_ns", "requested_bytes", "address", "block_bytes", "split_bytes")


def explain_oom_event(trace: Trace, event: EventIndex) -> OomVerdict:
    """Why the request of an out-of-memory event was refused."""
    batch = next(iter(trace.event_batches(_COLUMNS, first_event=event, end_event=event + 1)))
    kind, number, time_ns, request, free, limit, card = (int(batch[name][0]) for name in _COLUMNS)
    assert kind == EventKind.OOM, "only an out-of-memory event is explained"
    device = DeviceOrdinal(number)
    known = next((one for one in trace.meta.devices if one.device == device), DeviceFacts(device))
    segments = segments_at(trace, event, devices=[device])
    blocks = live_at(trace, event, devices=[device], carried=("requested_bytes",)).get(device)
    heap = _Heap(trace, event, segments, blocks)
    card_bytes = card or known.capacity_bytes
    limit_bytes = limit or known.memory_limit_bytes
    others = _other_processes(trace, device, time_ns)
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
            limit=Figure(limit_bytes) if limit_bytes is not None and limit_bytes < _UNLIMITED_BYTES else None,
            process=_this_process(card_bytes, free, others),
            other_processes=others,
            largest_gap_bytes=heap.largest_gap_bytes(request),
            has_expandable=is_expandable_on(trace.meta.settings) or any(segment.expandable for segment in segments),
        )
    )


def is_oom_event(trace: Trace, event: EventIndex, device: DeviceOrdinal) -> bool:
    """Whether memory ran out on this device at this event."""
    if event < 0:
        return False
    batch = next(iter(trace.event_batches(("kind", "device"), first_event=event, end_event=event + 1)))
    return int(batch["kind"][0]) == EventKind.OOM and int(batch["device"][0]) == device


def _other_processes(trace: Trace, device: DeviceOrdinal, time_ns: int) -> Sequence[ProcessShare]:
    """The other processes taken together, as NVML read them nearest to the event; none where it could not."""
    reading = nearest_reading(trace.readings, device, time_ns)
    if reading is None or reading.other_processes_bytes is None:
        return ()
    return (ProcessShare(None, Figure(reading.other_processes_bytes)),)


def _this_process(card_bytes: int | None, free_bytes: int, others: Sequence[ProcessShare]) -> Figure | None:
    """What is left of the used bytes for this process: a reading of its own would be of another moment."""
    used = others[0].used if others else None
    if card_bytes is None or used is None:
        return None
    return Figure(max(0, card_bytes - free_bytes - used.byte_count))


class _Heap:
    """The heap of one device after an event, as far as the recording knows its blocks."""

    def __init__(self, trace: Trace, event: EventIndex, segments: Sequence[Segment], blocks: LiveTable | None) -> None:
        self.reserved_bytes = sum(segment.segment_bytes for segment in segments)
        self._figures = None
        self.allocated: Figure | None = Figure(0)
        self.private_idle: Figure | None = None
        if blocks is not None and trace.meta.block_bytes_known:
            self._figures = measure_heap(segments, blocks, event, str(trace.path))
            self.allocated = Figure(self._figures.allocated_bytes + self._figures.pending_bytes)
            private = _private_idle_bytes(segments, blocks)
            self.private_idle = Figure(private) if private else None
        elif blocks is not None:
            self.allocated = _allocated_at_least(blocks)
        assert self.allocated is not None, "set above"
        taken = self.allocated if self.private_idle is None else self.allocated + self.private_idle
        self.idle = (Figure(self.reserved_bytes) - taken).floored()

    def largest_gap_bytes(self, request_bytes: int) -> int | None:
        """The largest idle block of the pools that would serve the request; None where blocks are not known."""
        if self._figures is None:
            return None
        largest = self._figures.largest_free
        return largest.small_bytes if request_bytes <= SMALL_REQUEST_BYTES_MAX else largest.large_bytes


def _allocated_at_least(blocks: LiveTable) -> Figure:
    """From the requests alone: blocks are that and a slack of which only the bounds are known."""
    requests = blocks["requested_bytes"].astype(np.int64)
    is_small = requests <= SMALL_REQUEST_BYTES_MAX
    slack = int(np.where(is_small, SMALL_SLACK_BYTES_MAX, LARGE_SLACK_BYTES_MAX).sum())
    return Figure(int(requests.sum()) + slack // 2, -(-slack // 2))


def _private_idle_bytes(segments: Sequence[Segment], blocks: LiveTable) -> int:
    """What lies idle in the segments of private pools; the segments are in order of address."""
    private = np.array([segment.pool > 0 for segment in segments], np.bool_)
    held = sum(segment.segment_bytes for segment in segments if segment.pool > 0)
    if not held:
        return 0
    starts = np.array([segment.address for segment in segments], np.uint64)
    homes = np.searchsorted(starts, blocks.address, side="right") - 1
    return held - int(blocks["block_bytes"].astype(np.int64)[private[homes]].sum())
