"""A snapshot's segments as the heap that a replay of its history must end with.

Owns: the order and the columns of that heap. Must not know: events, how a replay works.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gpumem.abi.policy import BlockColumns, HeapColumns, SegmentColumns
from gpumem.importers.pytorch_snapshot import PytorchSnapshot, SnapshotSegments
from gpumem.importers.pytorch_snapshot_segments import ALLOCATED, FREE, PENDING

_REPLAY_STATES = np.array([{FREE: 0, ALLOCATED: 1, PENDING: 2}[state] for state in range(3)], np.uint8)


def end_heaps(snapshot: PytorchSnapshot) -> Mapping[int, HeapColumns]:
    """The heap at the end of each device that has segments then."""
    names = np.array([(row.first, row.second) for row in snapshot.trace.pools], np.uint64).reshape(-1, 2)
    segments = snapshot.segments
    return {int(device): _heap(segments, int(device), names) for device in np.unique(segments.device)}


def _heap(segments: SnapshotSegments, device: int, names: npt.NDArray[np.uint64]) -> HeapColumns:
    rows = np.flatnonzero(segments.device == device)
    rows = rows[np.argsort(segments.address[rows], kind="stable")]
    blocks = segments.blocks
    held = np.flatnonzero(np.isin(blocks.segment, rows))
    held = held[np.argsort(blocks.address[held], kind="stable")]

    def wide(column: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(column, np.uint64)

    pool = names[segments.pool[rows]]
    return HeapColumns(
        SegmentColumns(
            wide(segments.address[rows]),
            wide(segments.segment_bytes[rows]),
            wide(segments.stream[rows]),
            np.ascontiguousarray(pool[:, 0]),
            np.ascontiguousarray(pool[:, 1]),
            (~segments.is_large[rows]).astype(np.uint8),
            segments.is_expandable[rows].astype(np.uint8),
        ),
        BlockColumns(
            wide(blocks.address[held]),
            wide(blocks.block_bytes[held]),
            wide(blocks.requested_bytes[held]),
            _REPLAY_STATES[blocks.state[held]],
        ),
    )
