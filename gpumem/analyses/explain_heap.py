"""The allocator's reserved bytes as parts of a ledger: live requests, slack, pending, releasable, gaps, private pools.

Owns: that split, and what it becomes where the recording does not know its blocks' bytes; which blocks pin gaps.
Must not know: readings, text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.analyses.ledger_parts import Component, ComponentName, Evidence, make_parent
from gpumem.analyses.sites import SiteFinder
from gpumem.analyses.workspaces import WorkspaceFinder
from gpumem.heap.figures import measure_heap
from gpumem.heap.live import LiveTable
from gpumem.heap.segments import Segment
from gpumem.heap.stops import HeapTable
from gpumem.trace.model import Frame, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, StackId

PINNED_SHOWN = 5
CARRIED = ("block_bytes", "stack", "thread", "stream", "pool")


@dataclass(frozen=True, slots=True)
class PinnedSegment:
    """A segment that blocks in use keep from being returned although `gap_bytes` of it are idle."""

    address: int
    segment_bytes: int
    gap_bytes: int
    block_count: int
    block_bytes: int
    """Of all blocks in use in it."""
    largest_bytes: int
    largest_site: Frame | None
    """Who asked for the largest of them; None without a stack."""


@dataclass(frozen=True, slots=True)
class HeapLedger:
    """The reserved bytes of a device at a moment, split up."""

    allocator: Component
    live_bytes: int
    """Requests of all allocated blocks, workspaces and private pools included."""
    releasable_bytes: int | None
    """None where it cannot be told: expandable segments of a recording that does not know its blocks' bytes."""
    gap_bytes: int | None
    pending_bytes: int
    private_idle_bytes: int | None
    workspace_bytes: int
    workspace_count: int
    pinned: Sequence[PinnedSegment]
    """Those with the largest gaps, at most PINNED_SHOWN; empty where gaps are not known."""
    pinned_count: int
    is_known: bool
    """Whether the bytes of every block are known."""
    unplaced_count: int
    """Blocks in use that lie in no segment the trace knows."""

    @property
    def idle_bytes(self) -> int | None:
        """All idle bytes; None where they are not told apart from slack."""
        if self.releasable_bytes is None or self.gap_bytes is None:
            return None
        return self.releasable_bytes + self.gap_bytes + (self.private_idle_bytes or 0)


def find_heap_ledger(trace: Trace, heap: HeapTable, device: DeviceOrdinal, finder: WorkspaceFinder) -> HeapLedger:
    """The parts of what `device`'s allocator held; the blocks of `heap` have the CARRIED columns."""
    event, segments, blocks = heap.event, heap.segments, heap.blocks
    homes, unplaced = _find_homes(segments, blocks)
    workspaces = finder.find(blocks)
    is_known = not unplaced and _is_known(trace, event, device, blocks)
    part = _KnownPart(str(trace.path), event) if is_known else _UnknownPart()
    private = np.array([segment.pool > 0 for segment in segments], np.bool_)
    in_private = private[homes] & (homes >= 0) if len(segments) else np.zeros(len(blocks), np.bool_)
    main = part.measure(_chosen(segments, ~private), blocks.select(~in_private), workspaces[~in_private])
    pools = part.measure(_chosen(segments, private), blocks.select(in_private), workspaces[in_private])
    reserved = sum(segment.segment_bytes for segment in segments)
    children = main.components
    if private.any():
        held = sum(segment.segment_bytes for segment in _chosen(segments, private))
        children = [*children, make_parent(ComponentName.PRIVATE_POOLS, held, Evidence.MEASURED, pools.components)]
    pinned, pinned_count = _find_pinned(trace, segments, blocks, homes, private) if is_known else ([], 0)
    asked = blocks["requested_bytes"][workspaces].astype(np.int64)
    return HeapLedger(
        allocator=make_parent(ComponentName.ALLOCATOR, reserved, Evidence.MEASURED, children),
        live_bytes=int(blocks["requested_bytes"][~blocks.pending].astype(np.int64).sum()),
        releasable_bytes=main.releasable_bytes,
        gap_bytes=main.gap_bytes,
        pending_bytes=main.pending_bytes + pools.pending_bytes,
        private_idle_bytes=pools.gap_bytes,
        workspace_bytes=int(asked.sum()),
        workspace_count=len(asked),
        pinned=pinned,
        pinned_count=pinned_count,
        is_known=is_known,
        unplaced_count=unplaced,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The components of some segments, which add up to them, and the figures that findings need."""

    components: list[Component]
    pending_bytes: int
    releasable_bytes: int | None
    gap_bytes: int | None


@dataclass(frozen=True, slots=True)
class _KnownPart:
    """Splits segments whose blocks' bytes are known."""

    where: str
    event: EventIndex

    def measure(self, segments: Sequence[Segment], blocks: LiveTable, workspaces: npt.NDArray[np.bool_]) -> _Parts:
        heap = measure_heap(segments, blocks, self.event, self.where)
        components = [
            *_requests(blocks, workspaces),
            Component(ComponentName.SLACK, heap.slack_bytes, Evidence.DERIVED),
            Component(ComponentName.PENDING, heap.pending_bytes, Evidence.DERIVED, block_count=_pending_count(blocks)),
            Component(ComponentName.RELEASABLE, heap.releasable_bytes, Evidence.DERIVED),
            Component(ComponentName.GAPS, heap.gap_bytes, Evidence.DERIVED),
        ]
        return _Parts(components, heap.pending_bytes, heap.releasable_bytes, heap.gap_bytes)


@dataclass(frozen=True, slots=True)
class _UnknownPart:
    """Splits segments as far as requests and addresses tell: whole free segments are certain, slack and gaps not."""

    def measure(self, segments: Sequence[Segment], blocks: LiveTable, workspaces: npt.NDArray[np.bool_]) -> _Parts:
        homes, _ = _find_homes(segments, blocks)
        in_use = np.zeros(len(segments), np.bool_)
        in_use[homes[homes >= 0]] = True
        whole = sum(
            segment.segment_bytes
            for segment, used in zip(segments, in_use.tolist(), strict=True)
            if not used and segment.pool == 0
        )
        is_certain = not any(segment.expandable for segment in segments)
        pending = int(blocks["requested_bytes"][blocks.pending].astype(np.int64).sum())
        components = [
            *_requests(blocks, workspaces),
            Component(ComponentName.PENDING, pending, Evidence.DERIVED, block_count=_pending_count(blocks)),
            Component(ComponentName.RELEASABLE, whole, Evidence.DERIVED),
        ]
        left = sum(segment.segment_bytes for segment in segments) - sum(one.held_bytes for one in components)
        components.append(Component(ComponentName.NOT_TOLD_APART, left, Evidence.DERIVED))
        return _Parts(components, pending, whole if is_certain else None, None)


def _requests(blocks: LiveTable, workspaces: npt.NDArray[np.bool_]) -> list[Component]:
    """The requests of allocated blocks, those of workspaces apart."""
    requested = blocks["requested_bytes"].astype(np.int64)
    live = ~blocks.pending & ~workspaces
    return [
        Component(
            ComponentName.LIVE_REQUESTS, int(requested[live].sum()), Evidence.MEASURED, block_count=int(live.sum())
        ),
        Component(
            ComponentName.WORKSPACES,
            int(requested[workspaces].sum()),
            Evidence.DERIVED,
            block_count=int(workspaces.sum()),
        ),
    ]


def _pending_count(blocks: LiveTable) -> int:
    return int(blocks.pending.sum())


def _find_homes(segments: Sequence[Segment], blocks: LiveTable) -> tuple[npt.NDArray[np.int64], int]:
    """The segment that each block lies in, -1 where none, and how many lie in none."""
    if not segments:
        return np.full(len(blocks), -1, np.int64), len(blocks)
    starts = np.array([segment.address for segment in segments], np.uint64)
    ends = np.array([segment.end for segment in segments], np.uint64)
    homes = np.searchsorted(starts, blocks.address, side="right").astype(np.int64) - 1
    homes[(homes >= 0) & (blocks.address >= ends[homes])] = -1
    return homes, int((homes < 0).sum())


def _is_known(trace: Trace, event: EventIndex, device: DeviceOrdinal, blocks: LiveTable) -> bool:
    if not trace.knows_blocks(device):
        until = next((one.block_bytes_known_until for one in trace.meta.devices if one.device == device), None)
        if until is None or event >= until:
            return False
    return bool((blocks["block_bytes"] > 0).all())


def _chosen(segments: Sequence[Segment], chosen: npt.NDArray[np.bool_]) -> list[Segment]:
    return [segment for segment, is_chosen in zip(segments, chosen.tolist(), strict=True) if is_chosen]


def _find_pinned(
    trace: Trace,
    segments: Sequence[Segment],
    blocks: LiveTable,
    homes: npt.NDArray[np.int64],
    private: npt.NDArray[np.bool_],
) -> tuple[list[PinnedSegment], int]:
    """The ordinary segments of the default pools with blocks in use and idle bytes, largest gap first; how many."""
    used = np.zeros(len(segments), np.int64)
    np.add.at(used, homes, blocks["block_bytes"].astype(np.int64))
    idle = np.array([segment.segment_bytes for segment in segments], np.int64) - used
    ordinary = ~private & np.array([not segment.expandable for segment in segments], np.bool_)
    rows = np.flatnonzero(ordinary & (used > 0) & (idle > 0))
    finder = SiteFinder(trace)
    found = []
    for row in rows[np.lexsort((rows, -idle[rows]))][:PINNED_SHOWN].tolist():
        held = np.flatnonzero(homes == row)
        largest = held[int(blocks["block_bytes"][held].argmax())]
        found.append(
            PinnedSegment(
                segments[row].address,
                segments[row].segment_bytes,
                int(idle[row]),
                len(held),
                int(used[row]),
                int(blocks["block_bytes"][largest]),
                finder.site(StackId(int(blocks["stack"][largest]))),
            )
        )
    return found, len(rows)
