"""A recording opened together with the heap that its source says it ended with.

Owns: that only a PyTorch snapshot says so. Must not know: how formats are read, what the heap is held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpumem.abi.policy import HeapColumns
from gpumem.importers.open import open_trace
from gpumem.importers.pytorch_snapshot import is_pytorch_snapshot, read_pytorch_snapshot
from gpumem.importers.pytorch_snapshot_end import end_heaps
from gpumem.trace.model import Trace

_SNIFFED_BYTES = 4096


def open_with_end(path: Path | str) -> tuple[Trace, Mapping[int, HeapColumns]]:
    """The trace at `path` and, by device, the heap at its end; no heap where the source does not say it.

    Raises what open_trace and read_pytorch_snapshot raise.
    """
    path = Path(path)
    if path.is_file() and _is_snapshot(path):
        snapshot = read_pytorch_snapshot(path)
        return snapshot.trace, end_heaps(snapshot)
    return open_trace(path), {}


def _is_snapshot(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_pytorch_snapshot(file.read(_SNIFFED_BYTES))
    except OSError:
        return False  # opening it as a trace says what is wrong
