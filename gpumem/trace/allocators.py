"""Which allocator an event or a block belongs to, and what the trace says of that allocator.

Owns: the bits of flags that tell allocators of one device apart. Must not know: what allocators do, reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NewType

import numpy as np
import numpy.typing as npt

from gpumem.trace.model import Column, DeviceFacts, TraceMeta
from gpumem.vocabulary import NUMBER_SHIFT, NUMBERS_SHARED, EventFlag, TraceSource

AllocatorCode = NewType("AllocatorCode", int)
"""The bits of an event's flags that say whose it is: 0 for an allocator that is not gpumem's own."""
ALLOCATOR_BITS = (0xFF << NUMBER_SHIFT) | EventFlag.OWN_ALLOCATOR


@dataclass(frozen=True, slots=True)
class RecordedAllocator:
    """An allocator of a device as it was set up: `settings` None where the recording does not say."""

    code: AllocatorCode
    settings: str | None
    facts: DeviceFacts
    """Of its device, with the memory and the limit that it was given."""
    torch_version: str | None = None
    """The PyTorch whose allocator it is, or that it follows; None: not known, or gpumem's own manner, that of 2.11."""

    @property
    def is_own(self) -> bool:
        """Whether it is gpumem's."""
        return self.code != 0

    @property
    def number(self) -> int | None:
        """What tells it from gpumem's others; None where it is not one of them."""
        return self.code >> NUMBER_SHIFT if self.is_own else None

    @property
    def is_several(self) -> bool:
        """Whether it stands for all that cannot be told apart."""
        return self.number == NUMBERS_SHARED


def code_of_own(number: int) -> AllocatorCode:
    """The code of gpumem's allocator of this number."""
    return AllocatorCode(EventFlag.OWN_ALLOCATOR | number << NUMBER_SHIFT)


def code_of(flags: int) -> AllocatorCode:
    """The code of an event."""
    return AllocatorCode(flags & ALLOCATOR_BITS)


def codes_of(flags: Column) -> npt.NDArray[np.uint16]:
    """The code of each event."""
    codes: npt.NDArray[np.uint16] = flags.astype(np.uint16, copy=False) & np.uint16(ALLOCATOR_BITS)
    return codes


def find_allocator(meta: TraceMeta, device: int, code: AllocatorCode) -> RecordedAllocator:
    """What the trace says of the allocator of a device whose events have this code."""
    facts = next((one for one in meta.devices if one.device == device), DeviceFacts(device))
    found = next(
        (one for one in meta.allocators if one.device == device and code_of_own(one.number) == code),
        None,
    )
    if found is None:
        return RecordedAllocator(code, meta.settings, facts, None if code else meta.versions.get("torch"))
    if found.capacity_bytes is not None:
        facts = replace(
            without_torch_figures(facts),
            capacity_bytes=found.capacity_bytes,
            memory_limit_bytes=found.memory_limit_bytes,
        )
    return RecordedAllocator(code, found.settings, facts, found.torch_version)


def without_torch_figures(facts: DeviceFacts) -> DeviceFacts:
    """The facts less what PyTorch said at its end, which is of its own allocator alone."""
    return replace(
        facts,
        torch_allocated_bytes_end=None,
        torch_allocated_bytes_peak=None,
        torch_reserved_bytes_end=None,
        torch_reserved_bytes_peak=None,
    )


def settings_of(meta: TraceMeta, device: int | None = None) -> Sequence[str | None]:
    """The lines of settings that a device's allocators, or all, were given by the trace's facts, each once.

    None stands for those that are not in the recording. Without a device: of the recording.
    """
    own = [one.settings for one in meta.allocators if device is None or one.device == device]
    is_own_alone = meta.source is TraceSource.GPUMEM and own
    return tuple(dict.fromkeys(own if is_own_alone else [meta.settings, *own]))
