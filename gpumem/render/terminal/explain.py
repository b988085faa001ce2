"""A ledger as a waterfall: the card, then the process's bytes part by part, each beginning where the last one ended.

Owns: the layout of `gpumem explain TRACE`. Must not know: how a ledger is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gpumem.analyses.explain import Explanation, Ledger
from gpumem.analyses.explain_heap import PinnedSegment
from gpumem.analyses.ledger_parts import Component, ComponentName, Evidence
from gpumem.render.explain_text import component_label, finding_text, pinned_text
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import device_phrase, instant_text, printable
from gpumem.trace.moments import End, Peak, PeakOf
from gpumem.units import counted, format_bytes, format_count, format_duration, format_share
from gpumem.vocabulary import TraceSource

_LABEL_WIDTH = 30
_LABEL_WIDTH_LEAST = 22
_BYTES_WIDTH = 11
_SHARE_WIDTH = 9
_EVIDENCE_WIDTH = 10
_FIGURES_WIDTH = _BYTES_WIDTH + _SHARE_WIDTH + 2 + _EVIDENCE_WIDTH
_BAR_WIDTH_LEAST = 8
_CHANGES_SHOWN = 6
_PINNED_SHOWN = 3
_REST = "rest"
_INDENT = "  "


def render_explanation(explanation: Explanation, page: Page) -> Text:
    """Each device's ledger, one below the other."""
    lines: list[Text | str] = []
    for ledger in explanation.ledgers:
        if lines:
            lines.append("")
        lines.extend(_ledger_lines(explanation, ledger, page))
    if not explanation.ledgers:
        was_used = "No device was used"
        if explanation.source is TraceSource.NONE:
            was_used = "Neither an allocator nor a reading of a device was recorded"
        lines.extend(map(Text, theme.wrap(f"{was_used}: there is nothing to explain.", page)))
    return theme.join_lines(lines)


def _ledger_lines(explanation: Explanation, ledger: Ledger, page: Page) -> Iterator[Text | str]:
    for line in theme.wrap(_verdict(explanation, ledger), page):
        yield Text(line, style=theme.TITLE)
    for line in theme.wrap(_circumstances(explanation, ledger, page), page):
        yield Text(line, style=theme.QUIET)
    if ledger.card:
        yield ""
        yield from _card_lines(ledger, page)
    if ledger.components:
        yield ""
        yield from _process_lines(ledger, page)
    if ledger.findings:
        yield ""
    for finding in ledger.findings:
        for line in theme.wrap(f"{page.glyphs.dot} {finding_text(finding)}", page, indent="  "):
            yield Text(line)
        for pinned in finding.pinned[:_PINNED_SHOWN]:
            yield from _pinned_lines(pinned, page)
        more = (finding.count or 0) - _PINNED_SHOWN
        if finding.pinned and more > 0:
            rest = finding.held_bytes or 0
            rest -= sum(pinned.gap_bytes for pinned in finding.pinned[:_PINNED_SHOWN])
            said = f"({counted(more, 'more segment')}, {format_bytes(rest)} of gaps)"
            yield from (Text(line, style=theme.QUIET) for line in theme.wrap_behind(" " * 4, said, page))


def _pinned_lines(pinned: PinnedSegment, page: Page) -> Iterator[Text]:
    """A segment, indented, and under it the site of the largest block in it."""
    for number, line in enumerate(theme.wrap(pinned_text(pinned), page, room=page.width - 6)):
        yield Text(f"    {line}" if number == 0 else f"      {line}", style=theme.QUIET)
    site = pinned.largest_site
    text = "(no Python stack)"
    if site is not None:
        text = theme.site_text(site.file, site.line, site.function, page.width - 6, page.glyphs.ellipsis)
    yield Text(f"      {text}", style=theme.QUIET)


def _verdict(explanation: Explanation, ledger: Ledger) -> str:
    when = _moment_text(explanation)
    card = device_phrase(ledger.facts.name, ledger.facts.device)
    if ledger.reserved_bytes is None:
        if ledger.process_bytes is None:
            return f"{when}, what this process holds of {card} is not known."
        return f"{when}, this process holds {format_bytes(ledger.process_bytes)} of {card}, not told apart."
    idle = ledger.heap.idle_bytes
    parts = [f"{format_bytes(ledger.heap.live_bytes)} requested"]
    if idle is not None:
        parts.append(f"{format_bytes(idle)} idle")
    reserved = format_bytes(ledger.reserved_bytes)
    if ledger.process_bytes is None:
        return f"{when}, the allocator holds {reserved} of {card}: {', '.join(parts)}."
    held = f"{reserved} in the allocator ({', '.join(parts)})"
    if ledger.outside_bytes is not None:
        held += f" and {format_bytes(ledger.outside_bytes)} outside it (CUDA context included)"
    return f"{when}, this process holds {format_bytes(ledger.process_bytes)} of {card}: {held}."


def _moment_text(explanation: Explanation) -> str:
    instant = explanation.instant
    if instant.event < 0:
        return f"At {instant_text(instant.time_ns, instant.event)}"
    name = "At "
    if isinstance(explanation.moment, Peak):
        of = "" if explanation.moment.of is PeakOf.ALLOCATED else f" of {explanation.moment.of.value}"
        together = " of all devices together" if len(explanation.ledgers) > 1 else ""
        name = f"At the peak{of}{together}, "
    if explanation.is_default_moment and isinstance(explanation.moment, End):
        name = "Now, at " if explanation.is_running else "At the end, "
    return f"{name}{instant_text(instant.time_ns, instant.event)}"


def _circumstances(explanation: Explanation, ledger: Ledger, page: Page) -> str:
    """Which device, how far the reading is from the moment, and that there are other moments."""
    path = theme.shorten_path(printable(explanation.path), page.width // 2, page.glyphs.ellipsis)
    sentences = [f"{path}, device {ledger.facts.device}."]
    reading = ledger.reading
    if reading is not None:
        apart = reading.time_ns - ledger.instant.time_ns
        when = "then" if not apart else f"{format_duration(abs(apart))} {'later' if apart > 0 else 'earlier'}"
        same = reading.event == ledger.instant.event
        event = "the same event" if same else f"event {format_count(reading.event)}"
        sentences.append(f"NVML read {when}, after {event}." if reading.event >= 0 else f"NVML read {when}.")
    if explanation.is_default_moment:
        sentences.append("Another moment: --at MOMENT.")
    return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a waterfall: where its bar begins, in bytes from the left."""

    label: str
    depth: int
    held_bytes: int
    evidence: Evidence
    begin_bytes: int
    is_parent: bool = False


def _card_lines(ledger: Ledger, page: Page) -> Iterator[Text]:
    whole = ledger.card_bytes
    yield from _header("the card", whole, "of card", page)
    for row in _rows(ledger.card, 0, page):
        yield from _row_lines(row, whole, page)


def _process_lines(ledger: Ledger, page: Page) -> Iterator[Text]:
    whole = (ledger.reserved_bytes if ledger.process_bytes is None else ledger.process_bytes) or 0
    name = "the allocator" if ledger.process_bytes is None else "this process"
    yield from _header(name, whole, "of it", page)
    rows = list(_rows(ledger.components, 0, page))
    if ledger.unexplained_bytes is not None:
        end = sum(one.held_bytes for one in ledger.components)
        rows.append(_Row(_REST, 0, ledger.unexplained_bytes, Evidence.DIFFERENCE, end))
    for row in rows:
        yield from _row_lines(row, whole, page)
    sums = ledger.sums
    said = (
        f"{format_bytes(sums.measured_bytes)} measured + {format_bytes(sums.derived_bytes)} derived + "
        f"{format_bytes(sums.difference_bytes)} by difference = {format_bytes(sums.sum_bytes)}"
    )
    yield from (Text(line, style=theme.QUIET) for line in theme.wrap(said, page, indent=_INDENT))


def _label_width(page: Page) -> int:
    """A narrow page takes from the labels what the figures and their evidence need; a narrower one gives each a line
    of its own.
    """
    width = page.width - _FIGURES_WIDTH
    return page.width if width < _LABEL_WIDTH_LEAST else min(_LABEL_WIDTH, width)


def _header(name: str, whole: int, share: str, page: Page) -> Iterator[Text]:
    figures = Text(fit_right(format_bytes(whole), _BYTES_WIDTH), style=theme.FIGURE)
    figures.append(fit_right(share, _SHARE_WIDTH), style="not bold")
    for line in theme.labelled(name, _label_width(page), figures, page):
        line.stylize_before(theme.QUIET)
        yield line


def _rows(components: Sequence[Component], begin_bytes: int, page: Page, depth: int = 0) -> Iterator[_Row]:
    """A row for each component and its parts; of many changes outside the allocator the largest."""
    for one in components:
        yield _Row(
            _label(one, _label_width(page) - 1 - len(_INDENT) * depth),
            depth,
            one.held_bytes,
            one.evidence,
            begin_bytes,
            bool(one.children),
        )
        shown, left_out = one.children, 0
        if one.name is ComponentName.OUTSIDE_ALLOCATOR and len(one.children) > _CHANGES_SHOWN:
            largest = sorted(one.children, key=lambda child: -abs(child.held_bytes))[: _CHANGES_SHOWN - 1]
            shown = [child for child in one.children if child in largest]
            left_out = len(one.children) - len(shown)
        yield from _rows(shown, begin_bytes, page, depth + 1)
        if left_out:
            held = sum(child.held_bytes for child in shown)
            label = f"{counted(left_out, 'more moment')}"
            yield _Row(label, depth + 1, one.held_bytes - held, one.evidence, begin_bytes + held)
        begin_bytes += one.held_bytes


def _label(component: Component, width: int) -> str:
    """The component's label in so many cells, of which some characters take two."""
    label = component_label(component, width)
    for room in range(width - 1, 0, -1):
        if cell_len(label) <= width:
            break
        label = component_label(component, room)
    return label


def _row_lines(row: _Row, whole: int, page: Page) -> Iterator[Text]:
    width = _label_width(page)
    line = Text().append(fit_right(format_bytes(row.held_bytes), _BYTES_WIDTH), "" if row.is_parent else theme.FIGURE)
    line.append(fit_right(_share(row.held_bytes, whole), _SHARE_WIDTH))
    room = page.width - width - line.cell_len - _EVIDENCE_WIDTH - 4
    if room >= _BAR_WIDTH_LEAST:
        line.append("  ")
        line.append(_bar(row, whole, room, page), style=_style(row))
    line.append("  ").append(row.evidence.value, style=theme.QUIET)
    label = theme.shorten(_INDENT * row.depth + row.label, width - 1, page.glyphs.ellipsis)
    return theme.labelled(label, width, line, page)


def _share(held_bytes: int, whole: int) -> str:
    """The share with a blank before it: what came and went again may be many times the whole."""
    share = format_share(held_bytes, whole)
    if len(share) < _SHARE_WIDTH:
        return share
    return f"{100 * held_bytes // max(1, whole)} %"


def _style(row: _Row) -> str:
    if row.is_parent:
        return theme.QUIET
    return theme.WARNING if row.held_bytes < 0 else theme.RESERVED


def _bar(row: _Row, whole: int, width: int, page: Page) -> str:
    """The row's bytes at their place in the whole: blank, bar, blank."""
    scale = width / max(1, whole)
    left, right = sorted((row.begin_bytes * scale, (row.begin_bytes + row.held_bytes) * scale))
    first, end = round(left), round(right)
    glyph = page.glyphs.light if row.is_parent else page.glyphs.medium if row.held_bytes < 0 else page.glyphs.full
    if row.held_bytes and end == first:
        first, end, glyph = min(first, width - 1), first + 1, page.glyphs.sparse
    first, end = min(max(0, first), width), min(width, end)
    return fit_left(" " * first + glyph * (end - first), width)
