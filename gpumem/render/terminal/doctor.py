"""What works on this machine, a line a check, and what to do about the rest.

Owns: the layout of `gpumem doctor`. Must not know: how anything is checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gpumem.analyses.doctor import Check, CheckState, Diagnosis
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, printable

_STYLES = {CheckState.OK: "green", CheckState.MISSING: theme.WARNING, CheckState.BROKEN: theme.ERROR}
_STATE_WIDTH = max(len(state.value) for state in CheckState)


def render_diagnosis(diagnosis: Diagnosis, page: Page) -> Text:
    """Every check with its state in words, its text, and the next step where there is one."""
    name_width = max(len(_name(check)) for check in diagnosis.checks)
    lines: list[Text | str] = []
    for check in diagnosis.checks:
        lines.extend(_check_lines(check, name_width, page))
    lines.extend(["", Text(_verdict(diagnosis), style=theme.TITLE)])
    return theme.join_lines(lines)


def _check_lines(check: Check, name_width: int, page: Page) -> Iterator[Text]:
    indent = " " * (name_width + _STATE_WIDTH + 4)
    room = page.width - len(indent)
    text = " ".join(_fitting(word, room, page) for word in printable(check.text).split(" "))
    words = theme.wrap(text, room)
    head = Text(f"{_name(check):<{name_width}}  ")
    head.append(f"{check.state.value:<{_STATE_WIDTH}}", style=_STYLES[check.state])
    yield head.append(f"  {words[0]}")
    for line in words[1:]:
        yield Text(indent + line)
    if check.next_step is not None:
        for line in theme.wrap(f"next: {printable(check.next_step)}", room):
            yield Text(indent + line, style=theme.COMMAND)


def _fitting(word: str, room: int, page: Page) -> str:
    """The word, a path without as many of its first folders as do not fit."""
    return theme.shorten_path(word, room, page.glyphs.ellipsis) if "/" in word else word


def _name(check: Check) -> str:
    return check.code.replace("_", " ")


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.is_working:
        return "Recording does not work here until what is broken is put right."
    if any(check.code == "devices" and check.state is not CheckState.OK for check in diagnosis.checks):
        return "There is no GPU here to record."
    if any(check.state is CheckState.MISSING for check in diagnosis.checks):
        return "Recording works here, without what is missing."
    return "Everything works here."
