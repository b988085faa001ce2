"""PyTorch's own recordings (tests/recordings) as columns for the native replay.

A plain way for tests alone, beside the importer's: it trusts the shape of our own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpumem.abi.policy import (
    NO_LIMIT,
    POOL_UNKNOWN,
    BlockColumns,
    DeviceOptions,
    EventColumns,
    HeapColumns,
    Replay,
    SegmentColumns,
)
from gpumem.vocabulary import EventKind
from recorded_snapshots import FACTS, recorded_values

LIMITS = {"oom": 2_000_000_000, "oom_at": 2_000_000_000}
"""Limits that the table of the recordings gives and facts.json does not."""

KINDS = {
    "alloc": EventKind.ALLOC,
    "free_requested": EventKind.FREE_REQUESTED,
    "free_completed": EventKind.FREE_COMPLETED,
    "segment_alloc": EventKind.SEGMENT_ALLOC,
    "segment_free": EventKind.SEGMENT_FREE,
    "segment_map": EventKind.SEGMENT_MAP,
    "segment_unmap": EventKind.SEGMENT_UNMAP,
    "oom": EventKind.OOM,
    "snapshot": EventKind.SNAPSHOT,
}
STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2}


@dataclass(frozen=True)
class Recording:
    """One device's history and its heap at the end."""

    name: str
    trace: Sequence[Mapping[str, Any]]
    segments: Sequence[Mapping[str, Any]]
    settings: str

    @property
    def limit_bytes(self) -> int:
        return int(FACTS.get(self.name, {}).get("limit", LIMITS.get(self.name, NO_LIMIT)))


def read_recording(name: str) -> Recording:
    snapshot = recorded_values(name)
    settings = snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    segments = sorted(snapshot["segments"], key=lambda segment: segment["address"])
    return Recording(name, snapshot["device_traces"][0], segments, settings)


def events_of(trace: Sequence[Mapping[str, Any]]) -> tuple[EventColumns, np.ndarray]:
    """The events as columns, adjacent free_requested and free_completed folded, and the streams' handles by row."""
    rows: list[tuple[int, int, int, int]] = []
    streams: dict[int, int] = {}
    position = 0
    while position < len(trace):
        entry = trace[position]
        kind = KINDS[entry["action"]]
        address = entry.get("addr", entry.get("device_free", 0))
        following = trace[position + 1] if position + 1 < len(trace) else None
        completes = following and following["action"] == "free_completed" and following["addr"] == address
        if kind is EventKind.FREE_REQUESTED and completes:
            kind = EventKind.FREE
            position += 1
        position += 1
        rows.append((kind, streams.setdefault(entry["stream"], len(streams)), address, entry["size"]))
    columns = np.array(rows, np.uint64).reshape(-1, 4)
    count = len(rows)
    events = EventColumns(
        columns[:, 0].astype(np.uint8),
        np.zeros(count, np.uint8),
        columns[:, 1].astype(np.uint16),
        np.full(count, POOL_UNKNOWN, np.uint16),
        columns[:, 2].copy(),
        columns[:, 3].copy(),
    )
    return events, np.array(list(streams), np.uint64)


def heap_of(segments: Sequence[Mapping[str, Any]]) -> HeapColumns:
    """The heap that the recording ends with."""
    blocks = [block for segment in segments for block in segment["blocks"]]

    def wide(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.uint64)

    def narrow(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.uint8)

    return HeapColumns(
        SegmentColumns(
            wide([segment["address"] for segment in segments]),
            wide([segment["total_size"] for segment in segments]),
            wide([segment["stream"] for segment in segments]),
            wide([segment["segment_pool_id"][0] for segment in segments]),
            wide([segment["segment_pool_id"][1] for segment in segments]),
            narrow([segment["segment_type"] == "small" for segment in segments]),
            narrow([segment["is_expandable"] for segment in segments]),
        ),
        BlockColumns(
            wide([block["address"] for block in blocks]),
            wide([block["size"] for block in blocks]),
            wide([block["requested_size"] for block in blocks]),
            narrow([STATES[block["state"]] for block in blocks]),
        ),
    )


def replay_recording(
    recording: Recording, *, first_entry: int = 0, limit_known: bool = True, batch_events: int = 2**20
) -> Replay:
    """The recording from `first_entry` on, followed to its end."""
    events, streams = events_of(recording.trace[first_entry:])
    replay = Replay()
    replay.add_streams(streams)
    replay.add_pools(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    facts = FACTS.get(recording.name, {"total": 150_109_880_320})
    replay.add_device(
        DeviceOptions(
            0,
            recording.settings,
            recording.limit_bytes if limit_known else None,
            facts["total"] if limit_known else None,
            truncated=first_entry > 0 or recording.name == "trunc",
            check_each_event=first_entry == 0,
        )
    )
    assert replay.adopt_from_end(0, heap_of(recording.segments), events) == ""
    for first in range(0, len(events.kind), batch_events):
        replay.feed(slice_events(events, first, first + batch_events))
    replay.finish()
    return replay


def slice_events(events: EventColumns, first: int, end: int) -> EventColumns:
    part = slice(first, end)
    return EventColumns(
        events.kind[part],
        events.device[part],
        events.stream[part],
        events.pool[part],
        events.address[part],
        events.requested_bytes[part],
    )
