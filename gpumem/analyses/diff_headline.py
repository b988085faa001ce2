"""What matters most of a comparison: the one change that says the most, and how it relates to the whole.

Owns: choosing it, and the check of a limit on growth. Must not know: words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.analyses.diff_findings import BeforeAfter, Change, ComparedSide, DeviceDiff, GroupDiff, Held, TraceDiff
from gpumem.errors import AllocatorNotRecorded
from gpumem.vocabulary import Basis, DeviceOrdinal, TraceSource

_LEADING_SHARE = 0.5
"""The share of all that changed from which a site is what matters."""
_FAR_MORE = 4
"""How many times all that changed a change of the reserved bytes is worth telling first."""
_SCATTERED_SHARE = 0.1
_SCATTERED_COUNT_MIN = 10
_FACTOR_GROUPS_MIN = 3
_FACTOR_SHARE = 0.6
"""The share of all that changed from which a factor that sites have in common is told."""
_FACTOR_TOLERANCE = 0.01


class HeadlineKind(Enum):
    """What kind of change it is."""

    UNRECORDED = "unrecorded"
    """Of a side no allocator was recorded, so what it held is not known."""
    EMPTY = "empty"
    """Nothing is held on either side."""
    NOTHING = "nothing"
    """All is as it was."""
    RESERVED = "reserved"
    """The same blocks are held, but another figure differs."""
    SITE = "site"
    """One site is at least half of all that changed."""
    SEVERAL = "several"
    """No site is."""


class Figure(Enum):
    """The figures of a device that a limit on growth or a headline may name."""

    HELD = "held_bytes"
    RESERVED = "reserved_bytes"
    RESERVED_PEAK = "reserved_bytes_peak"
    HELD_PEAK = "held_bytes_peak"


@dataclass(frozen=True, slots=True)
class CommonFactor:
    """Sites that hold so many times what they held."""

    factor: float
    group_count: int
    delta_bytes: int


@dataclass(frozen=True, slots=True)
class Headline:
    """What matters: of the device with the greatest changes, unless nothing changed."""

    kind: HeadlineKind
    device: DeviceDiff | None
    group: GroupDiff | None
    """The site with the greatest change."""
    figure: Figure | None
    """The figure that differs where blocks do not, or far more than they do."""
    rest_delta_bytes: int
    """What all other sites hold more."""
    changed_count: int
    more_count: int
    more_bytes: int
    """What the sites that hold more hold more."""
    less_count: int
    less_bytes: int
    are_strangers: bool
    """Whether both sides hold sites, but none in common."""
    is_scattered: bool
    """Whether many sites changed and none is a tenth of all that did."""
    factor: CommonFactor | None
    is_before_unrecorded: bool
    is_after_unrecorded: bool
    other_devices: Sequence[DeviceOrdinal]
    """Those on which something changed too."""
    held_bytes: int
    """On all devices, on the later side."""
    stack_count: int
    block_count: int
    have_lines_moved: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a figure of a device grew; None where it is not known."""

    device: DeviceOrdinal
    basis: Basis
    figure: Figure
    delta_bytes: int | None


@dataclass(frozen=True, slots=True)
class GrowthCheck:
    """The figures held to a limit."""

    limit_bytes: int
    growths: Sequence[Growth]

    @property
    def exceeding(self) -> Sequence[Growth]:
        """Those that grew by more."""
        return [one for one in self.growths if one.delta_bytes is not None and one.delta_bytes > self.limit_bytes]


def find_headline(diff: TraceDiff) -> Headline:
    """What matters most."""
    devices = sorted(diff.devices, key=lambda one: (-one.gross_delta_bytes, -_other_change(one), one.device))
    changed = [device for device in devices if device.changed_sites or find_differing_figure(device) is not None]
    device = changed[0] if changed else None
    sites = [] if device is None else device.changed_sites
    group = sites[0] if sites else None
    more = [one for one in sites if one.delta_bytes > 0]
    less = [one for one in sites if one.delta_bytes < 0]
    held = sum(one.held_bytes.after or 0 for one in diff.devices)
    stacks = [one for each in diff.devices for one in each.by_stack]
    return Headline(
        kind=HeadlineKind.UNRECORDED if is_unrecorded(diff) else _kind(device, group, held),
        device=device,
        group=group,
        figure=None if device is None else _telling_figure(device),
        rest_delta_bytes=sum(one.delta_bytes for one in sites[1:]),
        changed_count=len(sites),
        more_count=len(more),
        more_bytes=sum(one.delta_bytes for one in more),
        less_count=len(less),
        less_bytes=-sum(one.delta_bytes for one in less),
        are_strangers=_are_strangers(device),
        is_scattered=_is_scattered(device, sites),
        factor=None if device is None else _common_factor(device, sites),
        is_before_unrecorded=_unrecorded_sides(diff)[0],
        is_after_unrecorded=_unrecorded_sides(diff)[1],
        other_devices=sorted(one.device for one in changed[1:]),
        held_bytes=held,
        stack_count=sum(one.held is Held.LINES for one in stacks),
        block_count=sum(one.after_count for one in stacks),
        have_lines_moved=any(_have_lines_moved(one) for one in stacks),
    )


def is_unrecorded(diff: TraceDiff) -> bool:
    """Whether of one side no allocator was recorded."""
    return any(_unrecorded_sides(diff))


def find_changed_bytes(diff: TraceDiff) -> int:
    """How much changed on the device on which the most did: all that sites hold more and less, else another figure.

    Nothing where that is not known.
    """
    if is_unrecorded(diff):
        return 0
    return max((one.gross_delta_bytes or _other_change(one) for one in diff.devices), default=0)


def find_differing_figure(device: DeviceDiff) -> Figure | None:
    """The first figure besides the held bytes that differs; None where none does."""
    figures = (Figure.RESERVED_PEAK, Figure.RESERVED, Figure.HELD_PEAK)
    return next((figure for figure in figures if figure_of(device, figure).delta), None)


def check_growth(diff: TraceDiff, limit_bytes: int) -> GrowthCheck:
    """Each device's held bytes at the moments compared and the peak of its reserved bytes, held to `limit_bytes`.

    Where two moments of one trace are compared, or a peak is not known, the reserved bytes at the moments instead.
    Raises AllocatorNotRecorded where a side's bytes are not known.
    """
    for side, is_lacking in zip((diff.before, diff.after), _unrecorded_sides(diff), strict=True):
        if is_lacking:
            raise AllocatorNotRecorded(f"{side.path} holds no allocator's events, so growth cannot be checked with it.")
    growths: list[Growth] = []
    for device in diff.devices:
        has_peaks = not diff.is_one_trace and device.reserved_bytes_peak.delta is not None
        reserved = Figure.RESERVED_PEAK if has_peaks else Figure.RESERVED
        growths.extend(
            Growth(device.device, device.basis, figure, figure_of(device, figure).delta)
            for figure in (Figure.HELD, reserved)
        )
    return GrowthCheck(limit_bytes, growths)


def figure_of(device: DeviceDiff, figure: Figure) -> BeforeAfter:
    """The figure's bytes on both sides."""
    return {
        Figure.HELD: device.held_bytes,
        Figure.RESERVED: device.reserved_bytes,
        Figure.RESERVED_PEAK: device.reserved_bytes_peak,
        Figure.HELD_PEAK: device.held_bytes_peak,
    }[figure]


def _unrecorded_sides(diff: TraceDiff) -> tuple[bool, bool]:
    """Of which sides no allocator was recorded; a recording that was killed early may not say so itself."""

    def is_empty(side: ComparedSide, figures: Sequence[int | None]) -> bool:
        return side.meta.source is TraceSource.NONE and not any(figures)

    reserved = [device.reserved_bytes for device in diff.devices] + [device.held_bytes for device in diff.devices]
    return (
        is_empty(diff.before, [one.before for one in reserved]),
        is_empty(diff.after, [one.after for one in reserved]),
    )


def _kind(device: DeviceDiff | None, group: GroupDiff | None, held_bytes: int) -> HeadlineKind:
    if device is None:
        return HeadlineKind.NOTHING if held_bytes else HeadlineKind.EMPTY
    if group is None:
        return HeadlineKind.RESERVED
    is_leading = abs(group.delta_bytes) >= _LEADING_SHARE * device.gross_delta_bytes
    return HeadlineKind.SITE if is_leading else HeadlineKind.SEVERAL


def _have_lines_moved(stack: GroupDiff) -> bool:
    pairs = zip(stack.before_stack, stack.after_stack, strict=False)
    return any(was.line != now.line for was, now in pairs)


def _are_strangers(device: DeviceDiff | None) -> bool:
    sites = [] if device is None else [one for one in device.by_site if one.held is Held.LINES]
    return {one.change for one in sites} == {Change.NEW, Change.GONE}


def _is_scattered(device: DeviceDiff | None, sites: Sequence[GroupDiff]) -> bool:
    if device is None or len(sites) < _SCATTERED_COUNT_MIN:
        return False
    return abs(sites[0].delta_bytes) < _SCATTERED_SHARE * device.gross_delta_bytes


def _telling_figure(device: DeviceDiff) -> Figure | None:
    """The figure that differs, unless the changes of the blocks explain it."""
    figure = find_differing_figure(device)
    if figure is None or figure is Figure.HELD_PEAK:
        return None if device.changed_sites else figure
    changed = abs(figure_of(device, figure).delta or 0)
    return figure if not device.changed_sites or changed >= _FAR_MORE * device.gross_delta_bytes else None


def _other_change(device: DeviceDiff) -> int:
    figure = find_differing_figure(device)
    return 0 if figure is None else abs(figure_of(device, figure).delta or 0)


def _common_factor(device: DeviceDiff, sites: Sequence[GroupDiff]) -> CommonFactor | None:
    """The factor by which most of what changed did: that of the site which most bytes agree with."""
    scaled = [one for one in sites if one.delta_bytes and one.before_bytes > 0 and one.after_bytes > 0]
    best: CommonFactor | None = None
    for candidate in scaled[:_FACTOR_GROUPS_MIN]:
        factor = candidate.after_bytes / candidate.before_bytes
        alike = [one for one in scaled if abs(one.after_bytes / one.before_bytes / factor - 1) <= _FACTOR_TOLERANCE]
        delta = sum(one.delta_bytes for one in alike)
        if best is None or abs(delta) > abs(best.delta_bytes):
            best = CommonFactor(factor, len(alike), delta)
    if best is None or best.group_count < _FACTOR_GROUPS_MIN:
        return None
    return best if abs(best.delta_bytes) >= _FACTOR_SHARE * device.gross_delta_bytes else None
