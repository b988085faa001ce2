"""NVML's readings of a device thinned out for a page.

Owns: which readings are drawn. Must not know: HTML.
Time is cut into equal buckets; of each the first and last reading and those with the least and most bytes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import Reading

_FIGURES = ("process_bytes", "used_bytes", "total_bytes", "reserved_bytes", "other_processes_bytes")


@dataclass(frozen=True, slots=True)
class PageReadings:
    """Readings in order of time, a column a figure; -1 where it was not available."""

    event: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    process_bytes: npt.NDArray[np.int64]
    used_bytes: npt.NDArray[np.int64]
    total_bytes: npt.NDArray[np.int64]
    reserved_bytes: npt.NDArray[np.int64]
    other_processes_bytes: npt.NDArray[np.int64]
    reading_count: int
    """How many there are, of which these are drawn."""


def thin_readings(readings: Sequence[Reading], device: int, *, duration_ns: int, buckets: int) -> PageReadings:
    """The device's readings, at most some six a bucket."""
    rows = sorted((one for one in readings if one.device == device), key=lambda one: (one.time_ns, one.event))
    columns = {name: _column(rows, name) for name in ("event", "time_ns", *_FIGURES)}
    edges = np.linspace(0, max(1, duration_ns), buckets + 1).astype(np.int64)[1:-1]
    inner = np.searchsorted(columns["time_ns"], edges, side="right")
    borders = np.unique(np.concatenate([[0], inner, [len(rows)]])).tolist()
    kept: set[int] = set()
    for begin, end in pairwise(borders):
        kept |= {begin, end - 1}
        for name in ("process_bytes", "used_bytes"):
            part = columns[name][begin:end]
            kept |= {begin + int(part.argmin()), begin + int(part.argmax())}
    chosen = np.array(sorted(kept), np.intp)
    return PageReadings(**{name: values[chosen] for name, values in columns.items()}, reading_count=len(rows))


def _column(rows: Sequence[Reading], name: str) -> npt.NDArray[np.int64]:
    values = (getattr(one, name) for one in rows)
    return np.array([-1 if value is None else value for value in values], np.int64)
