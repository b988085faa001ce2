"""The segments and blocks at a snapshot's end, as columns, with what does not add up in them.

Owns: the `segments` list of every version, back to PyTorch 2.0's blocks without addresses. Must not know: events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_entries import NUMBER_MAX, PoolNames
from gpumem.importers.pytorch_snapshot_stacks import StackInterner
from gpumem.units import counted
from gpumem.vocabulary import BlockState

Numbers = npt.NDArray[np.int64]

DEVICE_MAX = 127
ALLOCATED, PENDING, FREE = 0, 1, 2
BLOCK_STATES = (BlockState.ALLOCATED, BlockState.PENDING, BlockState.FREE)
"""BlockState by the code in SnapshotBlocks.state."""
STATE_CODES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": FREE,
}


@dataclass(frozen=True, slots=True)
class SnapshotBlocks:
    """Blocks by row, in address order inside their segment; `requested_bytes` of a free one is its last owner's."""

    segment: Numbers
    """Row of SnapshotSegments."""
    address: Numbers
    block_bytes: Numbers
    requested_bytes: Numbers
    state: Numbers
    """Index into BLOCK_STATES."""
    stack: Numbers

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class SnapshotSegments:
    """Segments by row, as the file gives them; of an expandable segment each mapped range is a row."""

    device: Numbers
    address: Numbers
    segment_bytes: Numbers
    allocated_bytes: Numbers
    active_bytes: Numbers
    requested_bytes: Numbers
    stream: Numbers
    """Raw handles."""
    pool: Numbers
    """Rows of the trace's pools."""
    is_large: npt.NDArray[np.bool_]
    is_expandable: npt.NDArray[np.bool_]
    stack: Numbers
    blocks: SnapshotBlocks

    def __len__(self) -> int:
        return len(self.address)


SEGMENT_COLUMNS = (
    "device", "address", "segment_bytes", "allocated_bytes", "active_bytes", "requested_bytes", "stream", "pool",
    "is_large", "is_expandable",
)  # fmt: skip
BLOCK_COLUMNS = ("segment", "address", "block_bytes", "requested_bytes", "state")
SEGMENT_NUMBERS = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream")


class _SegmentRows:
    """Rows as they are collected; a segment that cannot be read is passed over and counted."""

    def __init__(self, pools: PoolNames) -> None:
        self.pools = pools
        self.segments: list[tuple[int, ...]] = []
        self.blocks: list[tuple[int, ...]] = []
        self.segment_stacks: list[Sequence[object]] = []
        self.block_stacks: list[Sequence[object]] = []
        self.unreadable_count = 0
        self._block_lists: set[int] = set()

    def add(self, segment: object) -> None:
        if not isinstance(segment, dict):
            self.unreadable_count += 1
            return
        numbers = [_number(segment, key) for key in SEGMENT_NUMBERS]
        blocks = segment.get("blocks", [])
        if None in numbers or numbers[0] > DEVICE_MAX or not isinstance(blocks, list):  # type: ignore[operator]
            self.unreadable_count += 1
            return
        device, address, segment_bytes, allocated, active, requested, stream = (value or 0 for value in numbers)
        pool = self.pools.row(segment.get("segment_pool_id"))
        large, expandable = segment.get("segment_type") == "large", segment.get("is_expandable") is True
        self.segment_stacks.append(_frames_in(segment))
        self.segments.append(
            (device, address, segment_bytes, allocated, active, requested, stream, pool, large, expandable)
        )
        if blocks and id(blocks) in self._block_lists:  # one list under two segments could be gone through for ever
            self.unreadable_count += 1
            return
        self._block_lists.add(id(blocks))
        self._add_blocks(len(self.segments) - 1, address, blocks)

    def _add_blocks(self, row: int, address: int, blocks: Sequence[object]) -> None:
        for block in blocks:
            if not isinstance(block, dict):
                self.unreadable_count += 1
                continue
            history = _latest_history(block)
            at = _number(block, "address", address)
            block_bytes = _number(block, "size")
            requested = _number(block, "requested_size", _number(history, "real_size", block_bytes or 0))
            state = block.get("state")
            if at is None or block_bytes is None or requested is None or not isinstance(state, str):
                self.unreadable_count += 1
                continue
            address = min(at + block_bytes, NUMBER_MAX)
            self.block_stacks.append(_frames_in(block) or _frames_in(history))
            self.blocks.append((row, at, block_bytes, requested, STATE_CODES.get(state, FREE)))


def read_segments(
    segments: Sequence[object], stacks: StackInterner, pools: PoolNames, notes: list[str]
) -> SnapshotSegments:
    """The segments of a snapshot; what cannot be read or does not add up goes to `notes` as sentences."""
    rows = _SegmentRows(pools)
    for segment in segments:
        rows.add(segment)
    columns = _columns(rows.segments, SEGMENT_COLUMNS)
    flags = {name: columns.pop(name).astype(np.bool_) for name in ("is_large", "is_expandable")}
    block_stacks = stacks.rows_of(rows.block_stacks).astype(np.int64)
    made = SnapshotSegments(
        **columns,
        is_large=flags["is_large"],
        is_expandable=flags["is_expandable"],
        stack=stacks.rows_of(rows.segment_stacks).astype(np.int64),
        blocks=SnapshotBlocks(**_columns(rows.blocks, BLOCK_COLUMNS), stack=block_stacks),
    )
    if rows.unreadable_count:
        notes.append(f"{rows.unreadable_count} segments or blocks cannot be read and were left out.")
    _note_contradictions(made, notes)
    return made


def _note_contradictions(segments: SnapshotSegments, notes: list[str]) -> None:
    overlaps = _count_overlaps(segments)
    if overlaps:
        notes.append(
            f"The file is inconsistent: {counted(overlaps, 'segment')} in the place of the one before; "
            "no allocator can have been in this state."
        )
    blocks = segments.blocks
    sums = np.zeros(len(segments), dtype=np.int64)
    np.add.at(sums, blocks.segment, blocks.block_bytes)
    wrong = int(np.count_nonzero((sums != segments.segment_bytes) & (sums > 0)))
    if wrong:
        where = counted(wrong, "segment")
        notes.append(f"The file is inconsistent: in {where} the blocks do not add up to the segment.")


def _count_overlaps(segments: SnapshotSegments) -> int:
    order = np.lexsort((segments.address, segments.device))
    device, address = segments.device[order], segments.address[order]
    ends = address + np.minimum(segments.segment_bytes[order], NUMBER_MAX - address)
    return int(np.count_nonzero((device[1:] == device[:-1]) & (address[1:] < ends[:-1])))


def _columns(rows: list[tuple[int, ...]], names: Sequence[str]) -> dict[str, Numbers]:
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}


def _frames_in(values: dict[str, object]) -> Sequence[object]:
    frames = values.get("frames")
    return frames if isinstance(frames, list | tuple) else ()


def _latest_history(block: dict[str, object]) -> dict[str, object]:
    """PyTorch 2.0 keeps what is now `frames` and `requested_size` in a history, the latest owner first."""
    history = block.get("history")
    latest = history[0] if isinstance(history, list) and history else None
    return latest if isinstance(latest, dict) else {}


def _number(values: dict[str, object], key: str, otherwise: int | None = 0) -> int | None:
    """The number under `key`, `otherwise` where there is none, None where it is no possible number."""
    value = values.get(key, otherwise)
    return value if isinstance(value, int) and 0 <= value <= NUMBER_MAX else None
