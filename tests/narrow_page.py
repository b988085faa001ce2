"""What a report on a narrow terminal keeps to: no line is wider than the page, and no figure is broken."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.text import Text

from gpumem.render.terminal.theme import MIN_WIDTH, UNICODE, Page

NARROW = Page(60, UNICODE)
NARROWEST = Page(MIN_WIDTH, UNICODE)
_UNIT = re.compile(r"\s*(?:[KMGT]iB|B|s|ms|us|ns|min|%)(?!\w)")


def check_narrow(text: Text, page: Page = NARROW) -> None:
    """Checks a report made for a narrow page; a command to paste may be longer, and a bar is no figure."""
    lines = text.plain.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_command = line.lstrip().startswith(("$ ", "gpumem ", "export ", "ps -o", "gpumem.Allocator("))
        assert cell_len(line) <= page.width or is_command, line
        assert not (line[-1:].isdigit() and _UNIT.match(following)), (line, following)
