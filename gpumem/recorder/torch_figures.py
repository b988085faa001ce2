"""Our allocator's figures in the shapes that torch._C gives its own.

Owns: the functions that stand on torch._C. Must not know: torch, how allocators are plugged in, how PyTorch names and
nests what they give (torch_shapes).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpumem.abi.allocator import torch_allocator
from gpumem.recorder.own_allocators import DEVICES_MAX, torch_settings, torch_version
from gpumem.recorder.torch_shapes import Nested, nest_all, nest_segment


@dataclass
class TorchFigures:
    """The functions to stand on torch._C; `set_fraction` is torch's own, which tells our allocator."""

    set_fraction: Callable[[float, int], None]
    fractions: dict[int, float] = field(default_factory=dict)
    has_warned: bool = False

    def functions(self) -> Mapping[str, Callable[..., object]]:
        """Each function by its name on torch._C."""
        return {
            "_cuda_memoryStats": read_statistics,
            "_cuda_resetPeakMemoryStats": reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
            "_cuda_memorySnapshot": read_snapshot,
            "_cuda_getMemoryFraction": self.read_fraction,
            "_cuda_setMemoryFraction": self.write_fraction,
            "_cuda_record_memory_history": self.refuse_history,
            "_cuda_record_memory_history_legacy": self.refuse_history,
            "_cuda_isHistoryEnabled": lambda: False,
            "_accelerator_getDeviceStats": read_statistics,
            "_accelerator_resetPeakStats": reset_peaks,
            "_accelerator_resetAccumulatedStats": reset_accumulated,
        }

    def read_fraction(self, device: int) -> float:
        """What PyTorch may take of the device."""
        return self.fractions.get(device, 1.0)

    def write_fraction(self, fraction: float, device: int) -> None:
        """Limits what PyTorch may take of the device."""
        self.set_fraction(fraction, device)
        self.fractions[device] = fraction

    def refuse_history(self, *arguments: object, **keywords: object) -> None:
        """PyTorch's history stays empty: the recording holds more than it would."""
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                "PyTorch's memory history stays empty under gpumem's allocator, whose trace holds every event; for "
                "PyTorch's own use gpumem run --allocator native.",
                stacklevel=3,
            )


def read_statistics(device: int) -> Nested:
    """What torch._C._cuda_memoryStats gives; zeros for a device that was asked for nothing."""
    return nest_all(torch_allocator(device), torch_version())


def reset_peaks(device: int) -> None:
    """Peaks count from now."""
    allocator = torch_allocator(device)
    if allocator is not None:
        allocator.reset_peaks()


def reset_accumulated(device: int) -> None:
    """What came and went is counted from now."""
    allocator = torch_allocator(device)
    if allocator is not None:
        allocator.reset_accumulated()


def read_snapshot(*arguments: object, **keywords: object) -> Nested:
    """What torch._C._cuda_memorySnapshot gives, without history: every device's segments."""
    segments: list[Nested] = []
    device_count = 0
    for device in range(DEVICES_MAX):
        allocator = torch_allocator(device)
        if allocator is not None:
            device_count = device + 1
            segments.extend(nest_segment(device, segment) for segment in allocator.heap().segments)
    return {
        "segments": segments,
        "device_traces": [[] for _ in range(device_count)],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": torch_settings() or ""},
        "external_annotations": [],
    }
