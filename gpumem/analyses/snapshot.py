"""The heap at a moment, with the call stack of each block and the NVML reading nearest to it.

Owns: the findings of `gpumem snapshot`. Must not know: screens, JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpumem.analyses.oom_event import explain_oom_event, is_oom_event
from gpumem.analyses.oom_facts import OomVerdict
from gpumem.analyses.readings import find_reading
from gpumem.analyses.sites import SiteFinder
from gpumem.heap.instants import Instant
from gpumem.heap.state import Block, DeviceHeap, SegmentState, heap_at
from gpumem.trace.model import DeviceFacts, Frame, Reading, Trace
from gpumem.vocabulary import BlockState, DeviceOrdinal, StackId, TraceSource


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block with who asked for it; `site` is None without a stack."""

    block: Block
    site: Frame | None
    stack: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class SegmentFinding:
    """A segment, its blocks by address, and their sums; allocated_bytes is None where block bytes are not known."""

    address: int
    segment_bytes: int
    allocated_bytes: int | None
    requested_bytes: int
    """Requests of allocated blocks."""
    pending_count: int
    allocated_count: int
    stream: int
    """Raw handle; 0 is the default stream."""
    pool: tuple[int, int] | None
    """A private pool's id; None for the default pools."""
    expandable: bool
    tiled: bool
    blocks: Sequence[PlacedBlock]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The heap of one device, segments by address."""

    facts: DeviceFacts
    segments: Sequence[SegmentFinding]
    unplaced_blocks: Sequence[PlacedBlock]
    """Blocks in no segment that the trace knows of: made before the recording."""
    reserved_bytes: int
    requested_bytes: int
    allocated_bytes: int | None
    nvml: Reading | None
    oom_verdict: OomVerdict | None
    """Why memory ran out, where that is what happened on this device at the moment."""


@dataclass(frozen=True, slots=True)
class HeapSnapshot:
    """The heap of every device of a trace at a moment."""

    path: str
    instant: Instant
    devices: Sequence[DeviceSnapshot]
    is_recorded: bool = True
    """Whether an allocator was, or there is something of one all the same."""


def find_snapshot(trace: Trace, instant: Instant, *, devices: Collection[DeviceOrdinal] | None = None) -> HeapSnapshot:
    """The heap at `instant`."""
    writer = _Placer(trace)
    facts = {one.device: one for one in trace.meta.devices}
    heaps = {heap.device: heap for heap in heap_at(trace, instant.event, devices=devices)}
    is_recorded = bool(heaps) or trace.meta.source is not TraceSource.NONE
    if not heaps:
        read = {DeviceOrdinal(reading.device) for reading in trace.readings}
        heaps = {device: DeviceHeap(device, (), ()) for device in (read if devices is None else devices)}
    found = [
        _device_snapshot(trace, writer, facts.get(device, DeviceFacts(device)), heaps[device], instant)
        for device in sorted(heaps)
    ]
    return HeapSnapshot(str(trace.path), instant, found, is_recorded)


def _device_snapshot(
    trace: Trace, placer: _Placer, facts: DeviceFacts, heap: DeviceHeap, instant: Instant
) -> DeviceSnapshot:
    segments = [placer.segment(state) for state in heap.segments]
    unplaced = [placer.block(block) for block in heap.unplaced_blocks]
    stray = sum(one.block.requested_bytes or 0 for one in unplaced if one.block.state is BlockState.ALLOCATED)
    allocated = [segment.allocated_bytes for segment in segments if segment.allocated_bytes is not None]
    return DeviceSnapshot(
        facts,
        segments,
        unplaced,
        reserved_bytes=sum(segment.segment_bytes for segment in segments),
        requested_bytes=sum(segment.requested_bytes for segment in segments) + stray,
        allocated_bytes=sum(allocated) if len(allocated) == len(segments) and not unplaced else None,
        nvml=find_reading(trace, heap.device, instant),
        oom_verdict=explain_oom_event(trace, instant.event)
        if is_oom_event(trace, instant.event, heap.device)
        else None,
    )


class _Placer:
    """Adds sites, stacks, stream handles and pool ids to segments and blocks; shares equal stacks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._finder = SiteFinder(trace)
        self._stacks: dict[StackId, Sequence[Frame]] = {StackId(0): ()}

    def segment(self, state: SegmentState) -> SegmentFinding:
        allocated = [block for block in state.blocks if block.state is BlockState.ALLOCATED]
        pool = self._trace.pools[state.segment.pool] if 0 < state.segment.pool < len(self._trace.pools) else None
        streams = self._trace.streams
        return SegmentFinding(
            address=state.segment.address,
            segment_bytes=state.segment.segment_bytes,
            allocated_bytes=sum(block.block_bytes or 0 for block in allocated) if state.tiled else None,
            requested_bytes=sum(block.requested_bytes or 0 for block in allocated),
            pending_count=sum(block.state is BlockState.PENDING for block in state.blocks),
            allocated_count=len(allocated),
            stream=streams[state.segment.stream].handle if state.segment.stream < len(streams) else 0,
            pool=(pool.first, pool.second) if pool else None,
            expandable=state.segment.expandable,
            tiled=state.tiled,
            blocks=[self.block(block) for block in state.blocks],
        )

    def block(self, block: Block) -> PlacedBlock:
        stack = self._stacks.get(block.stack)
        if stack is None:
            stack = self._stacks[block.stack] = tuple(self._trace.stack_frames(block.stack))
        return PlacedBlock(block, self._finder.site(block.stack), stack)
