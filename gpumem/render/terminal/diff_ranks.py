"""Two runs of several processes as one screen: a line for each rank, then the one that changed the most, whole.

Owns: the lines of the ranks. Must not know: how changes are found, what a comparison of two traces looks like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.text import Text

from gpumem.analyses.diff_findings import DeviceDiff
from gpumem.analyses.diff_headline import figure_of, find_changed_bytes, find_differing_figure, is_unrecorded
from gpumem.analyses.diff_ranks import LoneTrace, RankDiff, RankDiffs
from gpumem.render.diff_words import figure_name, short_place
from gpumem.render.terminal import theme
from gpumem.render.terminal.diff import DEFAULT_TOP, growth_lines, render_diff
from gpumem.render.terminal.theme import Page, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_bytes_delta
from gpumem.vocabulary import Basis

_DEVICE_WIDTH = 8
_BYTES_WIDTH = 13
_WIDTH_WITH_BEFORE = 64


def render_rank_diffs(found: RankDiffs, page: Page, *, top: int = DEFAULT_TOP, by_stack: bool = False) -> Text:
    """The ranks, the one that changed the most as render_diff shows it, and the checks of a limit on growth."""
    lines: list[Text | str] = [Text(line, style=theme.TITLE) for line in theme.wrap(_title(found), page)]
    lines += ["", *_rank_table(found.ranks, page), *_lone_lines(found, page), ""]
    whole = render_diff(found.greatest.diff, page, top=top, by_stack=by_stack)
    lines += whole.split("\n")[: -1 if whole.plain.endswith("\n") else None]
    lines += _growth_lines(found.ranks, page)
    return theme.join_lines(lines)


def _title(found: RankDiffs) -> str:
    noun = counted(len(found.ranks), "rank" if all(one.rank is not None for one in found.ranks) else "pair")
    if len(found.ranks) == 1:
        return f"Both have {noun} in common."
    another = "--rank N shows another" if noun.endswith("ranks") else "name two traces to see another pair"
    changed = {find_changed_bytes(one.diff) for one in found.ranks}
    if changed == {0}:
        return f"Nothing changed in any of {noun}; the first of them is shown."
    if len(changed) == 1:
        return f"{noun} changed by the same bytes; the first of them is shown, {another}."
    return f"Of {noun}, {_name(found.greatest)} changed the most; {another}."


def _name(one: RankDiff) -> str:
    return printable(one.diff.after.path.rsplit("/", 1)[-1]) if one.rank is None else f"rank {one.rank}"


def _rank_table(ranks: Sequence[RankDiff], page: Page) -> Iterator[Text]:
    bases = {device.basis for one in ranks for device in one.diff.devices}
    held = "held" if len(bases) > 1 else "allocated" if bases == {Basis.ALLOCATED} else "requested"
    has_ranks = any(one.rank is not None for one in ranks)
    head = theme.rank_cell("rank", is_shown=has_ranks) + fit_right("device", _DEVICE_WIDTH)
    head += "".join(fit_right(name, _BYTES_WIDTH) for name in ("before", "after", "change")[_first_figure(page) :])
    most = theme.fitting(page.width - len(head) - 2, *_most_heads(ranks, held), "")
    yield Text(f"{head}  {most}".rstrip(), style=theme.QUIET)
    for one in ranks:
        rank = theme.rank_cell(one.rank, is_shown=has_ranks)
        for device in one.diff.devices:
            yield from _row(one, rank, device, page)
        if not one.diff.devices:
            yield from _line(one, rank, "-", ("-", "-", "-"), "no device was used", page)


def _first_figure(page: Page) -> int:
    """The first of the figures that are shown: a narrow page leaves out the one before, which follows from the rest."""
    return 0 if page.width >= _WIDTH_WITH_BEFORE else 1


def _most_heads(ranks: Sequence[RankDiff], held: str) -> tuple[str, str]:
    """What the last column holds and the figures are, longest first."""
    what = "trace" if any(one.rank is None for one in ranks) else "most of it"
    return f"{what} ({held} bytes)" if what == "trace" else f"{what} ({held})", what


def _row(one: RankDiff, rank: str, device: DeviceDiff, page: Page) -> Iterator[Text]:
    if is_unrecorded(one.diff):
        return _line(one, rank, str(device.device), ("-", "-", "-"), "not recorded on one side", page)
    held = device.held_bytes
    figures = (format_bytes(held.before or 0), format_bytes(held.after or 0), format_bytes_delta(held.delta or 0))
    return _line(one, rank, str(device.device), figures, _most(device), page)


def _line(
    one: RankDiff, rank: str, device: str, figures: tuple[str, str, str], most: str, page: Page
) -> Iterator[Text]:
    *others, change = (fit_right(figure, _BYTES_WIDTH) for figure in figures[_first_figure(page) :])
    row = Text(rank + fit_right(device, _DEVICE_WIDTH) + "".join(others))
    row.append(change, style=theme.FIGURE)
    name = partial(theme.shorten, most)
    if one.rank is None:
        name = partial(theme.trace_name, one.diff.after.path.rsplit("/", 1)[-1])
    return theme.named(row, name, theme.NAME_WIDTH_LEAST, page)


def _most(device: DeviceDiff) -> str:
    """The site with the greatest change, or the figure that differs although no site does."""
    if device.changed_sites:
        return short_place(device.changed_sites[0])
    figure = find_differing_figure(device)
    if figure is None:
        return "nothing changed"
    return f"{figure_name(figure, device.basis)} {format_bytes_delta(figure_of(device, figure).delta or 0)}"


def _lone_lines(found: RankDiffs, page: Page) -> Iterator[Text]:
    for side, traces in (("before", found.before_only), ("after", found.after_only)):
        for trace in traces:
            yield Text(_lone_text(side, trace, page), style=theme.WARNING)


def _lone_text(side: str, trace: LoneTrace, page: Page) -> str:
    whose = "" if trace.rank is None else f" (rank {trace.rank})"
    head = f"only {side}{whose}: "
    return head + theme.shorten_path(printable(trace.path), page.width - len(head), page.glyphs.ellipsis)


def _growth_lines(ranks: Sequence[RankDiff], page: Page) -> Iterator[Text | str]:
    """What grew too much, by rank; else what all ranks passed."""
    checked = [one for one in ranks if one.growth is not None]
    exceeding = [one for one in checked if one.growth is not None and one.growth.exceeding]
    if not checked:
        return
    yield ""
    for one in exceeding or checked[:1]:
        assert one.growth is not None, "only checked ones are left"
        every = "every pair: " if one.rank is None else "every rank: "
        whose = f"{_name(one)}: " if exceeding else every
        yield from growth_lines(one.growth, one.diff, page, whose=whose)
