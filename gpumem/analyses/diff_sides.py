"""One side of a comparison: the state of a trace at a moment, by stack, and the peaks of the whole trace.

Owns: measuring a side. Must not know: the other side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpumem.analyses.readings import find_process_bytes
from gpumem.analyses.sites import SiteFinder
from gpumem.heap.instants import Instant, find_instant, time_of
from gpumem.heap.levels import basis_column, basis_of
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import DeviceScan, StateAt, scan_trace
from gpumem.trace.model import DeviceFacts, Frame, Trace
from gpumem.trace.moments import Moment, Peak, PeakOf
from gpumem.trace.stack_links import cut_stacks, read_frames, walk_stacks
from gpumem.vocabulary import Basis, DeviceOrdinal, StackId

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """The allocated blocks of one stack, or of all stacks of one site; `frames` is then the heaviest of them."""

    frames: tuple[Frame, ...]
    """Innermost first, at least one."""
    site_index: int
    """Which of the frames is the site."""
    held_bytes: int
    block_count: int

    @property
    def site(self) -> Frame:
        return self.frames[self.site_index]


@dataclass(frozen=True, slots=True)
class HeldStacks:
    """Stacks with what each holds, and their frames in columns: one after another, as places among `frames`."""

    groups: Sequence[HeldGroup] = ()
    frames: Sequence[Frame] = ()
    """All that there are, each once."""
    numbers: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    depths: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """A device of one trace; bytes in its basis but for the requested and the reserved."""

    facts: DeviceFacts
    basis: Basis
    instant: Instant
    held_bytes: int
    requested_bytes: int
    reserved_bytes: int
    held_bytes_peak: int | None
    """Of the whole trace; None where recording began in mid-run."""
    reserved_bytes_peak: int | None
    nvml_process_bytes: int | None
    """By the reading nearest to the moment."""
    stacks: HeldStacks
    stackless_bytes: int
    stackless_count: int

    @property
    def unmatched_bytes(self) -> int:
        """What is held beyond the blocks known: not zero only where the recording lacks events."""
        return self.held_bytes - self.stackless_bytes - sum(stack.held_bytes for stack in self.stacks.groups)


@dataclass(frozen=True, slots=True)
class TraceSide:
    """All devices of one trace at a moment."""

    instant: Instant | None
    """None where the moment is a peak, and each of several devices has its own."""
    devices: Mapping[DeviceOrdinal, DeviceSide]

    def all_frames(self) -> Iterator[Frame]:
        """The frames of the stacks of every device."""
        for device in self.devices.values():
            yield from device.stacks.frames


def measure_side(
    trace: Trace,
    moment: Moment,
    devices: Collection[DeviceOrdinal] | None,
    scanned: Sequence[DeviceScan] | None = None,
) -> TraceSide:
    """The devices that `trace` used (of `devices`, or all) at `moment`, each at its own where that is a peak; raises
    MomentUnknown.

    `scanned`: the scan of the whole trace and these devices, where it was made already.
    """
    scans = _scan_at(trace, moment, devices, scanned)
    reader = _StackReader(trace)
    facts = {DeviceOrdinal(one.device): one for one in trace.meta.devices}
    measured = {}
    for scan, state, instant in scans:
        one = facts.get(scan.device, DeviceFacts(scan.device))
        measured[scan.device] = _device_side(trace, reader, one, scan, state, instant)
    if isinstance(moment, Peak) and len(scans) > 1:
        return TraceSide(None, measured)
    return TraceSide(scans[0][2] if scans else find_instant(trace, moment, devices=devices), measured)


def _scan_at(
    trace: Trace,
    moment: Moment,
    devices: Collection[DeviceOrdinal] | None,
    scanned: Sequence[DeviceScan] | None,
) -> list[tuple[DeviceScan, StateAt, Instant]]:
    """The scan of every device, with its state at the moment and when that is: of a peak, each device's own."""
    if not isinstance(moment, Peak):
        instant = find_instant(trace, moment, devices=devices)
        return [(scan, scan.state, instant) for scan in scan_trace(trace, devices=devices, event=instant.event)]
    scans = scan_trace(trace, devices=devices) if scanned is None else scanned
    return [_at_own_peak(trace, scan, moment.of) for scan in scans]


def _at_own_peak(trace: Trace, scan: DeviceScan, of: PeakOf) -> tuple[DeviceScan, StateAt, Instant]:
    peaks = {PeakOf.ALLOCATED: scan.held_peak, PeakOf.RESERVED: scan.reserved_peak, PeakOf.ACTIVE: scan.active_peak}
    event = peaks[of].event
    if of is PeakOf.ALLOCATED:
        state = StateAt(scan.peak_levels, scan.peak_blocks)
    else:
        (again,) = scan_trace(trace, devices=[scan.device], event=event)
        state = again.state
    return scan, state, Instant(event, time_of(trace, event))


def _device_side(
    trace: Trace, reader: _StackReader, facts: DeviceFacts, scan: DeviceScan, state: StateAt, instant: Instant
) -> DeviceSide:
    blocks = state.blocks.select(~state.blocks.pending)
    by_stack = _sum_by_stack(blocks, basis_column(trace, scan.device))
    stackless_bytes, stackless_count = by_stack.pop(StackId(0), (0, 0))
    has_all = not trace.meta.history_truncated
    return DeviceSide(
        facts=facts,
        basis=basis_of(trace, scan.device),
        instant=instant,
        held_bytes=state.levels.held_bytes,
        requested_bytes=state.levels.requested_bytes,
        reserved_bytes=state.levels.reserved_bytes,
        held_bytes_peak=scan.held_peak.peak_bytes if has_all else None,
        reserved_bytes_peak=scan.reserved_peak.peak_bytes if has_all else None,
        nvml_process_bytes=find_process_bytes(trace, scan.device, instant),
        stacks=reader.read(by_stack),
        stackless_bytes=stackless_bytes,
        stackless_count=stackless_count,
    )


def _sum_by_stack(blocks: LiveTable, bytes_column: str) -> dict[StackId, tuple[int, int]]:
    """Bytes and blocks of each stack."""
    stacks, where = np.unique(blocks["stack"], return_inverse=True)
    held_bytes = np.zeros(len(stacks), dtype=np.int64)
    np.add.at(held_bytes, where, blocks[bytes_column].astype(np.int64))
    counts = np.bincount(where, minlength=len(stacks))
    return {
        StackId(stack): (held, count)
        for stack, held, count in zip(stacks.tolist(), held_bytes.tolist(), counts.tolist(), strict=True)
    }


class _StackReader:
    """The frames of a trace's stacks, and which of them is the site; shares equal frames."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._finder = SiteFinder(trace)

    def read(self, by_stack: Mapping[StackId, tuple[int, int]]) -> HeldStacks:
        """The stacks, none of which is 0, with the bytes and blocks given for each."""
        stacks = np.array(list(by_stack), np.int64)
        rows, depths = walk_stacks(self._trace.stacks, stacks)
        frames, numbers = read_frames(self._trace, rows)
        cut = cut_stacks(frames, numbers, depths)
        found = zip(cut, self._site_indices(stacks, rows, depths), by_stack.values(), strict=True)
        groups = [HeldGroup(stack, index, held, count) for stack, index, (held, count) in found]
        return HeldStacks(groups, frames, numbers, depths)

    def _site_indices(self, stacks: Int64s, frames: Int64s, depths: Int64s) -> list[int]:
        """Where in each stack its site is first."""
        stack = np.repeat(np.arange(len(stacks)), depths)
        is_site = np.flatnonzero(frames == self._finder.find_frames(stacks)[stack])
        _, first = np.unique(stack[is_site], return_index=True)
        assert len(first) == len(stacks), "only stack 0 has no site"
        return (is_site[first] - (np.cumsum(depths) - depths)).tolist()  # type: ignore[no-any-return]
