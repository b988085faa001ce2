"""HTML as text that cannot be broken out of: what is no Html is escaped.

Owns: tags, escaping, foreign text made short and visible. Must not know: findings.
"""

from __future__ import annotations

import html

from gpumem.render.text import FIGURE_AND_UNIT, printable

TEXT_CHARACTERS_MAX = 240
NAME_CHARACTERS_MAX = 48
"""Of a name inside a sentence."""
LINE_CHARACTERS_MAX = 4096
"""Of a command line, settings or a note: who wants to repeat a run, or to mend it, needs all of it."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


NOTHING = Html("")


def tag(name: str, *children: str, **attributes: str | bool) -> Html:
    """An element; children that are no Html are escaped. `class_` is class, `data_view` is data-view."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not False)
    content = "".join(child if isinstance(child, Html) else html.escape(child, quote=False) for child in children)
    return Html(f"<{name}{written}>{content}</{name}>")


def join(parts: list[Html]) -> Html:
    """The parts one after the other."""
    return Html("".join(parts))


def sentence(text: str) -> Html:
    """The text, escaped, with each figure on one line with its unit."""
    return Html(FIGURE_AND_UNIT.sub(r'<span class="whole">\g<0></span>', html.escape(text, quote=False)))


def foreign(text: str) -> str:
    """A name from a trace as it is shown: visible characters, and no longer than a person would read."""
    return shortened(printable(text), TEXT_CHARACTERS_MAX)


def foreign_line(text: str) -> str:
    """A line from a trace that a reader wants whole, as it is shown."""
    return shortened(printable(text), LINE_CHARACTERS_MAX)


def short_name(text: str) -> str:
    """A name from a trace inside a sentence."""
    return shortened(printable(text), NAME_CHARACTERS_MAX)


def shortened(text: str, characters: int) -> str:
    """`text` with its middle left out where it is longer than `characters`."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}…{text[len(text) - half + 1 :]}"


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'
