"""NVML readings beside the allocator's figures.

Owns: which reading belongs to a moment. Must not know: how readings were taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.trace.model import Reading


def nearest_reading(readings: Sequence[Reading], device: int, time_ns: int) -> Reading | None:
    """The device's reading nearest in time, the later one of two equally near; None without any."""
    of_device = [reading for reading in readings if reading.device == device]
    if not of_device:
        return None
    return min(of_device, key=lambda reading: (abs(reading.time_ns - time_ns), -reading.time_ns))
