"""The heap at a moment: every segment with the blocks in it.

Owns: placing live blocks into segments, filling in free blocks, and the conservation check where block bytes are known.
Must not know: sites, readings, reports.

Where every block's bytes are known, the blocks of a segment tile it: sum of block bytes == segment bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.errors import TraceTruncated
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import live_at
from gpumem.heap.segments import Segment, segments_at
from gpumem.trace.model import Trace
from gpumem.vocabulary import BlockState, DeviceOrdinal, EventIndex, StackId


@dataclass(frozen=True, slots=True)
class Block:
    """A block in a segment; bytes None where the trace does not know them (a free block has no request)."""

    address: int
    block_bytes: int | None
    requested_bytes: int | None
    state: BlockState
    stack: StackId
    event: EventIndex


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment and its blocks by address; `tiled` when they cover it without a gap."""

    segment: Segment
    blocks: Sequence[Block]
    tiled: bool


@dataclass(frozen=True, slots=True)
class DeviceHeap:
    """The heap of one device: segments by address, and blocks that lie in none the trace knows of."""

    device: DeviceOrdinal
    segments: Sequence[SegmentState]
    unplaced_blocks: Sequence[Block]


def heap_at(trace: Trace, event: EventIndex, *, devices: Collection[DeviceOrdinal] | None = None) -> list[DeviceHeap]:
    """The heap of each device after `event`.

    Raises TraceTruncated, naming the event, where known blocks overlap or leave their segment.
    """
    segments = segments_at(trace, event, devices=devices)
    tables = live_at(trace, event, devices=devices)
    present = sorted({segment.device for segment in segments} | set(tables))
    return [_device_heap(trace, event, device, segments, tables.get(device)) for device in present]


def _device_heap(
    trace: Trace, event: EventIndex, device: DeviceOrdinal, segments: Sequence[Segment], table: LiveTable | None
) -> DeviceHeap:
    of_device = [segment for segment in segments if segment.device == device]
    blocks = _blocks(table, known=trace.knows_blocks(device))
    starts = np.array([segment.address for segment in of_device], dtype=np.uint64)
    addresses = np.array([block.address for block in blocks], dtype=np.uint64)
    homes = np.searchsorted(starts, addresses, side="right") - 1
    placed: list[list[Block]] = [[] for _ in of_device]
    unplaced: list[Block] = []
    for block, home in zip(blocks, homes.tolist(), strict=True):
        if home >= 0 and block.address < of_device[home].end:
            placed[home].append(block)
        else:
            unplaced.append(block)
    states = [_tile(trace, event, segment, held) for segment, held in zip(of_device, placed, strict=True)]
    return DeviceHeap(device, states, unplaced)


def _blocks(table: LiveTable | None, *, known: bool) -> list[Block]:
    if table is None:
        return []
    block_bytes = table["block_bytes"].tolist() if known else [0] * len(table)
    columns = (table.address, table["requested_bytes"], table.pending, table["stack"], table.event)
    return [
        Block(
            address,
            made or None,
            requested,
            BlockState.PENDING if pending else BlockState.ALLOCATED,
            StackId(stack),
            EventIndex(made_by),
        )
        for made, (address, requested, pending, stack, made_by) in zip(
            block_bytes, zip(*(column.tolist() for column in columns), strict=True), strict=True
        )
    ]


def _tile(trace: Trace, event: EventIndex, segment: Segment, blocks: Sequence[Block]) -> SegmentState:
    """The segment's blocks with the free ones between them, where all bytes are known."""
    if not trace.knows_blocks(segment.device) or any(block.block_bytes is None for block in blocks):
        return SegmentState(segment, blocks, tiled=False)
    tiles: list[Block] = []
    at = segment.address
    for block in blocks:
        assert block.block_bytes is not None, "checked above"
        if block.address < at or block.address + block.block_bytes > segment.end:
            raise TraceTruncated(
                f"{trace.path}: after event {event} the block at {block.address:#x} of {block.block_bytes} bytes "
                f"overlaps the one before it or leaves its segment at {segment.address:#x}; the recording is damaged, "
                "record again."
            )
        if block.address > at:
            tiles.append(_free(at, block.address - at))
        tiles.append(block)
        at = block.address + block.block_bytes
    if at < segment.end:
        tiles.append(_free(at, segment.end - at))
    return SegmentState(segment, tiles, tiled=True)


def _free(address: int, block_bytes: int) -> Block:
    return Block(address, block_bytes, None, BlockState.FREE, StackId(0), EventIndex(-1))
