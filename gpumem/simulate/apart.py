"""A trace whose allocators are told apart: each has an ordinal of its own, as if it had a device to itself.

Owns: which allocators a trace has events of, and the view of the trace by allocator. Must not know: how a replay works,
reports. A device has several where gpumem's own allocator serves beside PyTorch's, or where one with other settings
follows another: their heaps have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpumem.errors import TraceForeign
from gpumem.trace.allocators import AllocatorCode, RecordedAllocator, code_of_own, find_allocator, without_torch_figures
from gpumem.trace.model import AllocatorFacts, Column, DeviceFacts, EventBatch, EventSource, InitialBlock, Trace
from gpumem.vocabulary import NO_DEVICE, NUMBER_SHIFT, DeviceOrdinal, EventFlag, TraceSource

_NUMBERS = 256
_DEVICE_SHIFT = 9
_OWN_BIT = 6
"""Position of EventFlag.OWN_ALLOCATOR."""


@dataclass(frozen=True, slots=True)
class ApartTrace:
    """The trace by allocator: its devices are the allocators, of which `allocators` says what they are by ordinal."""

    trace: Trace
    allocators: Mapping[DeviceOrdinal, RecordedAllocator]

    def allocator(self, ordinal: DeviceOrdinal) -> RecordedAllocator:
        """What the trace says of an allocator; of a device without events, of the program's own there."""
        found = self.allocators.get(ordinal)
        return find_allocator(self.trace.meta, ordinal, AllocatorCode(0)) if found is None else found

    def count_beside(self, ordinal: DeviceOrdinal) -> int:
        """How many allocators the device of this one has had, itself included."""
        device = self.allocator(ordinal).facts.device
        return max(1, sum(one.facts.device == device for one in self.allocators.values()))

    def find(self, device: DeviceOrdinal, code: AllocatorCode) -> tuple[Trace, DeviceOrdinal]:
        """The trace in which an allocator has a device to itself, and the ordinal of that."""
        for ordinal, one in self.allocators.items():
            if (one.facts.device, one.code) == (device, code):
                return self.trace, ordinal
        return self.trace, device

    def ordinals_of(self, devices: Collection[DeviceOrdinal]) -> list[DeviceOrdinal]:
        """The allocators of these devices; one without events stands for itself."""
        found = [ordinal for ordinal, one in self.allocators.items() if one.facts.device in devices]
        return sorted({*found, *devices})


def tell_apart(trace: Trace) -> ApartTrace:
    """The trace by allocator, the first of each device under the device's own ordinal; the trace itself where it says
    no more.

    Raises TraceForeign for more allocators than there are ordinals.
    """
    source, own = trace.meta.source, trace.meta.allocators
    if source not in (TraceSource.NATIVE, TraceSource.GPUMEM) or not own:
        return ApartTrace(trace, {})
    if source is TraceSource.GPUMEM and len({one.device for one in own}) == len(own):
        return ApartTrace(trace, {DeviceOrdinal(one.device): _given(trace, one) for one in own})
    keys = _find_keys(trace)
    ordinals = _give_ordinals(trace, keys)
    allocators = {
        DeviceOrdinal(int(ordinals[key])): find_allocator(trace.meta, key >> _DEVICE_SHIFT, _code_of(key))
        for key in keys
    }
    devices = tuple(_device(trace, ordinal, one) for ordinal, one in sorted(allocators.items()))
    others = tuple(one for one in trace.meta.devices if one.device not in allocators)
    view = replace(
        trace,
        meta=replace(trace.meta, devices=devices + others),
        events=_ApartEvents(trace.events, ordinals),
        initial_blocks=[replace(one, device=int(ordinals[_key_of(one)]), flags=0) for one in trace.initial_blocks],
    )
    return ApartTrace(view, allocators)


def _given(trace: Trace, one: AllocatorFacts) -> RecordedAllocator:
    return find_allocator(trace.meta, one.device, code_of_own(one.number))


def _find_keys(trace: Trace) -> Sequence[int]:
    """The keys of the allocators that the trace has events or blocks of, ascending."""
    counts = np.zeros(_NUMBERS << _DEVICE_SHIFT, np.int64)
    for batch in trace.event_batches(("device", "flags")):
        counts += np.bincount(_keys(batch["device"], batch["flags"]), minlength=len(counts))
    for block in trace.initial_blocks:
        counts[_key_of(block)] += 1
    found: list[int] = np.flatnonzero(counts[: NO_DEVICE << _DEVICE_SHIFT]).tolist()
    return found


def _keys(devices: Column, flags: Column) -> npt.NDArray[np.int64]:
    """Device, whether it is gpumem's own, and its number, in one figure: by it allocators are told apart."""
    bits = flags.astype(np.int64)
    return devices.astype(np.int64) << _DEVICE_SHIFT | (bits >> _OWN_BIT & 1) * (_NUMBERS | bits >> NUMBER_SHIFT)


def _key_of(block: InitialBlock) -> int:
    return int(_keys(np.array([block.device]), np.array([block.flags]))[0])


def _code_of(key: int) -> AllocatorCode:
    return code_of_own(key % _NUMBERS) if key & _NUMBERS else AllocatorCode(0)


def _give_ordinals(trace: Trace, keys: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The ordinal of each key: a device's first allocator has the device's, the others have some that no device has."""
    ordinals = (np.arange(_NUMBERS << _DEVICE_SHIFT) >> _DEVICE_SHIFT).astype(np.uint8)
    firsts = {key >> _DEVICE_SHIFT: key for key in reversed(keys)}
    others = [key for key in keys if key not in firsts.values()]
    known = firsts.keys() | {one.device for one in trace.meta.devices} | {row.device for row in trace.streams}
    free = [ordinal for ordinal in range(NO_DEVICE) if ordinal not in known]
    if len(others) > len(free):
        raise TraceForeign(f"{trace.path} names {len(keys)} allocators, more than a recording can have.")
    ordinals[others] = free[: len(others)]
    return ordinals


def _device(trace: Trace, ordinal: DeviceOrdinal, allocator: RecordedAllocator) -> DeviceFacts:
    """The facts of an allocator's device as those of its ordinal; gpumem's own says its blocks' bytes itself."""
    facts = replace(allocator.facts, device=ordinal)
    if not allocator.is_own or trace.meta.source is not TraceSource.NATIVE:
        return facts
    return replace(without_torch_figures(facts), block_bytes_known_until=max(1, trace.event_count))


@dataclass(frozen=True, slots=True)
class _ApartEvents:
    """Events whose device is their allocator's ordinal; their flags say no more whose they are."""

    events: EventSource
    ordinals: npt.NDArray[np.uint8]

    @property
    def event_count(self) -> int:
        return self.events.event_count

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        read = list(dict.fromkeys((*columns, *(("device", "flags") if "device" in columns else ()))))
        for batch in self.events.batches(read, first_event, end_event):
            told = {name: batch.columns[name] for name in columns}
            if "device" in columns:
                told["device"] = self.ordinals[_keys(batch["device"], batch["flags"])]
            if "flags" in columns:
                told["flags"] = batch["flags"] & np.uint16(EventFlag.OWN_ALLOCATOR - 1)
            yield EventBatch(batch.first_event, batch.count, told)
