"""A recording opened together with the heap that its source says it ended with.

Owns: that only a PyTorch snapshot says so. Must not know: how formats are read, what the heap is held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpumem.abi.policy import HeapColumns
from gpumem.importers.open import TraceFormat, find_format, find_trace, open_trace
from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
from gpumem.importers.pytorch_snapshot_end import end_heaps
from gpumem.trace.model import Trace


@dataclass(frozen=True, slots=True)
class EndedRecording:
    """A trace as recorded, and what its source says beyond the trace."""

    trace: Trace
    end_heaps: Mapping[int, HeapColumns] = field(default_factory=dict)
    """By device; none where the source does not say it."""
    pools_recorded: bool = False
    """Pool 0 of an event means the default pools whatever the trace's facts say."""


def open_with_end(path: Path | str) -> EndedRecording:
    """The recording at `path`; raises what open_trace raises."""
    found = find_trace(Path(path))
    if find_format(found) is TraceFormat.PYTORCH_SNAPSHOT:
        snapshot = read_pytorch_snapshot(found)
        return EndedRecording(snapshot.trace, end_heaps(snapshot), snapshot.pools_recorded)
    return EndedRecording(open_trace(found))
