"""Opening any trace with all that can be told of its blocks.

Owns: which traces are filled in when they are opened: PyTorch's snapshots, which are in memory whole. Native recordings
are filled in where they are sealed or imported. Must not know: formats' insides, reports.
"""

from __future__ import annotations

from pathlib import Path

from gpumem.importers import open as importers_open
from gpumem.importers.open import TraceFormat, find_format, find_trace, find_traces
from gpumem.trace.model import Trace


def open_trace(path: Path | str) -> Trace:
    """The trace in a file, or in a folder that holds just one.

    Raises TraceNotFound, TraceForeign, TraceTruncated or TraceVersionUnsupported.
    """
    file = find_trace(Path(path))
    if find_format(file) is TraceFormat.PYTORCH_SNAPSHOT:
        from gpumem.importers.pytorch_snapshot import read_pytorch_snapshot
        from gpumem.simulate.fill_snapshot import fill_snapshot

        return fill_snapshot(read_pytorch_snapshot(file))
    return importers_open.open_trace(file)


def open_traces(path: Path | str) -> list[Trace]:
    """The trace in a file, or all traces in a folder, in the order of their names."""
    path = Path(path)
    return [open_trace(entry) for entry in find_traces(path)] if path.is_dir() else [open_trace(path)]
