"""A journal with the events of one of PyTorch's own recordings, as the native tracker would have written them.

Owns: recording -> records and entries. Must not know: how journals are sealed.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from gpumem import abi
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
from gpumem.trace.journal_layout import RECORD, EntryKind
from gpumem.trace.model import ColumnEvents, Trace
from journal_maker import JournalMaker
from recorded_snapshots import recording_path

CAPACITY_BYTES = 150_109_880_320
COLUMNS = ("kind", "device", "stream", "pool", "address", "requested_bytes")


class RecordedJournal:
    """Writes the events of recording `name`; no private pools, no marks."""

    def __init__(self, path: Path, name: str, *, window_records: int = 64, first_event: int = 0) -> None:
        self.trace: Trace = read_pytorch_snapshot(recording_path(name)).trace
        self.maker = JournalMaker(path, window_records=window_records, window_capacity=1024)
        for row in self.trace.streams[1:]:
            self.maker.entry(EntryKind.STREAM, struct.pack("<IIQ", row.device, 0, row.handle))
        self.maker.fact("settings", self.trace.meta.settings)
        self.maker.fact("versions", {"torch": "2.11.0"})
        self.maker.fact("device:0", {"capacity_bytes": CAPACITY_BYTES, "memory_limit_bytes": None})
        self.maker.fact("source", "native")
        self.next_event = first_event

    def write(self, event_count: int | None = None) -> None:
        """Appends the next events, or all that are left."""
        end = self.trace.event_count if event_count is None else self.next_event + event_count
        assert isinstance(self.trace.events, ColumnEvents)
        columns = self.trace.events.columns
        kept = np.flatnonzero(columns["device"] == 0)
        kept = kept[(kept >= self.next_event) & (kept < end)]
        records = np.zeros(len(kept), RECORD)
        for name in COLUMNS:
            records[name] = columns[name][kept]
        records["time_ns"] = abi.clock_ns() + np.arange(len(kept))
        self.maker.raw.append_rows(records)
        self.next_event = end
