"""What a report on a narrow terminal keeps to: no line is wider than the page, and no figure is broken."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from gpumem.render.terminal.theme import MIN_WIDTH, UNICODE, Page

NARROW = Page(60, UNICODE)
NARROWEST = Page(MIN_WIDTH, UNICODE)
_UNIT = re.compile(r"\s*(?:[KMGT]iB|B|s|ms|us|ns|min|%)(?!\w)")


_COMMANDS = ("$ ", "gpumem ", "export ", "ps -o", "gpumem.Allocator(", "pip install ")


def check_narrow(text: Text, page: Page = NARROW, *, written: Sequence[str] = ()) -> None:
    """Checks a report made for a narrow page. What is there to be pasted may be wider, on a line of its own: a command,
    or the path of a file whose name is in `written`. A bar is no figure.
    """
    lines = text.plain.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_pasted = line.lstrip().startswith(_COMMANDS) or line.endswith(tuple(f"/{name}" for name in written))
        assert cell_len(line) <= page.width or is_pasted, line
        assert not (line[-1:].isdigit() and _UNIT.match(following)), (line, following)
