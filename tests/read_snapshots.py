"""Snapshots read in tests: their entries, their events in columns, and whether two traces are the same.

Owns: reading and comparing. Must not know: which snapshots there are (recorded_snapshots.py).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpumem.importers.pytorch_snapshot import PytorchSnapshot, read_pytorch_snapshot
from gpumem.trace.model import EVENT_COLUMNS, Trace


def columns_of(trace: Trace) -> dict[str, np.ndarray]:
    batches = list(trace.event_batches(list(EVENT_COLUMNS)))
    return {
        name: np.concatenate([np.zeros(0, dtype), *(batch[name] for batch in batches)])
        for name, dtype in EVENT_COLUMNS.items()
    }


def read_values(folder: Path, values: Any) -> PytorchSnapshot:
    path = folder / "snapshot"
    path.write_bytes(pickle.dumps(values))
    return read_pytorch_snapshot(path)


def entries_of(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for trace in values["device_traces"]:
        yield from trace


def assert_same(left: Trace, right: Trace, *, without: tuple[str, ...] = ()) -> None:
    """Equal in everything that reports see; stacks compared by their frames."""
    before, after = columns_of(left), columns_of(right)
    for name in EVENT_COLUMNS:
        if name not in (*without, "stack"):
            assert np.array_equal(before[name], after[name]), name
    if "stack" not in without:
        pairs = set(zip(before["stack"].tolist(), after["stack"].tolist(), strict=True))
        assert all(left.stack_frames(one) == right.stack_frames(other) for one, other in pairs)
    assert len(left.initial_blocks) == len(right.initial_blocks)
    assert left.scopes.names == right.scopes.names or "scope" in without
