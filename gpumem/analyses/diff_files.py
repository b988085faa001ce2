"""Where the files and lines of one recording are found again in another.

Owns: which file of the one is which of the other, though it lies elsewhere or was renamed, and in which of them lines
moved. Must not know: bytes, reports.

A file is the same as one of the same path; of the same path below site-packages or the standard library; of the longest
common end of its path; else, renamed, the one that shares most function names. A recording knows only the lines it was
at: in a file the lines moved where some shift explains more of them than none does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile

from gpumem.analyses.sites import is_users_own
from gpumem.trace.model import Frame

_INSTALLED = re.compile(r".*[/\\](?:(?:site|dist)-packages|lib(?:64)?[/\\](?:python|pypy)3[^/\\]*)[/\\]", re.DOTALL)
_SEPARATOR = re.compile(r"[/\\]")
RENAMED_SHARE_MIN = 0.5
"""The share of common function names from which a file counts as renamed."""
_PAIRS_MAX = 1 << 18
"""Pairs of lines, or of files, that are looked at."""


@dataclass(frozen=True, slots=True)
class LineMap:
    """Files of the earlier side by their names on the later one, and the files, by those names, whose lines moved."""

    later_names: Mapping[str, str]
    moved: frozenset[str]

    def renamed(self, frame: Frame) -> Frame:
        """A frame of the earlier side in the file that the later one has for it, the line as it was."""
        later = self.later_names.get(frame.file)
        return frame if later is None else Frame(later, frame.line, frame.function)


def find_line_map(before: Iterable[tuple[Frame, ...]], after: Iterable[tuple[Frame, ...]]) -> LineMap:
    """The map from the stacks of both sides."""
    was, now = (frozenset(frame for frames in stacks for frame in frames) for stacks in (before, after))
    names = _match_files(_functions_by_file(was), _functions_by_file(now))
    lines_before = _lines_by_file(Frame(names.get(frame.file, frame.file), frame.line, "") for frame in was)
    lines_after = _lines_by_file(now)
    both = lines_before.keys() & lines_after.keys()
    return LineMap(names, frozenset(file for file in both if _have_moved(lines_before[file], lines_after[file])))


def _functions_by_file(frames: Iterable[Frame]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for frame in frames:
        found.setdefault(frame.file, set()).add(frame.function)
    return found


def _lines_by_file(frames: Iterable[Frame]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for frame in frames:
        found.setdefault(frame.file, set()).add(frame.line)
    return found


def _match_files(before: Mapping[str, set[str]], after: Mapping[str, set[str]]) -> dict[str, str]:
    """The files that have another name now."""
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    installed = {below: file for file in reversed(new) if (below := _below_installation(file)) is not None}
    names = {file: installed[below] for file in gone if (below := _below_installation(file)) in installed and below}
    gone, new = ([file for file in files if is_users_own(file)] for files in (gone, new))
    names |= _match_best(gone, new, _common_end)
    gone, new = [file for file in gone if file not in names], sorted(set(new) - set(names.values()))
    return names | _match_best(gone, new, lambda was, now: _common_functions(before[was], after[now]))


def _match_best(gone: Sequence[str], new: Sequence[str], score: Callable[[str, str], float]) -> dict[str, str]:
    """Each file with one that was not there before, best scores first; a score of zero is no match."""
    if len(gone) * len(new) > _PAIRS_MAX:
        return {}
    scored = sorted((-score(was, now), was, now) for was, now in product(gone, new))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for negative, was, now in scored:
        if negative < 0 and was not in names and now not in taken:
            names[was] = now
            taken.add(now)
    return names


def _below_installation(file: str) -> str | None:
    match = _INSTALLED.match(file)
    return file[match.end() :] if match else None


def _common_end(was: str, now: str) -> float:
    """How many parts of two paths are the same, counted from the file's name."""
    parts = zip(reversed(_SEPARATOR.split(was)), reversed(_SEPARATOR.split(now)), strict=False)
    return float(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts)))


def _common_functions(was: set[str], now: set[str]) -> float:
    """The share of function names that two files have in common; 0 below the least that counts."""
    share = len(was & now) / len(was | now)
    return share if share >= RENAMED_SHARE_MIN else 0.0


def _have_moved(before: set[int], after: set[int]) -> bool:
    """Whether a shift of all lines explains more of them than none does.

    Where neither does, they moved unless one side just has more lines than the other, or the last ones are the same.
    """
    if before == after or len(before) * len(after) > _PAIRS_MAX:
        return False
    shifts = Counter(now - was for was, now in product(before, after))
    unmoved = shifts.pop(0, 0)
    best = max(shifts.values(), default=0)
    if best != unmoved:
        return best > unmoved
    return not (before <= after or after <= before) and max(before) != max(after)
