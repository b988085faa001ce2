"""Entries taken out of a pickle natively, as the same columns that reading them one by one gives.

Owns: the row layout of gm_snapshot_entry. Must not know: pickles, segments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpumem.abi.pickle import ENTRY_BYTES, SnapshotSkim
from gpumem.importers.pytorch_snapshot_entries import EntryColumns, EntryReader

ENTRY = np.dtype(
    [
        ("address", np.int64),
        ("bytes", np.int64),
        ("stream", np.int64),
        ("time_us", np.int64),
        ("pool_first", np.uint64),
        ("pool_second", np.uint64),
        ("frames", np.uint32),
        ("compile_context", np.uint32),
        ("metadata", np.uint32),
        ("kind", np.uint8),
        ("device", np.uint8),
        ("has_pool", np.uint8),
        ("has_category", np.uint8),
    ]
)
assert ENTRY.itemsize == ENTRY_BYTES

Rows = npt.NDArray[np.void]


class SkimmedEntries:
    """The rows of a skim, and the texts they name; holds no memory of the skim."""

    def __init__(self, skim: SnapshotSkim) -> None:
        self.rows: Rows = np.frombuffer(skim.entries, dtype=ENTRY).copy()
        named = {int(row) for column in ("compile_context", "metadata") for row in _distinct(self.rows[column])}
        self.texts = {row: skim.text(row) for row in named}

    def columns(self, traces: Sequence[Sequence[object]], reader: EntryReader) -> list[EntryColumns]:
        """The columns of each trace; `traces` are what is left of device_traces, their lists of frames."""
        lists = [frames if isinstance(frames, list) else [] for trace in traces for frames in trace]
        stack_of_frames = np.append(np.zeros(1, dtype=np.uint32), reader.stacks.rows_of(lists))
        reader.oddities.categories = bool(self.rows["has_category"].any())
        ends = np.searchsorted(self.rows["device"], np.arange(len(traces)), side="right").tolist()
        made, begin = [], 0
        for end in ends:
            made.append(self._columns(self.rows[begin:end], stack_of_frames, reader))
            begin = end
        self.rows = self.rows[:0]
        return made

    def _columns(self, rows: Rows, stack_of_frames: npt.NDArray[np.uint32], reader: EntryReader) -> EntryColumns:
        return EntryColumns(
            kind=rows["kind"].copy(),
            address=rows["address"].copy(),
            bytes=rows["bytes"].copy(),
            stream=rows["stream"].copy(),
            time_us=rows["time_us"].copy(),
            stack=stack_of_frames[rows["frames"]],
            text=self._text_rows(rows, reader),
            pool=_pool_rows(rows, reader),
            pools_recorded=bool(rows["has_pool"].any()),
        )

    def _text_rows(self, rows: Rows, reader: EntryReader) -> npt.NDArray[np.uint32]:
        pairs = (rows["compile_context"].astype(np.uint64) << np.uint64(32)) | rows["metadata"]
        distinct, place = _distinct_places(pairs)
        texts = [reader.texts.row(self.texts[int(pair) >> 32], self.texts[int(pair) & 0xFFFFFFFF]) for pair in distinct]
        return np.array(texts, dtype=np.uint32)[place]


def _pool_rows(rows: Rows, reader: EntryReader) -> npt.NDArray[np.uint16]:
    first, second = rows["pool_first"], rows["pool_second"]
    if not first.any() and not second.any():
        return np.zeros(len(rows), dtype=np.uint16)
    numbers = np.unique(np.concatenate([first, second]))
    width = np.uint64(len(numbers))
    places = np.searchsorted(numbers, first).astype(np.uint64) * width + np.searchsorted(numbers, second).astype(
        np.uint64
    )
    distinct, place = _distinct_places(places)
    pools = [
        reader.pools.row((int(numbers[int(pair) // int(width)]), int(numbers[int(pair) % int(width)])))
        for pair in distinct
    ]
    return np.array(pools, dtype=np.uint16)[place]


def _distinct(column: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The distinct values; nearly always one, which is seen without sorting."""
    return column[:1] if not len(column) or (column == column[0]).all() else np.unique(column)


def _distinct_places(column: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The distinct values, and which of them each row has."""
    if len(column) and (column == column[0]).all():
        return column[:1], np.zeros(len(column), dtype=np.int64)
    distinct, place = np.unique(column, return_inverse=True)
    return distinct, place.reshape(-1)
