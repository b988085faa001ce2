"""What was there before the first recorded event, and whether the events of a device fit together.

Owns: undoing a device's events from the state at the end. Must not know: files, how entries look.

Blocks live at the start: those freed without an alloc (address and request known), and those that stand at the end and
have no event (block known exactly). Ranges there at the start: each stretch of addresses is as the first segment event
that touches it says (given back: it was there; obtained: it was not), and where none does, as it is at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_entries import NUMBER_MAX, EntryColumns
from gpumem.importers.pytorch_snapshot_segments import ALLOCATED, FREE, PENDING, SnapshotBlocks, SnapshotSegments
from gpumem.vocabulary import EventKind

Numbers = npt.NDArray[np.int64]

BLOCK_KINDS = (EventKind.ALLOC, EventKind.FREE, EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED)
OBTAINED = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
GIVEN_BACK = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)
FOLLOWS = {
    (EventKind.ALLOC, EventKind.FREE),
    (EventKind.ALLOC, EventKind.FREE_REQUESTED),
    (EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED),
    (EventKind.FREE, EventKind.ALLOC),
    (EventKind.FREE_COMPLETED, EventKind.ALLOC),
}
"""Which event may come next at an address."""


@dataclass(frozen=True, slots=True)
class BlockLives:
    """Per address that a device's block events name: the first and last event there."""

    address: Numbers
    first_event: Numbers
    last_event: Numbers
    misfit_count: int
    """Events that cannot follow the one before at their address."""


@dataclass(frozen=True, slots=True)
class StartRange:
    """A segment, or a contiguous run of mapped ranges, that was there before the first event."""

    address: int
    range_bytes: int
    stream: int
    pool: int
    is_expandable: bool


@dataclass(frozen=True, slots=True)
class StartBlock:
    """A block that was there before the first event; `block_bytes` is None where only its free was recorded."""

    address: int
    block_bytes: int | None
    requested_bytes: int
    state: int
    stack: int
    stream: int
    pool: int


def find_block_lives(events: EntryColumns) -> BlockLives:
    """First and last block event at every address."""
    rows = np.flatnonzero(np.isin(events.kind, [kind.value for kind in BLOCK_KINDS]))
    if not len(rows):
        none = np.zeros(0, dtype=np.int64)
        return BlockLives(none, none, none, 0)
    order = rows[_by_address(events.address[rows])]
    address, kind = events.address[order], events.kind[order]
    begins = np.flatnonzero(np.append(True, address[1:] != address[:-1]))
    ends = np.append(begins[1:], len(order)) - 1
    fits = np.zeros((16, 16), dtype=np.bool_)
    for before, after in FOLLOWS:
        fits[before, after] = True
    same = address[1:] == address[:-1]
    misfits = int(np.count_nonzero(same & ~fits[kind[:-1], kind[1:]]))
    return BlockLives(address[begins], order[begins], order[ends], misfits)


def find_start_blocks(events: EntryColumns, lives: BlockLives, blocks: SnapshotBlocks) -> list[StartBlock]:
    """Blocks live before the first event; `blocks` are those of the device at the end."""
    made = []
    first_kind = events.kind[lives.first_event]
    for row in lives.first_event[first_kind != EventKind.ALLOC].tolist():
        state = PENDING if events.kind[row] == EventKind.FREE_COMPLETED else ALLOCATED
        place = int(events.stream[row]), int(events.pool[row])
        made.append(StartBlock(int(events.address[row]), None, int(events.bytes[row]), state, 0, *place))
    untouched = (blocks.state != FREE) & ~np.isin(blocks.address, lives.address)
    for row in np.flatnonzero(untouched).tolist():
        figures = int(blocks.block_bytes[row]), int(blocks.requested_bytes[row])
        made.append(
            StartBlock(int(blocks.address[row]), *figures, int(blocks.state[row]), int(blocks.stack[row]), -1, 0)
        )
    return made


def count_end_differences(events: EntryColumns, lives: BlockLives, blocks: SnapshotBlocks) -> int:
    """Blocks that the events leave live but the segments do not show so, or the other way round."""
    last_kind = events.kind[lives.last_event]
    differences = 0
    for kind, state in ((EventKind.ALLOC, ALLOCATED), (EventKind.FREE_REQUESTED, PENDING)):
        by_events = lives.address[last_kind == kind]
        by_segments = blocks.address[(blocks.state == state) & np.isin(blocks.address, lives.address)]
        differences += len(np.setxor1d(by_events, by_segments))
    return differences


def find_start_ranges(events: EntryColumns, segments: SnapshotSegments, rows: Numbers) -> list[StartRange]:
    """Segments and mapped ranges there before the first event; `rows` are the device's segments at the end."""
    touching = np.flatnonzero(np.isin(events.kind, [kind.value for kind in OBTAINED + GIVEN_BACK]))
    begins = np.concatenate([events.address[touching], segments.address[rows]])
    lengths = np.concatenate([events.bytes[touching], segments.segment_bytes[rows]])
    ends = begins + np.minimum(lengths, NUMBER_MAX - begins)
    borders = np.unique(np.concatenate([begins, ends]))
    low, high = np.searchsorted(borders, begins).tolist(), np.searchsorted(borders, ends).tolist()
    owners = _claim_cells(list(zip(low, high, strict=True)), len(borders))
    made: list[StartRange] = []
    last_owner, last_end = -1, -1
    for cell, owner in enumerate(owners):
        if owner < 0 or (owner < len(touching) and events.kind[touching[owner]] in OBTAINED):
            continue
        is_event = owner < len(touching)
        row = int(touching[owner]) if is_event else int(rows[owner - len(touching)])
        source = _event_place(events, row) if is_event else _segment_place(segments, row)
        address, end = int(borders[cell]), int(borders[cell + 1])
        last = made[-1] if made and last_end == address else None
        if last and (owner == last_owner or (source[2] and (last.stream, last.pool, last.is_expandable) == source)):
            made[-1] = StartRange(last.address, end - last.address, *source)
        else:
            made.append(StartRange(address, end - address, *source))
        last_owner, last_end = owner, end
    return made


def find_pools(events: EntryColumns, segments: SnapshotSegments, rows: Numbers) -> npt.NDArray[np.uint16]:
    """The pool of each event by where it lies, for versions that do not record it: rows of the private segments.

    A segment at the end has been there since the last time its addresses were given back; what lay there before is
    not known and stays 0.
    """
    pool = events.pool.copy()
    private = rows[segments.pool[rows] > 0]
    if not len(private) or not len(events):
        return pool
    private = private[np.argsort(segments.address[private], kind="stable")]
    starts = segments.address[private]
    place = np.searchsorted(starts, events.address, side="right") - 1
    inside = (place >= 0) & (events.address - starts[place] < segments.segment_bytes[private][place])
    inside &= ~np.isin(events.kind, [EventKind.OOM.value, EventKind.SNAPSHOT.value])
    given_back = np.flatnonzero(inside & np.isin(events.kind, [kind.value for kind in GIVEN_BACK]))
    since = np.zeros(len(private), dtype=np.int64)
    np.maximum.at(since, place[given_back], given_back + 1)
    belongs = inside & (np.arange(len(events)) >= since[place])
    pool[belongs] = segments.pool[private][place[belongs]]
    return pool


def _by_address(address: Numbers) -> Numbers:
    """Positions in the order of address, then position: sorting both in one number is 4 times as fast."""
    lowest, position_bits = int(address.min()), len(address).bit_length()
    if (int(address.max()) - lowest).bit_length() + position_bits > 62:
        return np.argsort(address, kind="stable")
    packed = ((address - lowest) << position_bits) | np.arange(len(address))
    packed.sort()
    return packed & ((1 << position_bits) - 1)


def _claim_cells(stretches: Sequence[tuple[int, int]], cell_count: int) -> list[int]:
    """For each cell the first stretch that covers it, or -1; every cell is looked at about once."""
    owners = [-1] * max(cell_count - 1, 0)
    following = list(range(cell_count + 1))

    def unclaimed_from(cell: int) -> int:
        root = cell
        while following[root] != root:
            root = following[root]
        while following[cell] != root:
            following[cell], cell = root, following[cell]
        return root

    for stretch, (low, high) in enumerate(stretches):
        cell = unclaimed_from(low)
        while cell < high:
            owners[cell] = stretch
            following[cell] = cell + 1
            cell = unclaimed_from(cell + 1)
    return owners


def _event_place(events: EntryColumns, row: int) -> tuple[int, int, bool]:
    return int(events.stream[row]), int(events.pool[row]), bool(events.kind[row] == EventKind.SEGMENT_UNMAP)


def _segment_place(segments: SnapshotSegments, row: int) -> tuple[int, int, bool]:
    return int(segments.stream[row]), int(segments.pool[row]), bool(segments.is_expandable[row])
