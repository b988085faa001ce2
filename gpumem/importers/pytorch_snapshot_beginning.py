"""What a device held before its first event, as the Trace's initial blocks, and the sentences on it.

Owns: blocks in their segments, halves of frees left out, what is said of a history that begins in mid-run. Must not
know: how the file was encoded, other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_entries import EntryColumns
from gpumem.importers.pytorch_snapshot_history import (
    StartBlock,
    StartRange,
    count_end_differences,
    find_block_lives,
    find_pools,
    find_start_blocks,
    find_start_ranges,
)
from gpumem.importers.pytorch_snapshot_merge import StreamInterner
from gpumem.importers.pytorch_snapshot_segments import (
    BLOCK_STATES,
    PENDING,
    SnapshotBlocks,
    SnapshotSegments,
)
from gpumem.trace.model import InitialBlock
from gpumem.units import counted, format_bytes
from gpumem.vocabulary import EventKind, StackId

SEGMENT_KINDS = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE, EventKind.SEGMENT_MAP, EventKind.SEGMENT_UNMAP)


@dataclass(slots=True)
class BeginningFigures:
    """What was there before the first event, over all devices."""

    live_bytes: int = 0
    reserved_bytes: int = 0
    block_count: int = 0
    homeless_count: int = 0
    notes: list[str] = field(default_factory=list)


def complete_kinds(device: int, events: EntryColumns, pending_count: int, notes: list[str]) -> EntryColumns:
    """Where one half of every free was left out of the recording (skip_actions), the other half is the free."""
    kind = events.kind
    counts = np.bincount(kind, minlength=16)
    halves = (EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED)
    present = [half for half in halves if counts[half]]
    if len(events) and not counts[list(SEGMENT_KINDS)].sum() and counts[EventKind.ALLOC] > counts[EventKind.FREE]:
        notes.append(f"Device {device}: no segment events were recorded.")
    if counts[EventKind.FREE] or len(present) != 1 or (present[0] is halves[0] and pending_count):
        return events
    if present[0] is halves[1] and not counts[EventKind.ALLOC]:
        return events
    missing = halves[1 - halves.index(present[0])].name.lower()
    notes.append(f"Device {device}: {missing} was left out of the recording; blocks count as freed at the other half.")
    return replace(events, kind=np.where(kind == present[0], np.uint8(EventKind.FREE), kind))


def find_beginning(
    device: int,
    events: EntryColumns,
    segments: SnapshotSegments,
    streams: StreamInterner,
    figures: BeginningFigures,
) -> tuple[EntryColumns, list[InitialBlock]]:
    """The events with the pools that places tell, and the initial blocks of a device; sentences go to `figures`."""
    rows = np.flatnonzero(segments.device == device)
    if not events.pools_recorded:
        events = replace(events, pool=find_pools(events, segments, rows))
    blocks = blocks_of(segments, rows)
    lives = find_block_lives(events)
    if lives.misfit_count:
        figures.notes.append(
            f"Device {device}: {counted(lives.misfit_count, 'event')} at odds with the one before at the same address; "
            "events are missing, or the file was not made by an allocator."
        )
    differences = count_end_differences(events, lives, blocks) if len(segments) else 0
    if differences:
        figures.notes.append(
            f"Device {device}: {counted(differences, 'block')} live by the events but not in the segments, "
            "or the other way round; the file is inconsistent."
        )
    ranges = find_start_ranges(events, segments, rows)
    placed = _place(device, find_start_blocks(events, lives, blocks), ranges, streams, figures)
    return events, placed


def blocks_of(segments: SnapshotSegments, rows: npt.NDArray[np.int64]) -> SnapshotBlocks:
    """The blocks of some segments."""
    chosen = np.isin(segments.blocks.segment, rows)
    blocks = segments.blocks
    return SnapshotBlocks(
        segment=blocks.segment[chosen],
        address=blocks.address[chosen],
        block_bytes=blocks.block_bytes[chosen],
        requested_bytes=blocks.requested_bytes[chosen],
        state=blocks.state[chosen],
        stack=blocks.stack[chosen],
    )


def _place(
    device: int,
    blocks: Sequence[StartBlock],
    ranges: Sequence[StartRange],
    streams: StreamInterner,
    figures: BeginningFigures,
) -> list[InitialBlock]:
    """Blocks in their segments by address; a segment without one is a free block over all of it."""
    starts = np.array([one.address for one in ranges], dtype=np.int64)
    homes = np.searchsorted(starts, np.array([one.address for one in blocks], dtype=np.int64), side="right") - 1
    made, lived_in = [], set()
    for block, home in zip(blocks, homes.tolist(), strict=True):
        found = ranges[home] if home >= 0 else None
        if found is None or block.address >= found.address + found.range_bytes:
            found = StartRange(0, 0, max(block.stream, 0), block.pool, False)
            figures.homeless_count += 1
        else:
            lived_in.add(home)
        figures.live_bytes += block.block_bytes or block.requested_bytes
        made.append(_initial_block(device, found, block, streams))
    for row, one in enumerate(ranges):
        figures.reserved_bytes += one.range_bytes
        if row not in lived_in:
            free = StartBlock(one.address, one.range_bytes, 0, 2, 0, one.stream, one.pool)
            made.append(_initial_block(device, one, free, streams))
    figures.block_count += len(blocks)
    return sorted(made, key=lambda block: block.address)


def _initial_block(device: int, home: StartRange, block: StartBlock, streams: StreamInterner) -> InitialBlock:
    return InitialBlock(
        device=device,
        segment_address=home.address,
        segment_bytes=home.range_bytes,
        stream=streams.row(device, home.stream),
        pool=home.pool or block.pool,
        expandable=home.is_expandable,
        address=block.address,
        block_bytes=block.block_bytes,
        requested_bytes=block.requested_bytes,
        state=BLOCK_STATES[block.state],
        stack=StackId(block.stack),
    )


def describe_beginning(figures: BeginningFigures) -> list[str]:
    """The sentences on what was there before the first event."""
    said = []
    if figures.block_count or figures.reserved_bytes:
        said.append(
            f"History begins in mid-run: {format_bytes(figures.live_bytes)} were already live in "
            f"{counted(figures.block_count, 'block')}, of {format_bytes(figures.reserved_bytes)} reserved."
        )
    if figures.homeless_count:
        said.append(
            f"{counted(figures.homeless_count, 'block')} from before the history in no known segment; "
            "reserved bytes do not count them."
        )
    return said + figures.notes


def count_pending(blocks: SnapshotBlocks) -> int:
    """Blocks freed by the program that another stream still uses."""
    return int(np.count_nonzero(blocks.state == PENDING))
