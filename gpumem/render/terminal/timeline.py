"""The curves drawn with characters, with a time axis, marks and a legend.

Owns: the layout of `gpumem timeline`. Must not know: how points are found.
Allocated (where blocks are not known: requested) and reserved bytes differ by shade, not by colour alone: a column is
solid up to the least allocated in its time, medium up to the most allocated, light up to the most reserved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from gpumem.analyses.timeline import DeviceTimeline, Point, Timeline
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_right
from gpumem.render.text import printable
from gpumem.trace.model import Mark
from gpumem.units import format_bytes, format_count, format_duration, format_share, format_ticks
from gpumem.vocabulary import MarkKind

HEIGHT = 12
LABEL_WIDTH = 11
CAPACITY_NEAR = 1.25
MARKS_NAMED = 12
TICK_CELLS = 14
MARK_CELLS = 40
_MARK_TIME_CELLS = 15
"""Of a mark's key and time beside its name."""
_NOTHING = "Nothing was allocated in this part of the trace."
_NOT_RECORDED = "No allocator was recorded, so there are no curves; gpumem summary says what is known."
_MARK_KEYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def plot_width(page: Page) -> int:
    """Columns of the plot on this page."""
    return page.width - LABEL_WIDTH - 2


def render_timeline(timeline: Timeline, page: Page) -> Text:
    """Each device's curves, one below the other."""
    lines: list[Text | str] = []
    if not timeline.devices:
        lines.extend(map(Text, theme.wrap(_NOTHING if timeline.is_recorded else _NOT_RECORDED, page)))
    for device in timeline.devices:
        if lines:
            lines.append("")
        lines.extend(_device_lines(timeline, device, page))
    if timeline.left_out_ns:
        left_out = f"The quiet first {format_duration(timeline.left_out_ns)} are left out; --from start draws them too."
        lines += ["", *(Text(line, style=theme.QUIET) for line in theme.wrap(left_out, page))]
    return theme.join_lines(lines)


@dataclass(frozen=True, slots=True)
class _Column:
    """What a column of the plot spans: allocated or requested bytes least and most, reserved most."""

    held_min: int
    held_max: int
    reserved_max: int


def _device_lines(timeline: Timeline, device: DeviceTimeline, page: Page) -> Iterator[Text | str]:
    columns = _columns(timeline, device, plot_width(page))
    held = max(column.held_max for column in columns)
    reserved = max(column.reserved_max for column in columns)
    for line in theme.wrap(_verdict(device, held, reserved), page):
        yield Text(line, style=theme.TITLE)
    yield ""
    capacity = device.facts.capacity_bytes
    near = capacity if capacity and capacity <= CAPACITY_NEAR * max(reserved, held) else None
    yield from _plot(columns, max(reserved, held, near or 0, 1), near, page)
    yield from _time_axis(timeline, page)
    yield from _mark_rows(timeline, device, page)
    yield ""
    for line in theme.wrap_items(_legend(page, _held_word(device), near), page):
        yield Text(line, style=theme.QUIET)
    yield from _mark_legend(timeline, device, page)


def _verdict(device: DeviceTimeline, held: int, reserved: int) -> str:
    number = device.facts.device
    card = printable(device.facts.name or "")
    name = f"{card[:1].upper()}{card[1:]} (device {number})" if card else f"Device {number}"
    capacity = device.facts.capacity_bytes
    share = f", {format_share(reserved, capacity)} of its {format_bytes(capacity)}" if capacity else ""
    word = _held_word(device)
    return f"{name}: {format_bytes(held)} {word} and {format_bytes(reserved)} reserved at most{share}."


def _columns(timeline: Timeline, device: DeviceTimeline, count: int) -> list[_Column]:
    """The points gathered into columns; a column begins at the levels that the one before ended with."""
    points = device.points
    times = [point.time_ns for point in points]
    columns: list[_Column] = []
    at = 0
    for number in range(count):
        until = _time_at(timeline, number + 1, count)
        end = len(points) if number == count - 1 else max(at, bisect_left(times, until))
        here = points[max(0, at - 1) : max(end, 1)]
        columns.append(
            _Column(
                min(_held(point) for point in here),
                max(_held(point) for point in here),
                max(point.reserved_bytes for point in here),
            )
        )
        at = end
    return columns


def _held(point: Point) -> int:
    return point.requested_bytes if point.allocated_bytes is None else point.allocated_bytes


def _held_word(device: DeviceTimeline) -> str:
    """What the lower curve adds up."""
    return "requested" if any(point.allocated_bytes is None for point in device.points) else "allocated"


def _time_at(timeline: Timeline, column: int, count: int) -> int:
    return timeline.start.time_ns + (timeline.end.time_ns - timeline.start.time_ns) * column // count


def _column_of(timeline: Timeline, time_ns: int, count: int) -> int:
    span = max(1, timeline.end.time_ns - timeline.start.time_ns)
    return min(count - 1, max(0, (time_ns - timeline.start.time_ns) * count // span))


def _plot(columns: Sequence[_Column], top_bytes: int, capacity: int | None, page: Page) -> Iterator[Text]:
    glyphs = page.glyphs
    for row in range(HEIGHT - 1, -1, -1):
        labelled = row in (HEIGHT - 1, HEIGHT // 2 - 1)
        label = format_bytes(top_bytes * (row + 1) // HEIGHT) if labelled else ""
        line = Text(fit_right(label, LABEL_WIDTH) + " ").append(glyphs.tick_left if labelled else glyphs.vertical)
        for column in columns:
            character, style = _cell(column, row, top_bytes, page)
            if character == " " and capacity is not None and row == min(HEIGHT - 1, capacity * HEIGHT // top_bytes):
                character, style = glyphs.dashed, theme.WARNING
            line.append(character, style=style)
        line.rstrip()
        yield line


def _cell(column: _Column, row: int, top_bytes: int, page: Page) -> tuple[str, str]:
    """The character of one cell: the band that reaches its middle, or the requested bytes' top where none does."""
    glyphs = page.glyphs

    def filled(level: int) -> float:
        return level * HEIGHT / top_bytes - row

    if filled(column.held_min) >= 0.5:
        return glyphs.full, theme.REQUESTED
    if filled(column.held_max) >= 0.5:
        return glyphs.medium, theme.REQUESTED
    if filled(column.reserved_max) >= 0.5 or (row == 0 and column.reserved_max > column.held_max):
        return glyphs.light, theme.RESERVED
    eighths = int(max(0.0, min(1.0, filled(column.held_max))) * 8)
    if row == 0 and column.held_max:
        eighths = max(1, eighths)
    return glyphs.eighths[eighths], theme.REQUESTED


def _time_axis(timeline: Timeline, page: Page) -> Iterator[Text]:
    count = plot_width(page)
    axis = [page.glyphs.horizontal] * count
    labels = [" "] * (count + 8)
    step = _tick_step(timeline.end.time_ns - timeline.start.time_ns, count)
    first = -(-timeline.start.time_ns // step) * step
    times = range(first, timeline.end.time_ns + 1, step)
    for time_ns, text in zip(times, format_ticks(times), strict=True):
        at = _column_of(timeline, time_ns, count)
        if at + len(text) <= count and all(cell == " " for cell in labels[max(0, at - 1) : at + len(text) + 1]):
            axis[at] = page.glyphs.tick
            labels[at : at + len(text)] = list(text)
    yield Text(fit_right("0 B", LABEL_WIDTH) + " " + page.glyphs.corner + "".join(axis))
    yield Text(" " * (LABEL_WIDTH + 2) + "".join(labels).rstrip())


def _tick_step(span_ns: int, count: int) -> int:
    """A step of 1, 2 or 5 times a power of ten that leaves room for the labels."""
    least = max(1, span_ns * TICK_CELLS // max(1, count))
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= least:
                return step * factor
        step *= 10


def _mark_text(mark: Mark, moment: str) -> str:
    """The mark's name, with its number where the name repeats; by its event where that alone leads to it."""
    name = moment.removeprefix("mark:")
    return printable(name if name != moment else f"{mark.name} = {moment}")


def _marks_and_steps(timeline: Timeline) -> tuple[list[Mark], list[Mark]]:
    marks = [mark for mark in timeline.marks if mark.kind is MarkKind.MARK]
    steps = [mark for mark in timeline.marks if mark.kind is MarkKind.STEP]
    return marks, steps


def _mark_rows(timeline: Timeline, device: DeviceTimeline, page: Page) -> Iterator[Text]:
    """A row each for step ends, marks and out-of-memory events, where there are any."""
    count = plot_width(page)
    marks, steps = _marks_and_steps(timeline)
    named = zip(marks, _MARK_KEYS[:MARKS_NAMED], strict=False)
    rows: list[tuple[str, list[tuple[int, str]], str]] = [
        ("steps end", [(mark.time_ns, page.glyphs.vertical) for mark in steps], theme.QUIET),
        ("marks", [(mark.time_ns, key) for mark, key in named], theme.FIGURE),
        ("oom", [(oom.time_ns, "!") for oom in device.ooms], theme.ERROR),
    ]
    for label, places, style in rows:
        if places:
            cells = [" "] * count
            for time_ns, character in places:
                at = _column_of(timeline, time_ns, count)
                cells[at] = character if cells[at] == " " else cells[at]
            yield Text(fit_right(label, LABEL_WIDTH) + "  ").append("".join(cells).rstrip(), style=style)


def _legend(page: Page, word: str, capacity: int | None) -> list[str]:
    glyphs = page.glyphs
    parts = [f"{glyphs.full} {word}", f"{glyphs.medium} {word} for part of the time", f"{glyphs.light} reserved"]
    if capacity is not None:
        parts.append(f"{glyphs.dashed} the card's {format_bytes(capacity)}")
    return parts


def _mark_legend(timeline: Timeline, device: DeviceTimeline, page: Page) -> Iterator[Text]:
    marks, steps = _marks_and_steps(timeline)
    if steps:
        yield Text(f"{page.glyphs.vertical} {_steps_text(steps)}", style=theme.QUIET)
    moments = zip(timeline.marks, timeline.mark_moments, strict=True)
    texts = [(mark, _mark_text(mark, moment)) for mark, moment in moments if mark.kind is MarkKind.MARK]
    room = min(MARK_CELLS, page.width - _MARK_TIME_CELLS)
    named = [
        f"{key} {theme.shorten(text, room, page.glyphs.ellipsis)} ({format_duration(mark.time_ns)})"
        for (mark, text), key in zip(texts, _MARK_KEYS[:MARKS_NAMED], strict=False)
    ]
    yield from (Text(line) for line in theme.wrap_items(named, page))
    if len(marks) > MARKS_NAMED:
        more = f"and {format_count(len(marks) - MARKS_NAMED)} more marks; narrow with --from and --to"
        yield from map(Text, theme.wrap_behind(theme.INDENT, more, page))
    for oom in device.ooms[:MARKS_NAMED]:
        text = f"! out of memory  {format_duration(oom.time_ns)}, event {format_count(oom.event)}"
        for line in theme.wrap(text, page, indent=theme.INDENT):
            yield Text(line, style=theme.ERROR)


def _steps_text(steps: Sequence[Mark]) -> str:
    first, last = steps[0].step, steps[-1].step
    return f"step {first} ends" if first == last else f"steps {first} to {last} end"
