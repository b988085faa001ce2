"""What changed between two traces, or between two moments of one: by site and by stack, never by address.

Owns: the findings of `gpumem diff`. Must not know: text, colours, JSON.

Each side is measured by itself (diff_sides.py), lines and files of one are found again in the other (diff_files.py),
stacks and sites are paired (diff_match.py). Bytes are those of one basis on both sides. On every device

    the sum of `by_site`, and that of `by_stack`, is the device's held bytes: before, after, and so their difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpumem.analyses.diff_files import LineMap, find_line_map
from gpumem.analyses.diff_match import GroupPair, pair_sites, pair_stacks
from gpumem.analyses.diff_settings import SettingDiff, compare_settings
from gpumem.analyses.diff_sides import DeviceSide, TraceSide, measure_side
from gpumem.heap.instants import Instant
from gpumem.heap.levels import basis_of
from gpumem.trace.model import DeviceFacts, Frame, Trace, TraceMeta
from gpumem.trace.moments import Moment, Peak
from gpumem.vocabulary import Basis, DeviceOrdinal


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A figure on both sides; None where it is not known."""

    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """After less before; None where one is not known."""
        return None if self.before is None or self.after is None else self.after - self.before


class Change(Enum):
    """What became of a group of blocks."""

    NEW = "new"
    GONE = "gone"
    GROWN = "grown"
    SHRUNK = "shrunk"
    RECOUNTED = "recounted"
    """The same bytes in another number of blocks."""
    SAME = "same"


class Held(Enum):
    """Whose blocks a group holds."""

    LINES = "lines"
    """Those of a stack or site."""
    WITHOUT_STACK = "without_stack"
    """Those without a Python stack."""
    EVENTS_LACKING = "events_lacking"
    """No known blocks: what the recording's levels hold beyond them, as it lacks events."""


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """The blocks of one site or stack on both sides; a site is None, and its stack empty, where that side has none."""

    held: Held
    before_site: Frame | None
    after_site: Frame | None
    before_stack: Sequence[Frame]
    """Innermost frame first; of a site, the stack that holds most of it."""
    after_stack: Sequence[Frame]
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def delta_bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def site(self) -> Frame | None:
        """The site as it is now; as it was, where it is gone."""
        return self.after_site or self.before_site

    @property
    def has_moved(self) -> bool:
        """Whether its line or its file is another than before."""
        return self.before_site is not None and self.after_site is not None and self.before_site != self.after_site

    @property
    def change(self) -> Change:
        had = (self.before_bytes, self.before_count) != (0, 0)
        has = (self.after_bytes, self.after_count) != (0, 0)
        if had != has:
            return Change.NEW if has else Change.GONE
        if self.delta_bytes:
            return Change.GROWN if self.delta_bytes > 0 else Change.SHRUNK
        return Change.SAME if self.before_count == self.after_count else Change.RECOUNTED


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """One device on both sides, each group list by the size of the change."""

    before_device: DeviceOrdinal | None
    """None where that side did not use it."""
    after_device: DeviceOrdinal | None
    facts: DeviceFacts
    """Those of the later side, of the earlier one where that did not use it."""
    basis: Basis
    held_bytes: BeforeAfter
    """In the basis' bytes, at the moments compared."""
    requested_bytes: BeforeAfter
    allocated_bytes: BeforeAfter | None
    """None where one side does not know its block bytes."""
    reserved_bytes: BeforeAfter
    held_bytes_peak: BeforeAfter
    """Of each whole trace, in the basis' bytes; None where recording began in mid-run."""
    reserved_bytes_peak: BeforeAfter
    by_site: Sequence[GroupDiff]
    by_stack: Sequence[GroupDiff]

    @property
    def device(self) -> DeviceOrdinal:
        """The device's number, on the later side if both have it."""
        found = self.before_device if self.after_device is None else self.after_device
        assert found is not None, "one side used the device"
        return found

    @property
    def changed_sites(self) -> Sequence[GroupDiff]:
        """The sites whose bytes or counts are not what they were."""
        return [group for group in self.by_site if group.change is not Change.SAME]

    @property
    def gross_delta_bytes(self) -> int:
        """All that sites hold more and all that they hold less, added up."""
        return sum(abs(group.delta_bytes) for group in self.by_site)


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """Which state of which trace was compared."""

    path: str
    moment: Moment
    instant: Instant
    meta: TraceMeta


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """All that changed; devices by number."""

    before: ComparedSide
    after: ComparedSide
    basis: Basis
    is_one_trace: bool
    """Whether two moments of one trace were compared."""
    devices: Sequence[DeviceDiff]
    settings: Sequence[SettingDiff]


def compare_traces(
    before: Trace,
    after: Trace,
    *,
    before_moment: Moment | None = None,
    after_moment: Moment | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
) -> TraceDiff:
    """What changed from a moment of one trace to a moment of another, or of the same one; by default at their peaks.

    Where one side does not know its block bytes, both are measured by requests. Raises MomentUnknown.
    """
    basis = Basis.ALLOCATED if basis_of(before) is basis_of(after) is Basis.ALLOCATED else Basis.REQUESTED
    one, other = (_in_basis(trace, basis) for trace in (before, after))
    was = measure_side(one, before_moment or Peak(), devices)
    now = measure_side(other, after_moment or Peak(), devices)
    lines = find_line_map(*([stack.frames for stack in side.all_stacks()] for side in (was, now)))
    pairs = _pair_devices(was, now)
    return TraceDiff(
        _compared(before, was, before_moment),
        _compared(after, now, after_moment),
        basis,
        before is after,
        [_compare_devices(one, other, basis, lines) for one, other in pairs],
        [] if before is after else compare_settings(before, after, devices),
    )


def _in_basis(trace: Trace, basis: Basis) -> Trace:
    """The trace as it reads where only requests are known."""
    return trace if basis_of(trace) is basis else replace(trace, meta=replace(trace.meta, block_bytes_known=False))


def _compared(trace: Trace, side: TraceSide, moment: Moment | None) -> ComparedSide:
    return ComparedSide(str(trace.path), moment or Peak(), side.instant, trace.meta)


def _pair_devices(before: TraceSide, after: TraceSide) -> list[tuple[DeviceSide | None, DeviceSide | None]]:
    """Devices of one number belong together; where each side has just one, those do."""
    if len(before.devices) == len(after.devices) == 1:
        return [(next(iter(before.devices.values())), next(iter(after.devices.values())))]
    numbers = sorted(before.devices.keys() | after.devices.keys())
    return [(before.devices.get(number), after.devices.get(number)) for number in numbers]


def _compare_devices(before: DeviceSide | None, after: DeviceSide | None, basis: Basis, lines: LineMap) -> DeviceDiff:
    some = after or before
    assert some is not None, "one side used the device"

    def figure(name: str) -> BeforeAfter:
        was, now = (0 if side is None else getattr(side, name) for side in (before, after))
        return BeforeAfter(was, now)

    stacks = pair_stacks(() if before is None else before.stacks, () if after is None else after.stacks, lines)
    sites = pair_sites(stacks, lines)
    others = _other_groups(before, after)
    held = figure("held_bytes")
    return DeviceDiff(
        before_device=None if before is None else DeviceOrdinal(before.facts.device),
        after_device=None if after is None else DeviceOrdinal(after.facts.device),
        facts=some.facts,
        basis=basis,
        held_bytes=held,
        requested_bytes=figure("requested_bytes"),
        allocated_bytes=held if basis is Basis.ALLOCATED else None,
        reserved_bytes=figure("reserved_bytes"),
        held_bytes_peak=figure("held_bytes_peak"),
        reserved_bytes_peak=figure("reserved_bytes_peak"),
        by_site=_checked(_in_order([*map(_group_diff, sites), *others]), held),
        by_stack=_checked(_in_order([*map(_group_diff, stacks), *others]), held),
    )


def _group_diff(pair: GroupPair) -> GroupDiff:
    was, now = pair.before, pair.after
    return GroupDiff(
        Held.LINES,
        None if was is None else was.site,
        None if now is None else now.site,
        () if was is None else was.frames,
        () if now is None else now.frames,
        0 if was is None else was.held_bytes,
        0 if now is None else now.held_bytes,
        0 if was is None else was.block_count,
        0 if now is None else now.block_count,
    )


def _other_groups(before: DeviceSide | None, after: DeviceSide | None) -> list[GroupDiff]:
    """What belongs to no stack, where there is any."""

    def figure(name: str) -> tuple[int, int]:
        was, now = (0 if side is None else getattr(side, name) for side in (before, after))
        return was, now

    groups = [
        GroupDiff(Held.WITHOUT_STACK, None, None, (), (), *figure("stackless_bytes"), *figure("stackless_count")),
        GroupDiff(Held.EVENTS_LACKING, None, None, (), (), *figure("unmatched_bytes"), 0, 0),
    ]
    return [one for one in groups if any((one.before_bytes, one.after_bytes, one.before_count, one.after_count))]


def _in_order(groups: Sequence[GroupDiff]) -> list[GroupDiff]:
    """The greatest changes first, then the greatest groups."""

    def order(group: GroupDiff) -> tuple[int, int, int, str, int, str]:
        site = group.site
        name = ("", 0, "") if site is None else (site.file, site.line, site.function)
        return (-abs(group.delta_bytes), group.change is Change.SAME, -group.after_bytes, *name)

    return sorted(groups, key=order)


def _checked(groups: list[GroupDiff], held: BeforeAfter) -> list[GroupDiff]:
    """The groups, which add up to what is held on both sides."""
    assert sum(group.before_bytes for group in groups) == held.before, "groups before add up"
    assert sum(group.after_bytes for group in groups) == held.after, "groups after add up"
    return groups
