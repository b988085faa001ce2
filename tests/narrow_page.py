"""What a report keeps to on every page: no line is wider, no figure is broken, nothing acts on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from gpumem.render.terminal.theme import ASCII, MIN_WIDTH, UNICODE, Page

PAGES = {"80": Page(80, UNICODE), "120": Page(120, UNICODE), "ascii": Page(80, ASCII)}
"""Those that reports have golden files for."""
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


def checked(text: Text, page: Page) -> str:
    """The plain text, once it is known to fit the page and to hold nothing a terminal would act on."""
    for line in text.plain.splitlines():
        assert cell_len(line) <= page.width, line
        assert line.isprintable(), line
        assert line == line.rstrip(), line
        assert page.glyphs is UNICODE or line.isascii() or "\\" in line, line
    return text.plain
