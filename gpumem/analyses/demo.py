"""The nine steps of the demo: what was allocated, reserved and seen by NVML after each, and why it moved or did not.

Owns: the findings of `gpumem demo`. Must not know: text layout, how the steps are run (samples/nine_steps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumem.analyses.snapshot import find_snapshot
from gpumem.heap.instants import Instant
from gpumem.trace.model import DeviceFacts, Mark, Trace
from gpumem.vocabulary import DeviceOrdinal

REASONS = {
    "CUDA started": "Nothing was asked for, so nothing is reserved.",
    "a tiny tensor": (
        "4 bytes become a block of 512, cut from a segment of 2 MiB: the least that the driver is asked for."
    ),
    "1 a on the GPU": (
        "The driver gives a segment of 1 GiB. The tiny tensor is gone, but its segment of 2 MiB stays reserved."
    ),
    "2 b on the GPU": "a's block is in use, so the driver gives another segment.",
    "3 b to the CPU": "Allocated falls, reserved does not: b's segment is kept for whoever asks next.",
    "4 c on the GPU": "Takes the block that b left; the driver is not asked, reserved stays.",
    "5 c on the GPU again": (
        "The new c is made before the old one dies: for a moment there are two, and a third segment."
    ),
    "6 d on the GPU": "Takes the block that the old c left.",
    "7 d deleted": "Its block is idle; reserved stays.",
    "8 e on the CPU": "Memory of the CPU is none of the GPU's: nothing moves.",
    "9 e to the GPU": "Takes the block that d left.",
    "empty_cache()": "c and e are gone, and segments without a block in use go back to the driver: only a's is left.",
}
"""Why the figures are as they are after each step, by its mark."""


@dataclass(frozen=True, slots=True)
class DemoStep:
    """The figures after one step; nvml_process_bytes is None where NVML did not say."""

    name: str
    allocated_bytes: int
    reserved_bytes: int
    nvml_process_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Demo:
    """The nine steps as they were recorded."""

    path: str
    device: DeviceFacts
    why_simulated: str | None
    """Why no real GPU was used; None where one was."""
    steps: Sequence[DemoStep]
    context_bytes: int | None
    """What NVML counts for the process beside what the allocator reserved, at the start; None where not known."""


def find_demo(trace: Trace, *, why_simulated: str | None) -> Demo:
    """The figures at the marks of the demo's recording."""
    steps = [_find_step(trace, mark) for mark in trace.marks if mark.name in REASONS]
    started = steps[0]
    context_bytes = None
    if started.nvml_process_bytes is not None:
        context_bytes = started.nvml_process_bytes - started.reserved_bytes
    return Demo(str(trace.path), trace.meta.devices[0], why_simulated, steps, context_bytes)


def _find_step(trace: Trace, mark: Mark) -> DemoStep:
    device = DeviceOrdinal(trace.meta.devices[0].device)
    heaps = find_snapshot(trace, Instant(mark.event, mark.time_ns), devices=[device]).devices
    allocated = heaps[0].allocated_bytes if heaps else 0
    assert allocated is not None, "our own allocator's blocks are known"
    return DemoStep(
        mark.name,
        allocated,
        heaps[0].reserved_bytes if heaps else 0,
        _process_bytes_at(trace, device, mark),
        REASONS[mark.name],
    )


def _process_bytes_at(trace: Trace, device: DeviceOrdinal, mark: Mark) -> int | None:
    """What NVML counted for the process at the first reading taken at or after the mark, before the next event."""
    later = (one for one in trace.readings if one.device == device and one.time_ns >= mark.time_ns)
    reading = min(later, key=lambda one: one.time_ns, default=None)
    return None if reading is None else reading.process_bytes
