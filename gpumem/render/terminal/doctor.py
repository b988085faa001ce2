"""What works on this machine, a line a check, and what to do about the rest.

Owns: the layout of `gpumem doctor`. Must not know: how anything is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from gpumem.analyses.doctor import Check, CheckState, Diagnosis
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, printable

_STYLES = {CheckState.OK: "green", CheckState.MISSING: theme.WARNING, CheckState.BROKEN: theme.ERROR}
_TEXT_WIDTH_LEAST = 30
"""Where there is less room beside a check's state, its text stands below it."""
_STATE_WIDTH = max(len(state.value) for state in CheckState)


def render_diagnosis(diagnosis: Diagnosis, page: Page) -> Text:
    """Every check with its state in words, its text, and the next step where there is one."""
    name_width = max(len(_name(check)) for check in diagnosis.checks)
    lines: list[Text | str] = []
    for check in diagnosis.checks:
        lines.extend(_check_lines(check, name_width, page))
    lines.append("")
    lines.extend(Text(line, style=theme.TITLE) for line in theme.wrap(_verdict(diagnosis), page))
    return theme.join_lines(lines)


def _check_lines(check: Check, name_width: int, page: Page) -> Iterator[Text]:
    head = Text(f"{_name(check):<{name_width}}  ")
    head.append(f"{check.state.value:<{_STATE_WIDTH}}", style=_STYLES[check.state])
    is_beside = page.width - head.cell_len - 2 >= _TEXT_WIDTH_LEAST
    indent = " " * (head.cell_len + 2 if is_beside else 4)
    first, *rest = theme.wrap_behind(indent, printable(check.text), page)
    if is_beside:
        yield head.append(first[head.cell_len :])
    else:
        head.rstrip()
        yield head
        yield Text(first)
    yield from map(Text, rest)
    if check.next_step is not None:
        for line in _next_lines(printable(check.next_step), replace(page, width=page.width - len(indent))):
            yield Text(indent + line, style=theme.COMMAND)


def _next_lines(step: str, page: Page) -> list[str]:
    """What to do next: a sentence begins with a capital, a command to paste does not."""
    if step[:1].isupper():
        return theme.wrap(f"next: {step}", page)
    return theme.pasted("next:", step, page, indent="")


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
