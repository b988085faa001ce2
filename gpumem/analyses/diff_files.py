"""Where the files and lines of one recording are found again in another.

Owns: which file of the one is which of the other, though it lies elsewhere or was renamed, and in which of them lines
moved. Must not know: bytes, reports.

A file is the same as one of the same path; of the same path below site-packages or the standard library; of the longest
common end of its path; else, renamed, the one that shares most function names. A recording knows only the lines it was
at; from those it is told where in a file lines began to move.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile

import numpy as np
import numpy.typing as npt

from gpumem.analyses.sites import is_users_own
from gpumem.trace.model import Frame

_INSTALLED = re.compile(r".*[/\\](?:(?:site|dist)-packages|lib(?:64)?[/\\](?:python|pypy)3[^/\\]*)[/\\]", re.DOTALL)
_SEPARATOR = re.compile(r"[/\\]")
RENAMED_SHARE_MIN = 0.5
"""The share of common function names from which a file counts as renamed."""
_PAIRS_MAX = 1 << 18
"""Pairs of files that are looked at."""
_LINES_MAX = 2048
"""Lines of a file that are looked at, the last ones."""
_SHIFTS_COUNTED = 1 << 20
"""Shifts that are counted in a table, ten times as fast as by sorting; hostile line numbers lie farther apart."""
_SHIFTS_TRIED = 32
"""Shifts that are looked at, the most frequent ones."""

Lines = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """How the lines of a file moved: those above `first_line` did not, most of the others by `shift`."""

    first_line: int
    shift: int


@dataclass(frozen=True, slots=True)
class LineMap:
    """Files of the earlier side by their names on the later one, and how lines moved in those where they did."""

    later_names: Mapping[str, str]
    moves: Mapping[str, Move]
    """By the later name."""

    def may_be(self, was: Frame, now: Frame) -> bool:
        """Whether two frames of one function, in the later side's files, may be the same line."""
        if was.line == now.line:
            return True
        move = self.moves.get(now.file)
        return move is not None and min(was.line, now.line) >= move.first_line

    def expected(self, frame: Frame) -> int:
        """The line that a frame of the earlier side, in the later one's file, most likely is at now."""
        move = self.moves.get(frame.file)
        return frame.line if move is None or frame.line < move.first_line else frame.line + move.shift

    def renamed(self, frame: Frame) -> Frame:
        """A frame of the earlier side in the file that the later one has for it, the line as it was."""
        later = self.later_names.get(frame.file)
        return frame if later is None else Frame(later, frame.line, frame.function)


def find_line_map(before: Iterable[Frame], after: Iterable[Frame]) -> LineMap:
    """The map from the frames of both sides' stacks."""
    was, now = list(before), list(after)
    names = _match_files(_functions_by_file(was), _functions_by_file(now))
    lines_before = _lines_by_file(Frame(names.get(frame.file, frame.file), frame.line, "") for frame in was)
    lines_after = _lines_by_file(now)
    both = sorted(lines_before.keys() & lines_after.keys())
    moves = {file: _find_move(lines_before[file], lines_after[file]) for file in both}
    return LineMap(names, {file: move for file, move in moves.items() if move is not None})


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


def _find_move(before: set[int], after: set[int]) -> Move | None:
    """How the lines moved, None where they did not.

    Lines are added or taken away somewhere, and those below move: of all places and shifts the one counts that explains
    most lines. Where none explains more than no shift does, what is below the last line of both sides may have moved.
    """
    if before == after:
        return None
    was, now = (np.array(sorted(lines)[-_LINES_MAX:], np.int64) for lines in (before, after))
    is_common = np.isin(was, now)
    shift, place = _best_shift(was, now, is_common)
    if shift:
        common = was[:place][is_common[:place]]
    else:
        common = was[is_common]
        shift = _shift_below(was, now, int(common.max(initial=-1)))
    return Move(int(common.max(initial=-1)) + 1, shift) if shift else None


def _best_shift(was: Lines, now: Lines, is_common: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The shift that explains most lines if it begins at the best place in `was`, and that place; 0 for none.

    Above the place lines are explained by no shift, below it by this one where they do not come to lie among those.
    """
    shifts, counts = _count_shifts(was, now)
    above = np.concatenate([[0], np.cumsum(is_common)])
    last_above = np.concatenate([[-1], np.maximum.accumulate(np.where(is_common, was, -1))])
    best, found = int(above[-1]), (0, 0)
    for shift in shifts[np.argsort(-counts, kind="stable")[:_SHIFTS_TRIED]].tolist():
        if shift:
            hits = np.isin(was + shift, now)
            below = np.concatenate([np.cumsum(hits[::-1])[::-1], [0]])
            begins = np.maximum(np.arange(len(was) + 1), np.searchsorted(was, last_above - shift, side="right"))
            explained = above + below[begins]
            place = int(explained.argmax())
            if int(explained[place]) > best:
                best, found = int(explained[place]), (shift, place)
    return found


def _shift_below(was: Lines, now: Lines, line: int) -> int:
    """The most frequent shift of what is below `line`; 0 where one side has nothing there."""
    shifts, counts = _count_shifts(was[was > line], now[now > line])
    return int(shifts[counts.argmax()]) if len(shifts) else 0


def _count_shifts(was: Lines, now: Lines) -> tuple[Lines, Lines]:
    """By how much a line of `was` may have come to be one of `now`, least first, and of how many pairs that is true."""
    pairs = np.subtract.outer(now, was).ravel()
    if not len(pairs) or int(np.ptp(pairs)) > _SHIFTS_COUNTED:
        return np.unique(pairs, return_counts=True)
    least = pairs.min()
    counts = np.bincount(pairs - least)
    present = np.flatnonzero(counts)
    return present + least, counts[present]
