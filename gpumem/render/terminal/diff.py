"""A comparison as one screen: what matters, the sums of each device, the sites that changed, settings that differ.

Owns: the layout of `gpumem diff`. Must not know: how changes are found. No arithmetic beyond layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from gpumem.analyses.diff_findings import BeforeAfter, Change, ComparedSide, DeviceDiff, GroupDiff, Held, TraceDiff
from gpumem.analyses.diff_headline import Growth, GrowthCheck, is_unrecorded
from gpumem.analyses.diff_settings import SettingDiff
from gpumem.render.diff_words import (
    amounts_text,
    counts_text,
    device_figures,
    figure_name,
    file_name,
    headline_sentence,
    own_moments_text,
    place_text,
    side_text,
)
from gpumem.render.terminal import theme
from gpumem.render.terminal.holders import no_stack_texts
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_bytes_delta, format_share
from gpumem.vocabulary import Basis, TraceSource

DEFAULT_TOP = 6
_LABEL_WIDTH = 20
_BYTES_WIDTH = 13
_CHANGE_WIDTH = 12
_WORD_WIDTH = 9
_SETTING_WIDTH = 24


def render_diff(
    diff: TraceDiff,
    page: Page,
    *,
    top: int = DEFAULT_TOP,
    by_stack: bool = False,
    growth: GrowthCheck | None = None,
) -> Text:
    """The comparison, by site or by stack, with the check of a limit on growth where there was one."""
    lines: list[Text | str] = []
    for line in theme.wrap(headline_sentence(diff, page.glyphs.arrow), page):
        lines.append(Text(theme.shorten(line, page.width, page.glyphs.ellipsis), style=theme.TITLE))
    lines.append("")
    lines.extend(_sides(diff, page))
    for device in diff.devices:
        lines.extend(_device_lines(diff, device, page, top, by_stack=by_stack))
    lines.extend(_setting_lines(diff.settings, page))
    if growth is not None:
        lines.append("")
        lines.extend(growth_lines(growth, diff, page))
    return theme.join_lines(lines)


def growth_lines(growth: GrowthCheck, diff: TraceDiff, page: Page, *, whose: str = "") -> Iterator[Text]:
    """Whether a limit on growth was kept; `whose` comes first."""
    limit = format_bytes(growth.limit_bytes)
    exceeding = growth.exceeding
    if not exceeding:
        *names, last = dict.fromkeys(figure_name(one.figure, one.basis) for one in growth.growths) or ["nothing"]
        checked = f"{', '.join(names)} and {last}" if names else last
        for line in theme.wrap(f"Passed: {whose}{checked} grew by no more than {limit}.", page):
            yield Text(line)
    for one in exceeding:
        for line in theme.wrap(_exceeding_text(one, limit, diff, whose), page):
            yield Text(line, style=theme.ERROR)


def _sides(diff: TraceDiff, page: Page) -> Iterator[Text]:
    """Which moment of which trace, and what limits its figures."""
    if diff.is_one_trace:
        yield from _side_lines("trace", diff.before.path, "", page)
    for name, side in (("before", diff.before), ("after", diff.after)):
        yield from _side_lines(name, "" if diff.is_one_trace else side.path, side_text(side), page)
    for note in _notes(diff):
        for line in theme.wrap(note, page, indent="  "):
            yield Text(theme.shorten(line, page.width, page.glyphs.ellipsis), style=theme.WARNING)


def _side_lines(name: str, path: str, moment: str, page: Page) -> Iterator[Text]:
    room = max(20, page.width - 8 - len(moment) - 2)
    shown = theme.shorten_path(printable(path), room, page.glyphs.ellipsis)
    text = ", ".join(part for part in (shown, moment) if part)
    for line in theme.wrap(f"{fit_left(name, 6)}  {text}", page, indent=" " * 8):
        yield Text(theme.shorten(line, page.width, page.glyphs.ellipsis), style=theme.QUIET)


def _notes(diff: TraceDiff) -> Iterator[str]:
    sides = (("before", diff.before), ("after", diff.after))
    if diff.basis is Basis.REQUESTED and not is_unrecorded(diff):
        unknown = [name for name, side in sides if side.unknown_devices]
        if len(unknown) == 1:
            compared = [one for one in diff.devices if one.basis is Basis.REQUESTED]
            are_all = len(compared) == len(diff.devices)
            named = " and ".join(f"device {one.device}" for one in compared)
            verb = "is" if len(compared) == 1 else "are"
            which = "Compared" if are_all else f"{named[0].upper()}{named[1:]} {verb} compared"
            yield f"{which} by requested bytes: block bytes are not known {unknown[0]}."
    for name, side in sides[1:] if diff.is_one_trace else sides:
        yield from (f"{'' if diff.is_one_trace else f'{name}: '}{note}" for note in _side_notes(side))


def _side_notes(side: ComparedSide) -> Iterator[str]:
    if side.meta.source is TraceSource.NONE:
        yield "no allocator was recorded, only NVML readings and marks."
    if side.meta.running:
        yield "the program is still running, these are the events so far."
    if side.meta.history_truncated:
        yield "the recording does not reach back to the program's start, peaks are not known."
    if side.meta.records_lost:
        yield f"{counted(side.meta.records_lost, 'event')} lost, figures may be off by their bytes."
    if side.meta.stacks_off:
        yield printable(side.meta.stacks_off)


def _device_lines(diff: TraceDiff, device: DeviceDiff, page: Page, top: int, *, by_stack: bool) -> Iterator[Text | str]:
    figures = list(device_figures(diff, device))
    if not figures:
        return
    yield ""
    when = own_moments_text(diff, device)
    yield from (Text(line, style=theme.QUIET) for line in (theme.wrap(when, page) if when else ()))
    titles = ("before", "after", "change", *(["of before"] if _has_share(page) else []))
    head = Text("".join(fit_right(title, _BYTES_WIDTH) for title in titles))
    for line in theme.labelled(_device_name(device, page), _LABEL_WIDTH, head, page):
        line.stylize(theme.QUIET)
        yield line
    for name, figure in figures:
        yield from _figure_rows(name, figure, page)
    if not is_unrecorded(diff):
        yield ""
        yield from _group_lines(device, page, top, by_stack=by_stack)


def _has_share(page: Page) -> bool:
    """Whether the page has room for the change's share; a narrow one shows the figures that it follows from."""
    return page.width >= _LABEL_WIDTH + 4 * _BYTES_WIDTH


def _device_name(device: DeviceDiff, page: Page) -> str:
    numbers = (device.before_device, device.after_device)
    if None not in numbers and numbers[0] != numbers[1]:
        return f"device {numbers[0]} {page.glyphs.arrow} {numbers[1]}"
    return f"device {device.device}"


def _figure_rows(name: str, figure: BeforeAfter, page: Page) -> Iterator[Text]:
    row = Text()
    for value in (figure.before, figure.after):
        row.append(fit_right("-" if value is None else format_bytes(value), _BYTES_WIDTH))
    delta = "-" if figure.delta is None else format_bytes_delta(figure.delta)
    row.append(fit_right(delta, _BYTES_WIDTH), style=theme.FIGURE)
    if figure.delta and figure.before and _has_share(page):
        sign = "+" if figure.delta > 0 else ""
        row.append(fit_right(f"{sign}{format_share(figure.delta, figure.before)}", _BYTES_WIDTH), style="not bold")
    return theme.labelled(name, _LABEL_WIDTH, row, page)


def _group_lines(device: DeviceDiff, page: Page, top: int, *, by_stack: bool) -> Iterator[Text]:
    noun = "stack" if by_stack else "site"
    groups = device.by_stack if by_stack else device.by_site
    changed = [group for group in groups if group.change is not Change.SAME]
    same = [group for group in groups if group.change is Change.SAME]
    if not changed:
        if groups:
            yield Text(f"No {noun} changed.")
        return
    held = format_bytes(sum(group.after_bytes for group in same))
    unchanged = f"; {_hold(len(same))} the same {held}" if same else ""
    said = theme.wrap(f"{counted(len(changed), noun)} changed{unchanged}", page, room=page.width - _CHANGE_WIDTH - 2)
    for number, line in enumerate(said):
        yield Text(fit_right("" if number else "change", _CHANGE_WIDTH) + f"  {line}", style=theme.QUIET)
    for group in changed[:top]:
        yield from _group_rows(group, page, by_stack=by_stack, is_alone=len(groups) == 1)
    rest = changed[top:]
    if rest:
        delta = format_bytes_delta(sum(group.delta_bytes for group in rest))
        row = Text(fit_right(delta, _CHANGE_WIDTH), style=theme.FIGURE)
        more, flag = counted(len(rest), f"more {noun}"), f"--top {len(changed)}"
        shown = theme.fitting(page.width - _CHANGE_WIDTH - 2, f"({more}; {flag} shows all)", f"({more}; {flag})")
        yield row.append(f"  {shown}", style="not bold")


def _group_rows(group: GroupDiff, page: Page, *, by_stack: bool, is_alone: bool) -> Iterator[Text]:
    indent = _CHANGE_WIDTH + 2
    room = page.width - indent - _WORD_WIDTH - 2
    row = Text(fit_right(format_bytes_delta(group.delta_bytes), _CHANGE_WIDTH), style=theme.FIGURE)
    word = "same" if group.change is Change.RECOUNTED else group.change.value
    if room >= theme.PLACE_WIDTH_LEAST:
        yield row.append(
            f"  {fit_left(word, _WORD_WIDTH)}{_place(group, room, page, is_alone=is_alone)}", style="not bold"
        )
    else:
        yield row.append(f"  {word}", style="not bold")
        yield Text(f"  {_place(group, page.width - 2, page, is_alone=is_alone)}")
    for line in theme.wrap(_amounts(group, page), page, room=page.width - indent):
        yield Text(" " * indent + theme.shorten(line, page.width - indent, page.glyphs.ellipsis), style=theme.QUIET)
    if by_stack:
        yield from theme.stack_lines(group.stack, " " * (indent + 2), page)


def _hold(count: int) -> str:
    return f"{counted(count, 'other')} {'hold' if count > 1 else 'holds'}"


def _place(group: GroupDiff, room: int, page: Page, *, is_alone: bool) -> str:
    if group.held is Held.EVENTS_LACKING:
        return theme.fitting(room, "(blocks whose events the recording lacks)", "(events not recorded)")
    if group.site is None:
        return theme.fitting(room, *no_stack_texts(is_alone=is_alone))
    return theme.site_text(group.site.file, group.site.line, group.site.function, room, page.glyphs.ellipsis)


def _amounts(group: GroupDiff, page: Page) -> str:
    """Bytes and blocks before and after, and where the site was if its line is another now."""
    if group.change is Change.NEW:
        return _held(group.after_bytes, group.after_count)
    if group.change is Change.GONE:
        return f"{_held(group.before_bytes, group.before_count)} before"
    amounts = amounts_text(group.before_bytes, group.after_bytes, page.glyphs.arrow)
    if group.held is Held.EVENTS_LACKING:
        return amounts
    return f"{amounts}, {counts_text(group, page.glyphs.arrow)}{_moved_from(group)}"


def _held(byte_count: int, block_count: int) -> str:
    return f"{format_bytes(byte_count)} in {counted(block_count, 'block')}" if block_count else format_bytes(byte_count)


def _moved_from(group: GroupDiff) -> str:
    was, now = group.before_site, group.after_site
    if was is None or now is None or place_text(was) == place_text(now):
        return ""
    if file_name(was) == file_name(now):
        return f"; at line {was.line} before"
    return f"; at {file_name(was)}:{was.line} before"


def _setting_lines(settings: Sequence[SettingDiff], page: Page) -> Iterator[Text | str]:
    if not settings:
        return
    yield ""
    yield Text("settings that differ", style=theme.QUIET)
    width = page.width - _SETTING_WIDTH
    for setting in settings:
        was, now = _value(setting.before), _value(setting.after)
        name = theme.shorten(printable(setting.name), _SETTING_WIDTH - 2, page.glyphs.ellipsis)
        together = f"{was} {page.glyphs.arrow} {now}"
        parts = [together] if len(together) <= width else [was, f"{page.glyphs.arrow} {now}"]
        lines = [line for part in parts for line in theme.wrap(part, page, room=width)]
        for number, line in enumerate(lines):
            label = fit_left("" if number else name, _SETTING_WIDTH)
            yield Text(label + theme.shorten(line, width, page.glyphs.ellipsis))


def _value(value: str | int | None) -> str:
    if value is None:
        return "(none)"
    return format_bytes(value) if isinstance(value, int) else printable(value)


def _exceeding_text(growth: Growth, limit: str, diff: TraceDiff, whose: str) -> str:
    where = f" on device {growth.device}" if len(diff.devices) > 1 else ""
    name = figure_name(growth.figure, growth.basis)
    return f"Failed: {whose}{name}{where} grew by {format_bytes(growth.delta_bytes or 0)}, more than {limit}."
