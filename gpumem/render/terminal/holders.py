"""Who held the peak: a table of sites, stacks, streams or whatever the blocks were grouped by.

Owns: its layout. Must not know: how groups are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.cells import cell_len
from rich.text import Text

from gpumem.analyses.holdings import GroupBy, Holding
from gpumem.analyses.summary import PeakHolders
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_count, format_share

_BYTES_WIDTH = 11
_SHARE_WIDTH = 8
_COUNT_WIDTH = 9
_FIGURES_WIDTH = _BYTES_WIDTH + _SHARE_WIDTH + 1 + _COUNT_WIDTH + 2
_DEFAULT_STREAM = "0x0"
_WITHOUT_KEY = {
    GroupBy.STREAM: "(stream not known)",
    GroupBy.THREAD: "(thread not known)",
    GroupBy.POOL: "(default pools)",
    GroupBy.SCOPE: "(outside any scope)",
}
_OF_ALLOCS = (GroupBy.THREAD, GroupBy.SCOPE)
"""What is known of a block only where its alloc was recorded."""


def holder_lines(peak: PeakHolders, page: Page, top: int) -> Iterator[Text]:
    """A line for each of the `top` groups that hold the peak, then the rest and what belongs to none."""
    by = peak.by or GroupBy.SITE
    holdings = list(peak.by_site if peak.by is None else peak.by_key)
    one = by.value
    room = page.width - _FIGURES_WIDTH
    of_peak = f"{one} holding the peak of {format_bytes(peak.held_bytes)}"
    header = (
        fit_right("bytes", _BYTES_WIDTH)
        + fit_right("of peak", _SHARE_WIDTH + 1)
        + fit_right("blocks", _COUNT_WIDTH)
        + f"  {theme.fitting(room, of_peak, f'{one} holding the peak', one)}"
    )
    yield Text(header, style=theme.QUIET)
    with_key = [holding for holding in holdings if holding.key is not None]
    for holding in with_key[:top]:
        row = _figures(holding.held_bytes, peak.held_bytes, holding.block_count)
        yield from theme.named(row, partial(_key_text, holding, by), theme.PLACE_WIDTH_LEAST, page)
        if by is GroupBy.STACK:
            yield from theme.stack_lines(holding.stack, " " * (_BYTES_WIDTH + 2), page)
    rest = with_key[top:]
    if rest:
        more, flag = counted(len(rest), f"more {one}"), f"--top {len(with_key)}"
        row = _figures(
            sum(holding.held_bytes for holding in rest), peak.held_bytes, sum(holding.block_count for holding in rest)
        )
        yield from _said(row, (f"({more}; {flag} shows all)", f"({more}; {flag})"), page)
    for holding in holdings:
        if holding.key is None:
            row = _figures(holding.held_bytes, peak.held_bytes, holding.block_count)
            yield from _said(row, _keyless_texts(holding, by, is_alone=not with_key), page)


def _keyless_texts(holding: Holding, by: GroupBy, *, is_alone: bool) -> tuple[str, ...]:
    """Whose the blocks are that belong to no group, longest first: with all the reasons there may be; where none
    belongs to any, stacks were most likely not recorded.
    """
    if not holding.block_count:
        return "(blocks whose events the recording lacks)", "(events not recorded)"
    is_found = holding.found_count == holding.block_count
    if by in _WITHOUT_KEY:
        return ("(from before the recording)" if is_found and by in _OF_ALLOCS else _WITHOUT_KEY[by],)
    if is_found:
        return "(no Python stack: from before the recording)", "(from before the recording)", "(no Python stack)"
    if holding.found_count:
        return "(no Python stack: before the recording, or C++)", "(no Python stack)"
    return no_stack_texts(is_alone=is_alone)


def no_stack_texts(*, is_alone: bool) -> tuple[str, ...]:
    """What blocks without a Python stack are called, longest first; `is_alone`: there are no others."""
    reason = "not recorded, or C++ alone" if is_alone else "autograd's threads, C++ code"
    return f"(no Python stack: {reason})", "(no Python stack)"


def _said(row: Text, texts: tuple[str, ...], page: Page) -> Iterator[Text]:
    """The row with the longest of texts that say the same for which there is room."""
    return theme.named(row, lambda room, _: theme.fitting(room, *texts), theme.PLACE_WIDTH_LEAST, page)


def _figures(held_bytes: int, peak_bytes: int, block_count: int) -> Text:
    row = Text().append(fit_right(format_bytes(held_bytes), _BYTES_WIDTH), style=theme.FIGURE)
    row.append(fit_right(format_share(held_bytes, peak_bytes), _SHARE_WIDTH + 1))
    return row.append(fit_right(format_count(block_count), _COUNT_WIDTH))


def _key_text(holding: Holding, by: GroupBy, width: int, ellipsis: str) -> str:
    site = holding.site
    if by in (GroupBy.SITE, GroupBy.STACK) and site is not None:
        return theme.site_text(site.file, site.line, site.function, width, ellipsis)
    if by is GroupBy.FUNCTION and site is not None:
        function = theme.shorten(printable(site.function), width // 2, ellipsis)
        file = theme.shorten_path(printable(site.file), width - cell_len(function) - 5, ellipsis)
        return f"{function} in {file}"
    if by is GroupBy.STREAM and holding.key == _DEFAULT_STREAM:
        return f"{_DEFAULT_STREAM} (the default stream)"
    return theme.shorten_path(printable(holding.key or ""), width, ellipsis)
