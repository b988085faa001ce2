"""Which mark of a trace a moment is, and which moment names a mark: the two ways of one rule.

    mark:NAME      the first mark of that name, whatever the name holds
    mark:NAME:N    where no mark is named so: the N-th mark named NAME, counted from 1
    step:N         the first step of that number

Owns: that rule, and the list of the marks there are. Must not know: the grammar (trace/moments.py), errors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpumem.trace.model import Mark
from gpumem.trace.moments import AtEvent, AtMark, AtStep, Start, format_moment
from gpumem.units import counted
from gpumem.vocabulary import MarkKind

NAMES_SHOWN = 12

_NUMBERED = re.compile(r"(.+):(\d{1,18})\Z", re.DOTALL)


def find_mark(marks: Sequence[Mark], name: str) -> Mark | None:
    """The mark that `mark:name` is; None where there is none."""
    for mark in marks:
        if mark.name == name:
            return mark
    same, number = find_numbered(marks, name)
    return same[number - 1] if 1 <= number <= len(same) else None


def find_numbered(marks: Sequence[Mark], name: str) -> tuple[list[Mark], int]:
    """Of `NAME:N` the marks named NAME, and N; none, and 0, where `name` is of another form."""
    numbered = _NUMBERED.match(name)
    if numbered is None:
        return [], 0
    return [mark for mark in marks if mark.name == numbered[1]], int(numbered[2])


def name_marks(marks: Sequence[Mark]) -> list[str]:
    """For each mark the moment that leads to its event: by its own name or number where that is not another's."""
    names = {mark.name for mark in marks}
    seen: Counter[str] = Counter()
    steps: set[int] = set()
    found = []
    for mark in marks:
        seen[mark.name] += 1
        found.append(_name_of(mark, seen[mark.name], names, steps))
        if mark.kind is MarkKind.STEP and mark.step is not None:
            steps.add(mark.step)
    return found


def list_marks(marks: Sequence[Mark]) -> str:
    """The named marks among `marks` as moments; of a name that repeats, the first and the last."""
    counts = Counter(mark.name for mark in marks if mark.name)
    shown = [f"mark:{name}" + (f" to mark:{name}:{count}" if count > 1 else "") for name, count in counts.items()]
    more = len(shown) - NAMES_SHOWN
    return ", ".join(shown[:NAMES_SHOWN]) + (f" and {counted(more, 'more mark')}" if more > 0 else "")


def _name_of(mark: Mark, ordinal: int, names: set[str], steps: set[int]) -> str:
    if mark.kind is MarkKind.STEP and mark.step is not None and mark.step not in steps:
        return format_moment(AtStep(mark.step))
    numbered = f"{mark.name}:{ordinal}"
    if mark.name and ordinal == 1:
        return format_moment(AtMark(mark.name))
    if mark.name and numbered not in names:
        return format_moment(AtMark(numbered))
    return format_moment(Start() if mark.event < 0 else AtEvent(mark.event))
