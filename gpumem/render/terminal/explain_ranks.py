"""The ledgers of several processes as one screen: a line for each, then the ledger of the one that holds the most.

Owns: the lines of the processes. Must not know: how a ledger is found, what one looks like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.text import Text

from gpumem.analyses.explain import Explanation, Ledger
from gpumem.render.terminal import theme
from gpumem.render.terminal.explain import render_explanation
from gpumem.render.terminal.theme import Page, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes

_DEVICE_WIDTH = 8
_BYTES_WIDTH = 12
_WIDTH_WITH_OUTSIDE = 60


def render_explanations(found: Sequence[Explanation], page: Page) -> Text:
    """The ledgers of one trace; of several a line for each device of each, and those of the one that holds the most."""
    if len(found) == 1:
        return render_explanation(found[0], page)
    greatest = max(found, key=lambda one: one.held_bytes)
    lines: list[Text | str] = [Text(line, style=theme.TITLE) for line in theme.wrap(_title(found, greatest), page)]
    lines += ["", *_rows(found, page), ""]
    whole = render_explanation(greatest, page)
    lines += whole.split("\n")[: -1 if whole.plain.endswith("\n") else None]
    return theme.join_lines(lines)


def _title(found: Sequence[Explanation], greatest: Explanation) -> str:
    if len({one.held_bytes for one in found}) == 1 and all(one.rank is not None for one in found):
        return f"{counted(len(found), 'rank')} hold the same; the first of them is shown, --rank N shows another."
    hold = _hold(found, greatest)
    if any(one.rank is None for one in found):
        name = printable(greatest.path.rsplit("/", 1)[-1])
        return f"Of {counted(len(found), 'trace')}, {name}{hold} the most; name another to see its ledger."
    return f"Of {counted(len(found), 'rank')}, rank {greatest.rank}{hold} the most; --rank N shows another."


def _hold(found: Sequence[Explanation], greatest: Explanation) -> str:
    """` holds`, or ` and 2 more hold` where others hold as much."""
    others = sum(one.held_bytes == greatest.held_bytes for one in found) - 1
    return f" and {others} more hold" if others else " holds"


def _rows(found: Sequence[Explanation], page: Page) -> Iterator[Text]:
    has_ranks = any(one.rank is not None for one in found)
    head = theme.rank_cell("rank", is_shown=has_ranks) + fit_right("device", _DEVICE_WIDTH)
    head += _cells(("process", "outside", "reserved"), page)
    yield Text(head + theme.fitting(page.width - len(head), "  trace", ""), style=theme.QUIET)
    for one in found:
        rank = theme.rank_cell(one.rank, is_shown=has_ranks)
        if not one.ledgers:
            yield from _row(one, rank, "-", ("-", "-", "-"), page)
        for ledger in one.ledgers:
            yield from _row(one, rank, str(ledger.facts.device), _figures(ledger), page)


def _cells(figures: tuple[str, str, str], page: Page) -> str:
    """The columns of figures; a narrow page leaves out what lies outside, which follows from the other two."""
    shown = figures if page.width >= _WIDTH_WITH_OUTSIDE else (figures[0], figures[2])
    return "".join(fit_right(figure, _BYTES_WIDTH) for figure in shown)


def _figures(ledger: Ledger) -> tuple[str, str, str]:
    process, outside, reserved = (
        "-" if figure is None else format_bytes(figure)
        for figure in (ledger.process_bytes, ledger.outside_bytes, ledger.reserved_bytes)
    )
    return process, outside, reserved


def _row(one: Explanation, rank: str, device: str, figures: tuple[str, str, str], page: Page) -> Iterator[Text]:
    row = Text(rank + fit_right(device, _DEVICE_WIDTH) + _cells(figures, page))
    return theme.named(row, partial(theme.trace_name, one.path), theme.NAME_WIDTH_LEAST, page)
