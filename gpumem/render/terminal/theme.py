"""How gpumem looks in a terminal: styles, characters, widths, and text that cannot misbehave.

Owns: the console, the styles' names, fitting text into widths. Must not know: any finding.
Foreign text (paths, functions, marks) goes through `printable` first, and rich never reads it as markup.

No line is wider than the page, from MIN_WIDTH cells on: sentences are broken at blanks, figures keep their unit, names
and paths are cut, and where the columns of a table do not fit, each row takes two lines. One thing alone may be wider:
what is there to be pasted, a command or the path of a file that was just written. We neither break nor cut it; where it
does not fit beside its words it has a line to itself (`pasted`), which the terminal wraps without harm to a copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from gpumem.render.text import FIGURE_AND_UNIT, NAME_AND_NUMBER, place
from gpumem.render.text import printable as printable
from gpumem.trace.model import Frame
from gpumem.units import counted

DEFAULT_WIDTH = 80
MIN_WIDTH = 40
MAX_WIDTH = 1000
_DIGITS_MOST = 9
_HEIGHT = 24
PATH_WIDTH_LEAST = 20
PLACE_WIDTH_LEAST = 24
"""Of a site beside its figures; where there is less room, it stands below them."""
NAME_WIDTH_LEAST = 8
"""The same of a trace's name."""
INDENT = "  "
FACT_WIDTH = 16
STACK_FRAMES_SHOWN = 6

TITLE = "bold"
FIGURE = "bold"
QUIET = "dim"
WARNING = "yellow"
ERROR = "bold red"
REQUESTED = "green"
RESERVED = "cyan"
COMMAND = "bold cyan"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that a page is drawn with."""

    ellipsis: str
    dot: str
    full: str
    dark: str
    medium: str
    light: str
    sparse: str
    pending: str
    horizontal: str
    vertical: str
    tick_left: str
    corner: str
    tick: str
    dashed: str
    eighths: str
    """Fillings of a cell from below, empty to full."""
    arrow: str


UNICODE = Glyphs("…", "·", "█", "▓", "▒", "░", "▂", "▚", "─", "│", "┤", "└", "┬", "┄", " ▁▂▃▄▅▆▇█", "→")
ASCII = Glyphs("~", "-", "#", "@", "+", ".", ",", "%", "-", "|", "|", "+", "+", "-", " _______#", "->")


@dataclass(frozen=True, slots=True)
class Page:
    """What a renderer needs to know of its paper."""

    width: int
    glyphs: Glyphs


_RANK_WIDTH = 6


def make_console(stream: TextIO, width_otherwise: int = DEFAULT_WIDTH) -> Console:
    """A console on `stream` that adds nothing of its own: no highlighting, no markup, no emoji, no wrapping; with
    `width_otherwise` where neither COLUMNS nor a terminal names a width.
    """
    return Console(
        file=stream,
        width=_width(stream, width_otherwise),
        height=_HEIGHT,  # else rich asks the environment for both
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def page_of(console: Console) -> Page:
    """The console's width and the characters its encoding has."""
    try:
        (UNICODE.ellipsis + UNICODE.eighths + UNICODE.corner + UNICODE.arrow).encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return Page(max(MIN_WIDTH, console.width), ASCII)
    return Page(max(MIN_WIDTH, console.width), UNICODE)


def _width(stream: TextIO, width_otherwise: int) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and len(columns) <= _DIGITS_MOST and int(columns) > 0:
        return min(MAX_WIDTH, int(columns))
    if stream.isatty():
        with suppress(OSError):  # of this stream's terminal: the other one may be a file
            return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
        return DEFAULT_WIDTH
    return width_otherwise


def fit_right(text: str, width: int) -> str:
    """`text` moved to the right edge of `width` cells; never cut."""
    return " " * (width - cell_len(text)) + text


def fit_left(text: str, width: int) -> str:
    """`text` filled with blanks to `width` cells; never cut."""
    return text + " " * (width - cell_len(text))


def labelled(label: str, label_width: int, figures: Text, page: Page) -> Iterator[Text]:
    """A row of a table: the label and its figures, below it where the page is too narrow for both."""
    if label_width + figures.cell_len <= page.width:
        yield Text(fit_left(label, label_width)).append(figures)
    else:
        yield Text(shorten(label, page.width, page.glyphs.ellipsis))
        yield figures


def named(row: Text, name: Callable[[int, str], str], least: int, page: Page) -> Iterator[Text]:
    """A row of figures and whose they are, as `name` writes it in so many cells with that ellipsis: behind the figures
    where `least` cells are left, else below them.
    """
    room = page.width - row.cell_len - len(INDENT)
    if room >= least:
        yield row.append(f"{INDENT}{name(room, page.glyphs.ellipsis)}", style="not bold")
    else:
        yield row
        yield Text(INDENT + name(page.width - len(INDENT), page.glyphs.ellipsis))


def shorten(text: str, width: int, ellipsis: str) -> str:
    """`text` in at most `width` cells, cut in the middle."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ellipsis[:width]
    head = (width - 1) // 2
    tail = text
    while cell_len(tail) > width - 1 - head:
        tail = tail[1:]
    return set_cell_size(text, head) + ellipsis + tail


def shorten_path(path: str, width: int, ellipsis: str) -> str:
    """`path` in at most `width` cells: whole folders are left out from the left, the file's name last of all."""
    if cell_len(path) <= width:
        return path
    parts = path.split("/")
    for first in range(1, len(parts)):
        shown = "/".join([ellipsis, *parts[first:]])
        if cell_len(shown) <= width:
            return shown
    return shorten(parts[-1], width, ellipsis)


def trace_name(path: str, width: int, ellipsis: str) -> str:
    """A trace's path in at most `width` cells: where its name is wider, without the ending that all traces have."""
    shown = printable(path)
    if cell_len(shown.rsplit("/", 1)[-1]) > width:
        shown = shown.removesuffix(".journal").removesuffix(".gpumem")
    return shorten_path(shown, width, ellipsis)


def rank_cell(rank: int | str | None, *, is_shown: bool) -> str:
    """The column of ranks in a table of traces, which is left out where none says its rank."""
    return fit_right("-" if rank is None else str(rank), _RANK_WIDTH) if is_shown else ""


_PARAMETERS = re.compile(r"(?<=\w)\(.*\Z", re.DOTALL)


def site_text(file: str, line: int, function: str, width: int, ellipsis: str) -> str:
    """`file:line function` in `width` cells: folders go first, then the function's middle, the number never.

    A C++ function stands without its parameters, and alone where its file is not known.
    """
    number = f":{line}" if line else ""
    if "::" in function:
        function = _PARAMETERS.sub("", function)
    shown_file, shown_function = printable(file), printable(function)
    if not place(file, line):
        return shorten(shown_function, width, ellipsis)
    room = max(12, width - len(number) - 1)
    name_only = cell_len(shorten_path(shown_file, cell_len(shown_file.rsplit("/", 1)[-1]) + 2, ellipsis))
    function_room = max(room - name_only, room // 3)
    shown_function = shorten(shown_function, function_room, ellipsis)
    return f"{shorten_path(shown_file, room - cell_len(shown_function), ellipsis)}{number} {shown_function}"


def wrap(text: str, page: Page, *, room: int | None = None, indent: str = "") -> list[str]:
    """`text` broken at blanks into lines of at most `room` cells, by default the page's; a figure keeps its unit and
    what it counts, and a word that is wider than a line is cut, a path from the left.
    """
    width = page.width if room is None else room
    lines: list[str] = []
    current = ""
    bound = NAME_AND_NUMBER.sub("\\1\u00a0", FIGURE_AND_UNIT.sub("\\1\u00a0\\2", text))
    for word in bound.split(" "):
        shown = _cut_word(word, width - cell_len(indent), page.glyphs.ellipsis)
        longer = f"{current} {shown}" if current else (indent if lines else "") + shown
        if current and cell_len(longer) > width:
            lines.append(current)
            current = indent + shown
        else:
            current = longer
    return [line.replace("\u00a0", " ") for line in [*lines, current]]


def _cut_word(word: str, width: int, ellipsis: str) -> str:
    """The word in so many cells; one that has a slash in it and is no path keeps its beginning too."""
    path = shorten_path(word, width, ellipsis)
    return path if 2 * cell_len(path) >= width or cell_len(word) <= width else shorten(word, width, ellipsis)


def wrap_behind(indent: str, text: str, page: Page) -> list[str]:
    """`text` as wrap breaks it, every line behind `indent`."""
    return [indent + line for line in wrap(text, page, room=page.width - cell_len(indent))]


def pasted(lead: str, what: str, page: Page, *, indent: str = INDENT) -> list[str]:
    """What there is to paste behind the words that lead to it; on the next line, whole, where the page has no room for
    both.
    """
    together = f"{lead} {what}"
    return [together] if cell_len(together) <= page.width else [*wrap(lead, page), indent + what]


def led_by_path(path: str, said: str, page: Page, *, lead: str = "") -> list[str]:
    """A file that was just written, or has to be seen to, and what is said of it; where the page has no room for both
    the path has a line to itself.
    """
    together = f"{lead}{path}{said}"
    if cell_len(together) <= page.width:
        return [together]
    head = pasted(lead.rstrip(), path, page) if lead else [path]
    return [*head, *wrap_behind(INDENT, said.lstrip(": "), page)]


def fitting(width: int, *texts: str) -> str:
    """The first of texts that say the same, longest first, that fits into `width` cells; else the last."""
    return next((text for text in texts if cell_len(text) <= width), texts[-1])


def head_lines(path: str, facts: Sequence[str], page: Page) -> list[str]:
    """A trace's path and what is said of it, on one line where that leaves the path room enough, else on several."""
    gap = f" {page.glyphs.dot} "
    tail = "".join(gap + fact for fact in facts)
    room = page.width - cell_len(tail)
    if room >= PATH_WIDTH_LEAST:
        return [shorten_path(path, room, page.glyphs.ellipsis) + tail]
    return wrap_items([shorten_path(path, page.width, page.glyphs.ellipsis), *facts], page, gap)


def fact(name: str, text: str, page: Page) -> Text:
    """A fact by its name: its text in a column of its own, wrapped."""
    lines = wrap(text, page, room=page.width - FACT_WIDTH)
    return Text(("\n" + " " * FACT_WIDTH).join([fit_left(name, FACT_WIDTH) + lines[0], *lines[1:]]))


def stack_lines(stack: Sequence[Frame], indent: str, page: Page) -> Iterator[Text]:
    """The innermost frames of a stack, a line each behind `indent`, and how many more there are."""
    ellipsis = page.glyphs.ellipsis
    for frame in stack[:STACK_FRAMES_SHOWN]:
        text = site_text(frame.file, frame.line, frame.function, page.width - len(indent), ellipsis)
        yield Text(indent + text, style=QUIET)
    rest = len(stack) - STACK_FRAMES_SHOWN
    if rest > 0:
        yield Text(f"{indent}{ellipsis} {counted(rest, 'more frame')}", style=QUIET)


def wrap_items(items: Sequence[str], page: Page, gap: str = "   ") -> list[str]:
    """The items beside one another with `gap` between them, as many a line as fit; one wider than that is wrapped."""
    lines: list[str] = []
    for item in items:
        if lines and cell_len(lines[-1]) + len(gap) + cell_len(item) <= page.width:
            lines[-1] += gap + item
        else:
            lines.extend(wrap(item, page, indent=INDENT))
    return lines


def join_lines(lines: Sequence[Text | str]) -> Text:
    """The lines as one text, each ended by a line break."""
    page = Text()
    for line in lines:
        page.append_text(line) if isinstance(line, Text) else page.append(line)
        page.append("\n")
    return page
