"""A comparison in words: the sentence on top, moments, amounts before and after.

Owns: the words that terminal, JSON and page share. Must not know: layout, colours. No arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpumem.analyses.diff_findings import BeforeAfter, Change, ComparedSide, DeviceDiff, GroupDiff, Held, TraceDiff
from gpumem.analyses.diff_headline import Figure, Headline, HeadlineKind, figure_of, find_headline, is_unrecorded
from gpumem.heap.instants import Instant
from gpumem.render.text import place, printable
from gpumem.trace.model import Frame
from gpumem.trace.moments import Peak, format_moment
from gpumem.units import (
    counted,
    format_bytes,
    format_bytes_apart,
    format_bytes_delta,
    format_count,
    format_duration,
    format_share,
)
from gpumem.vocabulary import Basis

ARROW = "→"


def headline_sentence(diff: TraceDiff, arrow: str = ARROW) -> str:
    """What matters most, in one or two sentences: which site, how much, and how that relates to all that changed."""
    found = find_headline(diff)
    if found.kind is HeadlineKind.UNRECORDED:
        return _unrecorded(found)
    if found.device is None or found.kind in (HeadlineKind.EMPTY, HeadlineKind.NOTHING):
        return _nothing(found)
    where = f"Device {found.device.device}: " if len(diff.devices) > 1 else ""
    where += _reserved_first(found, found.device, arrow)
    if found.group is None:
        return f"{where}{_same_blocks(found, found.device, arrow)}{_other_devices(found)}"
    if found.kind is HeadlineKind.SITE:
        sentence = f"{what_became(found.group, arrow)}{_relation(found, found.group, found.device)}."
        factor = _factor(found)
    else:
        sentence, factor = _several(found, found.group, found.device, arrow), ""
    return f"{where}{sentence}{factor}{_other_devices(found)}"


def what_became(group: GroupDiff, arrow: str = ARROW) -> str:
    """`train.py:41 build_cache holds 3.00 GiB more (1.00 → 4.00 GiB, 1 → 4 blocks)`."""
    where = short_place(group)
    if group.change is Change.NEW:
        return f"{where} is new and holds {_held(group.after_bytes, group.after_count)}"
    if group.change is Change.GONE:
        return f"{where} holds nothing any more ({_held(group.before_bytes, group.before_count)} before)"
    if group.change in (Change.RECOUNTED, Change.SAME):
        counts = counts_text(group, arrow)
        return f"{where} holds the same {format_bytes(group.after_bytes)} ({counts})"
    word = "more" if group.change is Change.GROWN else "less"
    amounts = amounts_text(group.before_bytes, group.after_bytes, arrow)
    counts = f", {counts_text(group, arrow)}" if group.before_count or group.after_count else ""
    return f"{where} holds {_unsigned(group.delta_bytes)} {word} ({amounts}{counts})"


def short_place(group: GroupDiff) -> str:
    """The site by its file's name, or what the blocks without one are."""
    if group.held is Held.EVENTS_LACKING:
        return "Memory whose events the recording lacks"
    site = group.site
    return "Memory without a Python stack" if site is None else place_text(site)


def place_text(frame: Frame) -> str:
    """`train.py:41 build_cache`, without folders."""
    return f"{place(file_name(frame), frame.line)} {printable(frame.function)}".lstrip()


def file_name(frame: Frame) -> str:
    """The frame's file without its folders."""
    return printable(frame.file.replace("\\", "/").rsplit("/", 1)[-1])


def amounts_text(before: int, after: int, arrow: str = ARROW) -> str:
    """`1.00 → 4.00 GiB`: the unit once where it is the same, and small enough to tell them apart."""
    was, now = format_bytes_apart(before, after)
    figure, _, unit = was.partition(" ")
    return f"{figure if now.endswith(f' {unit}') else was} {arrow} {now}"


def counts_text(group: GroupDiff, arrow: str = ARROW) -> str:
    """`1 → 4 blocks`, or `4 blocks` where that did not change."""
    if group.before_count == group.after_count:
        return counted(group.after_count, "block")
    return f"{format_count(group.before_count)} {arrow} {counted(group.after_count, 'block')}"


def side_text(side: ComparedSide) -> str:
    """`peak (1.7 s, event 248)`: the moment that was asked for, and the event it is."""
    moment = printable(format_moment(side.moment))
    return f"{moment} of each device" if side.instant is None else f"{moment} ({_event_text(side.instant)})"


def own_moments_text(diff: TraceDiff, device: DeviceDiff) -> str:
    """When each side's device was looked at, where devices have moments of their own; else ""."""
    sides = (("before", diff.before, device.before_instant), ("after", diff.after, device.after_instant))
    said = [f"{name} at {_event_text(at)}" for name, side, at in sides if side.instant is None and at is not None]
    return f"peak of device {device.device}: {', '.join(said)}" if said else ""


def _event_text(instant: Instant) -> str:
    if instant.event < 0:
        return "before the first event"
    return f"{format_duration(instant.time_ns)}, event {format_count(instant.event)}"


def device_figures(diff: TraceDiff, device: DeviceDiff) -> Iterator[tuple[str, BeforeAfter]]:
    """The name and the bytes of each figure that is told of a device: none of an allocator that was not recorded, no
    peak of moments that are the peaks themselves, or of one trace.
    """
    if not is_unrecorded(diff):
        if device.basis is Basis.ALLOCATED:
            yield "requested", device.requested_bytes
        shown = [Figure.HELD, Figure.RESERVED]
        if not diff.is_one_trace:
            is_at_peak = diff.before.moment == diff.after.moment == Peak()
            shown += [] if is_at_peak and device.held_bytes == device.held_bytes_peak else [Figure.HELD_PEAK]
            shown += [Figure.RESERVED_PEAK]
        yield from ((figure_name(figure, device.basis), figure_of(device, figure)) for figure in shown)
    if device.nvml_process_bytes != BeforeAfter(None, None):
        yield "NVML: this process", device.nvml_process_bytes


def figure_name(figure: Figure, basis: Basis) -> str:
    """`allocated`, `reserved`, `peak of reserved`."""
    held = "allocated" if basis is Basis.ALLOCATED else "requested"
    return {
        Figure.HELD: held,
        Figure.RESERVED: "reserved",
        Figure.RESERVED_PEAK: "peak of reserved",
        Figure.HELD_PEAK: f"peak of {held}",
    }[figure]


def _held(byte_count: int, block_count: int) -> str:
    blocks = f" in {counted(block_count, 'block')}" if block_count else ""
    return f"{format_bytes(byte_count)}{blocks}"


def _unsigned(byte_count: int) -> str:
    return format_bytes(byte_count).removeprefix("-")


def _unrecorded(found: Headline) -> str:
    sides = (("before", found.is_before_unrecorded), ("after", found.is_after_unrecorded))
    where = " or ".join(name for name, is_unrecorded in sides if is_unrecorded)
    return f"What changed is not known: no allocator was recorded {where}."


def _nothing(found: Headline) -> str:
    if found.kind is HeadlineKind.EMPTY:
        return "Nothing is held, before or after."
    but = " but lines of code" if found.have_lines_moved else ""
    holders = counted(found.stack_count, "stack") if found.stack_count else counted(found.block_count, "block")
    verb = "holds" if holders.startswith("1 ") else "hold"
    return (
        f"Nothing changed{but}: the same {holders.removeprefix('1 ')} {verb} the same {format_bytes(found.held_bytes)}."
    )


def _same_blocks(found: Headline, device: DeviceDiff, arrow: str) -> str:
    assert found.figure is not None, "something differs on the device"
    name = figure_name(found.figure, device.basis)
    the = "the " if found.figure in (Figure.RESERVED_PEAK, Figure.HELD_PEAK) else ""
    blocks = "The same blocks are held" if any(_held_bytes(device)) else "Nothing is held, before or after"
    return f"{blocks}, but {the}{name} {_went(figure_of(device, found.figure), arrow)}."


def _held_bytes(device: DeviceDiff) -> tuple[int | None, int | None]:
    return device.held_bytes.before, device.held_bytes.after


def _reserved_first(found: Headline, device: DeviceDiff, arrow: str) -> str:
    """What is reserved, where that changed far more than what is held in it."""
    if found.group is None or found.figure is None:
        return ""
    name = figure_name(found.figure, device.basis)
    held = figure_name(Figure.HELD, device.basis)
    return f"{name.capitalize()} {_went(figure_of(device, found.figure), arrow)}, far more than {held} did: "


def _went(figure: BeforeAfter, arrow: str) -> str:
    assert figure.before is not None, "it is known"
    assert figure.after is not None, "it is known"
    verb = "grew" if figure.after > figure.before else "fell"
    amounts = amounts_text(figure.before, figure.after, arrow)
    return f"{verb} by {_unsigned(figure.delta or 0)} ({amounts})"


def _relation(found: Headline, group: GroupDiff, device: DeviceDiff) -> str:
    """How the change of a site relates to that of the device."""
    whole = device.held_bytes.delta or 0
    if found.changed_count == 1:
        return "; no other site changed"
    rest = f"; all else holds {_unsigned(found.rest_delta_bytes)} {_more_or_less(found.rest_delta_bytes)}"
    if not found.rest_delta_bytes:
        return "; all else is level"
    if (group.delta_bytes > 0) is (found.rest_delta_bytes > 0):
        way = "growth" if whole > 0 else "decrease"
        return f": {format_share(group.delta_bytes, whole)} of the {_unsigned(whole)} {way}"
    return f"{rest}: {_in_all(whole)}"


def _several(found: Headline, group: GroupDiff, device: DeviceDiff, arrow: str) -> str:
    """Many changes, none of which is half of them."""
    whole = device.held_bytes.delta or 0
    most = f"the most is {short_place(group)}{_change(group, arrow)}."
    factor = found.factor
    if factor is not None:
        whole_text = "the whole change" if factor.delta_bytes == whole else f"of {format_bytes_delta(whole)} in all"
        share = f"{format_bytes_delta(factor.delta_bytes)}, {whole_text}"
        return f"{_hold(factor.group_count)} {factor.factor:.2f} times what they held: {share}; {most}"
    more = f"{_hold(found.more_count)} {format_bytes(found.more_bytes)} more" if found.more_count else ""
    less = f"{_hold(found.less_count)} {format_bytes(found.less_bytes)} less" if found.less_count else ""
    sums = f"{more} and {less}: {_in_all(whole)}" if more and less else more or less
    if found.are_strangers:
        return f"No line of code holds memory in both: {sums}; {most}"
    return f"{'Many small changes: ' if found.is_scattered else ''}{sums}; {most}"


def _hold(site_count: int) -> str:
    return f"{counted(site_count, 'site')} {'holds' if site_count == 1 else 'hold'}"


def _in_all(whole: int) -> str:
    return f"{_unsigned(whole)} {_more_or_less(whole)} in all" if whole else "the sum is the same"


def _more_or_less(byte_count: int) -> str:
    return "more" if byte_count > 0 else "less"


def _change(group: GroupDiff, arrow: str) -> str:
    if group.change is Change.NEW:
        return f", which is new and holds {_held(group.after_bytes, group.after_count)}"
    if group.change is Change.GONE:
        return f", which held {_held(group.before_bytes, group.before_count)} and holds nothing any more"
    amounts = amounts_text(group.before_bytes, group.after_bytes, arrow)
    counts = f", {counts_text(group, arrow)}" if group.before_count or group.after_count else ""
    return f" with {format_bytes_delta(group.delta_bytes)} ({amounts}{counts})"


def _factor(found: Headline) -> str:
    """A factor that most sites have in common, beside the site that leads."""
    factor = found.factor
    if factor is None:
        return ""
    of = f"{format_count(factor.group_count)} of the {counted(found.changed_count, 'site')} that changed"
    return f" {of} hold {factor.factor:.2f} times what they held."


def _other_devices(found: Headline) -> str:
    numbers = [str(number) for number in found.other_devices]
    if not numbers:
        return ""
    return f" Device{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} changed too."
