"""Which stack, and which site, of one recording is which of another.

Owns: the pairing. Must not know: how blocks were measured, reports.

Stacks belong together that went through the same functions; by and by fewer callers of the site have to agree, the
frames from the site inwards always. Among those the line numbers decide, which may differ only in files whose lines
moved: pairs keep the order of lines, are as many as can be, and of several ways to pair them the one is taken whose
lines, bytes and counts differ least. Those that are the very same on both sides are paired first (diff_same.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from gpumem.analyses.diff_files import LineMap
from gpumem.analyses.diff_same import find_same_stacks
from gpumem.analyses.diff_sides import HeldGroup, HeldStacks
from gpumem.trace.model import Frame

_CALLERS_THAT_AGREE = (1 << 20, 3, 1, 0)
"""How many callers of the site have to be the same functions, round by round."""
_PAIR = 1000.0
_SAME_LINES = 3.0
_SAME_BYTES = 4.0
_SAME_COUNT = 1.0
_CELLS_MAX = 1 << 18
_LINE = attrgetter("line")


@dataclass(frozen=True, slots=True)
class GroupPair:
    """A stack or site on both sides; None where that side has none."""

    before: HeldGroup | None
    after: HeldGroup | None


def pair_stacks(before: HeldStacks, after: HeldStacks, lines: LineMap) -> list[GroupPair]:
    """Every stack of both sides, once."""
    same, was, now = find_same_stacks(before, after, lines)
    pairs = [GroupPair(before.groups[one], after.groups[other]) for one, other in same]
    names = _Names()
    left = [_Candidate.of(group, _in_later_names(group, lines), names) for group in was]
    right = [_Candidate.of(group, group, names) for group in now]
    for callers in _CALLERS_THAT_AGREE:
        matched = list(_match_round(left, right, callers, lines))
        pairs.extend(GroupPair(was.own, now.own) for was, now in matched)
        taken = {id(one) for pair in matched for one in pair}
        left, right = ([one for one in side if id(one) not in taken] for side in (left, right))
    pairs.extend(GroupPair(one.own, None) for one in left)
    pairs.extend(GroupPair(None, one.own) for one in right)
    return pairs


def pair_sites(stacks: Sequence[GroupPair], lines: LineMap) -> list[GroupPair]:
    """Every site of both sides, once: with the one that most bytes of its stacks went to, else one of its function."""
    was = _sites([pair.before for pair in stacks if pair.before is not None])
    now = _sites([pair.after for pair in stacks if pair.after is not None])
    chosen = _most_voted(stacks)
    pairs = [GroupPair(was[before], now[after]) for before, after in chosen.items()]
    taken = set(chosen.values())
    names = _Names()
    left = [_Candidate.of(was[site], _site_alone(was[site], lines), names) for site in was if site not in chosen]
    right = [_Candidate.of(now[site], _site_alone(now[site], None), names) for site in now if site not in taken]
    alike = list(_match_round(left, right, 0, lines))
    known = _known_lines(stacks, lines) if alike else {}
    matched = [
        (before, after)
        for before, after in alike
        if _is_in_line(known.get(after.named.site.file, []), before.named.site.line, after.named.site.line)
    ]
    pairs.extend(GroupPair(before.own, after.own) for before, after in matched)
    done = {id(one) for pair in matched for one in pair}
    pairs.extend(GroupPair(one.own, None) for one in left if id(one) not in done)
    pairs.extend(GroupPair(None, one.own) for one in right if id(one) not in done)
    return pairs


class _Names:
    """A number for the function that a frame is in, by file and name; frames are shared, so that each is read once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._by_frame: dict[int, int] = {}
        self._kept: list[Frame] = []

    def of(self, frames: tuple[Frame, ...]) -> tuple[int, ...]:
        """The number of each frame's function."""
        known = self._by_frame
        try:
            return tuple(map(known.__getitem__, map(id, frames)))
        except KeyError:
            for frame in frames:
                if id(frame) not in known:
                    self._kept.append(frame)  # so that no other takes its place
                    known[id(frame)] = self._numbers.setdefault((frame.file, frame.function), len(self._numbers))
            return self.of(frames)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A group that has no partner yet, and the same with its files named as on the later side."""

    own: HeldGroup
    named: HeldGroup
    functions: tuple[int, ...]
    """The number of each frame's function, innermost first."""
    lines: tuple[int, ...]

    @classmethod
    def of(cls, own: HeldGroup, named: HeldGroup, names: _Names) -> _Candidate:
        """A candidate whose functions have the numbers in `names`."""
        return cls(own, named, names.of(named.frames), tuple(map(_LINE, named.frames)))

    def reach(self, callers: int) -> int:
        """How many frames have to agree, of those there are: from the innermost to so many callers of the site."""
        return self.named.site_index + 1 + callers


def _match_round(
    left: Sequence[_Candidate], right: Sequence[_Candidate], callers: int, lines: LineMap
) -> Iterator[tuple[_Candidate, _Candidate]]:
    """Pairs of those that agree in the functions within reach."""
    groups: dict[tuple[int, ...], tuple[list[_Candidate], list[_Candidate]]] = {}
    for side, candidates in enumerate((left, right)):
        for one in candidates:
            groups.setdefault(one.functions[: one.reach(callers)], ([], []))[side].append(one)
    for was, now in groups.values():
        if was and now:
            yield from _align(_in_order(was, callers), _in_order(now, callers), lines)


def _in_order(candidates: Sequence[_Candidate], callers: int) -> list[_Row]:
    rows = [_Row(one, one.lines[: one.reach(callers)]) for one in candidates]
    return sorted(rows, key=_Row.order) if len(rows) > 1 else rows


@dataclass(frozen=True, slots=True)
class _Row:
    """A candidate among those that went through the same functions, with the lines within reach."""

    candidate: _Candidate
    lines: tuple[int, ...]

    def order(self) -> tuple[int, ...]:
        """The lines, outermost first: the order in which a program comes to them."""
        return self.lines[::-1]

    @property
    def frames(self) -> Sequence[Frame]:
        """The frames within reach, innermost first."""
        return self.candidate.named.frames[: len(self.lines)]


def _align(left: Sequence[_Row], right: Sequence[_Row], lines: LineMap) -> Iterator[tuple[_Candidate, _Candidate]]:
    """The pairing in order with the greatest sum of likenesses; of too many for that, by each file's shift."""
    if len(left) * len(right) > _CELLS_MAX:
        yield from _pair_by_shift(left, right, lines)
        return
    gains = [[_likeness(was, now, lines) for now in right] for was in left]
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + gains[i][j])
    i = j = 0
    while i < len(left) and j < len(right):
        if gains[i][j] > 0 and best[i][j] == best[i + 1][j + 1] + gains[i][j]:
            yield left[i].candidate, right[j].candidate
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1


def _likeness(was: _Row, now: _Row, lines: LineMap) -> float:
    """How much speaks for two groups of the same functions being one; 0 where a line differs that did not move."""
    same_lines = was.lines == now.lines
    if not same_lines and not all(map(lines.may_be, was.frames, now.frames)):
        return 0.0
    before, after = was.candidate.named, now.candidate.named
    found = _PAIR + (_SAME_LINES if same_lines else 0.0)
    if before.block_count == after.block_count:
        found += _SAME_BYTES if before.held_bytes == after.held_bytes else _SAME_COUNT
    more = max(before.held_bytes, after.held_bytes)
    return found + (min(before.held_bytes, after.held_bytes) / more if more else 1.0)


def _pair_by_shift(
    left: Sequence[_Row], right: Sequence[_Row], lines: LineMap
) -> Iterator[tuple[_Candidate, _Candidate]]:
    there = {row.order(): row for row in right}
    for row in left:
        expected = tuple(lines.expected(frame) for frame in reversed(row.frames))
        partner = there.pop(expected, None)
        if partner is not None:
            yield row.candidate, partner.candidate


def _in_later_names(group: HeldGroup, lines: LineMap) -> HeldGroup:
    if not lines.later_names:
        return group
    return replace(group, frames=tuple(lines.renamed(frame) for frame in group.frames))


def _site_alone(group: HeldGroup, lines: LineMap | None) -> HeldGroup:
    site = group.site if lines is None else lines.renamed(group.site)
    return replace(group, frames=(site,), site_index=0)


def _sites(stacks: Iterable[HeldGroup]) -> dict[Frame, HeldGroup]:
    """The stacks summed by site, with the frames of the heaviest."""
    by_site: dict[Frame, list[HeldGroup]] = {}
    for stack in stacks:
        by_site.setdefault(stack.site, []).append(stack)
    return {
        site: replace(
            max(group, key=lambda stack: (stack.held_bytes, stack.block_count)),
            held_bytes=sum(stack.held_bytes for stack in group),
            block_count=sum(stack.block_count for stack in group),
        )
        for site, group in by_site.items()
    }


def _most_voted(stacks: Iterable[GroupPair]) -> dict[Frame, Frame]:
    """The site that each earlier site became, by the bytes of the stacks that were paired; none is taken twice."""
    votes: Counter[tuple[Frame, Frame]] = Counter()
    for pair in stacks:
        if pair.before is not None and pair.after is not None:
            votes[pair.before.site, pair.after.site] += pair.before.held_bytes + pair.after.held_bytes + 1
    chosen: dict[Frame, Frame] = {}
    taken: set[Frame] = set()
    for (was, now), _ in sorted(votes.items(), key=lambda vote: (-vote[1], *map(_frame_order, vote[0]))):
        if was not in chosen and now not in taken:
            chosen[was] = now
            taken.add(now)
    return chosen


def _frame_order(frame: Frame) -> tuple[str, int, str]:
    return frame.file, frame.line, frame.function


def _known_lines(stacks: Iterable[GroupPair], lines: LineMap) -> dict[str, list[tuple[int, int]]]:
    """By file, in order, the lines of paired stacks: earlier and later."""
    paired: dict[tuple[int, int], tuple[Frame, Frame]] = {}
    for pair in stacks:
        if pair.before is not None and pair.after is not None:
            was, now = pair.before.frames, pair.after.frames
            paired.update(zip(zip(map(id, was), map(id, now)), zip(was, now)))  # noqa: B905
    found: dict[str, set[tuple[int, int]]] = {}
    for one, other in paired.values():
        if lines.renamed(one).file == other.file and one.function == other.function:
            found.setdefault(other.file, set()).add((one.line, other.line))
    return {file: sorted(pairs) for file, pairs in found.items()}


def _is_in_line(known: Sequence[tuple[int, int]], was: int, now: int) -> bool:
    """Whether a line can have moved so far: no less and no farther than the known lines around it.

    A file's top never moves; below the last known line all is possible that keeps the order.
    """
    above = max((pair for pair in known if pair[0] <= was), default=(0, 0))
    below = min((pair for pair in known if pair[0] > was), default=None)
    shift, least = now - was, above[1] - above[0]
    if below is None:
        return now >= above[1]
    most = below[1] - below[0]
    return min(least, most) <= shift <= max(least, most)
