"""HTML as text that cannot be broken out of: what is no Html is escaped.

Owns: tags, escaping, foreign text made short and visible. Must not know: findings.
"""

from __future__ import annotations

import html

from gpumem.render.text import printable

TEXT_CHARACTERS_MAX = 400


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


def foreign(text: str) -> str:
    """A name from a trace as it is shown: visible characters, and no longer than a person would read."""
    shown = printable(text)
    if len(shown) <= TEXT_CHARACTERS_MAX:
        return shown
    half = TEXT_CHARACTERS_MAX // 2
    return f"{shown[:half]}…{shown[-half:]}"


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'
