"""What changed between the two traces of a page: the sentence on top, the sums, the sites, settings that differ.

Owns: its HTML. Must not know: how changes are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumem.analyses.diff_findings import BeforeAfter, Change, DeviceDiff, GroupDiff, Held, TraceDiff
from gpumem.analyses.diff_settings import SettingDiff
from gpumem.analyses.page import DIFF_GROUPS_LISTED, PageFindings
from gpumem.render.diff_words import counts_text, device_figures, headline_sentence, own_moments_text, side_text
from gpumem.render.html.markup import NOTHING, Html, foreign, sentence, shortened, tag
from gpumem.render.text import place
from gpumem.units import counted, format_bytes, format_bytes_delta, format_share

SENTENCE_CHARACTERS_MAX = 600
GROUPS_SHOWN = 20
GROUPS_FOLDED_LEAST = 5
"""Fewer rows than that are not worth a fold."""


def changes_section(page: PageFindings, diff: TraceDiff) -> Html:
    """The comparison of the first trace with the second, each device at its peak in each."""
    sides = [
        tag("p", sentence(f"{name}: {foreign(side.path)}, {side_text(side)}"), class_="quiet")
        for name, side in (("Before", diff.before), ("After", diff.after))
    ]
    devices = [part for device in diff.devices for part in _device(page, diff, device)]
    headline = tag("p", sentence(shortened(headline_sentence(diff), SENTENCE_CHARACTERS_MAX)), class_="verdict")
    return tag("section", tag("h2", "What changed"), headline, *sides, *devices, *_settings(diff.settings), id="diff")


def _device(page: PageFindings, diff: TraceDiff, device: DeviceDiff) -> Iterator[Html]:
    if len(diff.devices) > 1:
        yield tag("h3", f"Device {device.device}")
    when = own_moments_text(diff, device)
    if when:
        yield tag("p", sentence(f"{when[0].upper()}{when[1:]}."), class_="quiet")
    head = _row("th", "", "Before", "After", "Change", "of before")
    rows = [_figure(name, figure) for name, figure in device_figures(diff, device)]
    if rows:
        yield _table(head, rows, kind="changed")
    changed = device.changed_sites
    same = len(device.by_site) - len(changed)
    unchanged = f"; {counted(same, 'other')} as before" if same else ""
    yield tag("p", f"{counted(len(changed), 'site')} changed{unchanged}.", class_="quiet")
    if changed:
        yield from _groups(page, changed)


def _groups(page: PageFindings, changed: Sequence[GroupDiff]) -> Iterator[Html]:
    """A row a site; those beyond the first are folded behind a line that says how many they are and what they hold."""
    head = _row("th", "Site", "Before", "After", "Change", "Blocks", "")
    widest = max(abs(group.delta_bytes) for group in changed)
    rows = [_group(page, group, widest) for group in changed[:DIFF_GROUPS_LISTED]]
    if len(changed) < GROUPS_SHOWN + GROUPS_FOLDED_LEAST:
        yield _table(head, rows, kind="changed")
        return
    yield _table(head, rows[:GROUPS_SHOWN], kind="changed")
    folded = [_table(head, rows[GROUPS_SHOWN:], kind="changed")]
    rest = changed[DIFF_GROUPS_LISTED:]
    if rest:
        delta = format_bytes_delta(sum(group.delta_bytes for group in rest))
        said = f"And {counted(len(rest), 'more site')} with {delta} together."
        folded.append(tag("p", sentence(said), class_="quiet"))
    yield tag("details", tag("summary", sentence(_folded_text(changed[GROUPS_SHOWN:]))), *folded, class_="more")


def _folded_text(groups: Sequence[GroupDiff]) -> str:
    before = format_bytes(sum(group.before_bytes for group in groups))
    after = format_bytes(sum(group.after_bytes for group in groups))
    delta = format_bytes_delta(sum(group.delta_bytes for group in groups))
    return f"{counted(len(groups), 'more site')}: together {before} before and {after} after ({delta})"


def _figure(name: str, figure: BeforeAfter) -> Html:
    share = ""
    if figure.delta and figure.before:
        share = ("+" if figure.delta > 0 else "") + format_share(figure.delta, figure.before)
    delta = "-" if figure.delta is None else format_bytes_delta(figure.delta)
    return _row("td", name, _bytes(figure.before), _bytes(figure.after), delta, share)


def _group(page: PageFindings, group: GroupDiff, widest: int) -> Html:
    cells = [
        tag("td", *_site(group)),
        tag("td", format_bytes(group.before_bytes), class_="number"),
        tag("td", format_bytes(group.after_bytes), class_="number"),
        tag("td", format_bytes_delta(group.delta_bytes), class_="number"),
        tag("td", counts_text(group), class_="number"),
        tag("td", _bar(group.delta_bytes, widest), class_="span"),
    ]
    if group.held is Held.EVENTS_LACKING:
        return tag("tr", *cells)
    return tag("tr", *cells, data_mark=str(page.sites.number(group.site)))


def _site(group: GroupDiff) -> Iterator[Html]:
    word = "same bytes" if group.change is Change.RECOUNTED else group.change.value
    yield tag("span", word, class_="word")
    site = group.site
    if group.held is Held.EVENTS_LACKING:
        yield tag("span", "blocks whose events the recording lacks")
    elif site is None:
        yield tag("span", "no Python stack")
    else:
        was = group.before_site
        moved = f"; {place(foreign(was.file), was.line)} before" if was is not None and group.has_moved else ""
        yield tag("span", foreign(site.function))
        yield tag("span", f"{place(foreign(site.file), site.line)}{moved}", class_="where")


def _bar(delta: int, widest: int) -> Html:
    """To the right of the middle what is held more, to the left what is held less."""
    if not delta or not widest:
        return NOTHING
    width = max(0.5, 50 * abs(delta) / widest)
    left = 50 if delta > 0 else 50 - width
    return tag(
        "span",
        class_="waterfall more" if delta > 0 else "waterfall less",
        style=f"margin-left:{left:.1f}%;width:{width:.1f}%",
        aria_hidden="true",
    )


def _settings(settings: Sequence[SettingDiff]) -> Iterator[Html]:
    if settings:
        yield tag("h3", "Settings that differ")
        rows = [_texts("td", foreign(one.name), _value(one.before), _value(one.after)) for one in settings]
        yield _table(_texts("th", "Setting", "Before", "After"), rows)


def _value(value: str | int | None) -> str:
    if value is None:
        return "none"
    return format_bytes(value) if isinstance(value, int) else foreign(value)


def _bytes(byte_count: int | None) -> str:
    return "-" if byte_count is None else format_bytes(byte_count)


def _texts(cell: str, *texts: str) -> Html:
    return tag("tr", *(tag(cell, text) for text in texts))


def _row(cell: str, name: str, *values: str) -> Html:
    return tag("tr", tag(cell, name), *(tag(cell, value, class_="number") for value in values))


def _table(head: Html, rows: list[Html], kind: str = "plain") -> Html:
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows), class_=kind), class_="scroll")
