"""What changed between two traces, or between two moments of one: by site and by stack, never by address.

Owns: the comparison. Must not know: text, colours, JSON.

Each side is measured by itself (diff_sides.py), files and moved lines of one are found again in the other
(diff_files.py), stacks and sites are paired (diff_match.py); diff_findings.py says what comes of it. Bytes are those of
one basis on both sides. On every device

    the sum of `by_site`, and that of `by_stack`, is the device's held bytes: before, after, and so their difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpumem.analyses.diff_files import LineMap, find_line_map
from gpumem.analyses.diff_findings import BeforeAfter, Change, ComparedSide, DeviceDiff, GroupDiff, Held, TraceDiff
from gpumem.analyses.diff_match import GroupPair, pair_sites, pair_stacks
from gpumem.analyses.diff_settings import compare_settings
from gpumem.analyses.diff_sides import DeviceSide, HeldStacks, TraceSide, measure_side
from gpumem.heap.scan import DeviceScan
from gpumem.trace.model import DeviceFacts, Trace
from gpumem.trace.moments import Moment, Peak
from gpumem.vocabulary import Basis, DeviceOrdinal


def compare_traces(
    before: Trace,
    after: Trace,
    *,
    before_moment: Moment | None = None,
    after_moment: Moment | None = None,
    devices: Collection[DeviceOrdinal] | None = None,
    scanned: tuple[Sequence[DeviceScan], Sequence[DeviceScan]] | None = None,
) -> TraceDiff:
    """What changed from a moment of one trace to a moment of another, or of the same one; by default at their peaks.

    A peak is each device's own: devices that fill up at different times are all compared when they are fullest. Where
    one side does not know its block bytes of a device, both are measured by requests there. Raises MomentUnknown.
    `scanned`: the scans of both whole traces and these devices, where they were made already.
    """
    moments = (before_moment or Peak(), after_moment or Peak())
    was, now = _measure_in_one_basis((before, after), moments, devices, scanned or (None, None))
    lines = find_line_map(was.all_frames(), now.all_frames())
    pairs = [_compare_devices(one, other, lines) for one, other in _pair_devices(was, now)]
    return TraceDiff(
        _compared(before, was, before_moment),
        _compared(after, now, after_moment),
        Basis.ALLOCATED if all(pair.basis is Basis.ALLOCATED for pair in pairs) else Basis.REQUESTED,
        before is after,
        pairs,
        [] if before is after else compare_settings(before, after, devices),
    )


def _measure_in_one_basis(
    traces: Sequence[Trace],
    moments: Sequence[Moment],
    devices: Collection[DeviceOrdinal] | None,
    scanned: Sequence[Sequence[DeviceScan] | None],
) -> tuple[TraceSide, TraceSide]:
    """Both sides, a device that one side knows alone by its requests."""
    was, now = (
        measure_side(trace, moment, devices, scans)
        for trace, moment, scans in zip(traces, moments, scanned, strict=True)
    )
    unequal = [(one, other) for one, other in _pair_devices(was, now) if one and other and one.basis is not other.basis]
    if unequal:
        before, after = traces
        was = measure_side(_without_blocks(before, was, [one for one, _ in unequal]), moments[0], devices)
        now = measure_side(_without_blocks(after, now, [other for _, other in unequal]), moments[1], devices)
    return was, now


def _without_blocks(trace: Trace, side: TraceSide, forgotten: Collection[DeviceSide]) -> Trace:
    """The trace as it reads where of some devices the requests alone are known."""
    facts: dict[int, DeviceFacts] = {number: one.facts for number, one in side.devices.items()}
    facts |= {one.device: one for one in trace.meta.devices}
    known = {number for number in facts if trace.knows_blocks(number)} - {one.facts.device for one in forgotten}
    told = [
        replace(one, block_bytes_known_until=trace.event_count if number in known else None)
        for number, one in sorted(facts.items())
    ]
    return replace(trace, meta=replace(trace.meta, block_bytes_known=False, devices=tuple(told)))


def _compared(trace: Trace, side: TraceSide, moment: Moment | None) -> ComparedSide:
    unknown = [device for device in sorted(side.devices) if not trace.knows_blocks(device)]
    return ComparedSide(str(trace.path), moment or Peak(), side.instant, trace.meta, unknown)


def _pair_devices(before: TraceSide, after: TraceSide) -> list[tuple[DeviceSide | None, DeviceSide | None]]:
    """Devices of one number belong together; where each side has just one, those do."""
    if len(before.devices) == len(after.devices) == 1:
        return [(next(iter(before.devices.values())), next(iter(after.devices.values())))]
    numbers = sorted(before.devices.keys() | after.devices.keys())
    return [(before.devices.get(number), after.devices.get(number)) for number in numbers]


def _compare_devices(before: DeviceSide | None, after: DeviceSide | None, lines: LineMap) -> DeviceDiff:
    some = after or before
    assert some is not None, "one side used the device"
    basis = some.basis

    def figure(name: str) -> BeforeAfter:
        was, now = (0 if side is None else getattr(side, name) for side in (before, after))
        return BeforeAfter(was, now)

    was, now = (HeldStacks() if side is None else side.stacks for side in (before, after))
    stacks = pair_stacks(was, now, lines)
    sites = pair_sites(stacks, lines)
    others = _other_groups(before, after)
    held = figure("held_bytes")
    return DeviceDiff(
        before_device=None if before is None else DeviceOrdinal(before.facts.device),
        after_device=None if after is None else DeviceOrdinal(after.facts.device),
        before_instant=None if before is None else before.instant,
        after_instant=None if after is None else after.instant,
        facts=some.facts,
        basis=basis,
        held_bytes=held,
        requested_bytes=figure("requested_bytes"),
        allocated_bytes=held if basis is Basis.ALLOCATED else None,
        reserved_bytes=figure("reserved_bytes"),
        held_bytes_peak=figure("held_bytes_peak"),
        reserved_bytes_peak=figure("reserved_bytes_peak"),
        nvml_process_bytes=BeforeAfter(
            *(None if side is None else side.nvml_process_bytes for side in (before, after))
        ),
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
