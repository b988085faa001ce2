"""The blocks at the peak as trees of calls: what a flame graph draws.

Owns: merging stacks into a tree, from the outside in and from the inside out. Must not know: colours, HTML.
A node's bytes are those of its children and of the blocks that were allocated in its own frame.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpumem.analyses.page_shares import PeakStack
from gpumem.analyses.sites import is_users_own
from gpumem.trace.model import Frame

LEAST_SHARE = 4000
"""Nodes with less than one part in so many of the peak are summed up."""
NO_ONE_SITE = -1
_NO_ROW = -2

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FlameNode:
    """A frame below its caller; `parent` is the position of that node, -1 for the root.

    `frame` is None for the root, for blocks without a stack (`is_rest` false) and for what is too little to be drawn
    (`is_rest` true); `site` says whose it is where all of the node's bytes are of one site.
    """

    parent: int
    frame: Frame | None
    held_bytes: int
    block_count: int
    has_site: bool
    site: Frame | None
    is_rest: bool


@dataclass(frozen=True, slots=True)
class FlameTree:
    """Nodes, callers before what they call; the first is the whole peak. `depth` counts the rows."""

    nodes: Sequence[FlameNode]
    depth: int


@dataclass(frozen=True, slots=True)
class PeakFlame:
    """The peak by calls: through the user's own code, through all frames, and from the allocating line outwards."""

    own: FlameTree
    full: FlameTree
    inverted: FlameTree


def find_flame(stacks: Sequence[PeakStack], rest_bytes: int, nodes_max: int = 1500) -> PeakFlame:
    """The trees of the stacks at a peak, of about `nodes_max` nodes; `rest_bytes` are those of further stacks."""
    full = _Calls.of(stacks, _shared_start(stacks))
    own = full.own()
    return PeakFlame(*(_tree(calls, rest_bytes, nodes_max) for calls in (own, full, own.inverted())))


def _shared_start(stacks: Sequence[PeakStack]) -> int:
    """How many outermost frames, none the user's own, every stack has in common: how the program was started."""
    outward = [stack.frames[::-1] for stack in stacks if stack.frames]
    if not outward:
        return 0
    count = 0
    shortest = min(len(frames) for frames in outward)
    while count < shortest - 1:
        frame = outward[0][count]
        if is_users_own(frame.file) or any(frames[count] != frame for frames in outward):
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Calls:
    """Stacks as numbers of frames, one after another, outermost first; one without frames has None as its only one."""

    frames: Sequence[Frame | None]
    number: Int64s
    depth: Int64s
    held_bytes: Int64s
    block_count: Int64s
    site: Int64s
    sites: Sequence[Frame | None]

    @classmethod
    def of(cls, stacks: Sequence[PeakStack], skipped: int) -> _Calls:
        """The stacks without their first `skipped` frames."""
        frames: dict[Frame | None, int] = {}
        sites: dict[Frame | None, int] = {}
        known: dict[int, int] = {}  # stacks share frames, so that few are asked for by what they say
        number, depth = array("q"), array("q")
        for stack in stacks:
            calls = stack.frames[::-1][skipped:] or (None,)
            for frame in calls:
                if id(frame) not in known:
                    known[id(frame)] = frames.setdefault(frame, len(frames))
            number.extend([known[id(frame)] for frame in calls])
            depth.append(len(calls))
        return cls(
            list(frames),
            np.array(number, np.int64),
            np.array(depth, np.int64),
            np.array([stack.held_bytes for stack in stacks], np.int64),
            np.array([stack.block_count for stack in stacks], np.int64),
            np.array([sites.setdefault(stack.site, len(sites)) for stack in stacks], np.int64),
            list(sites),
        )

    def own(self) -> _Calls:
        """The same with the user's own frames alone; with the innermost where there are none of them."""
        is_own = np.array([frame is not None and is_users_own(frame.file) for frame in self.frames], np.bool_)
        kept = is_own[self.number]
        stack = np.repeat(np.arange(len(self.depth)), self.depth)
        without = np.bincount(stack[kept], minlength=len(self.depth)) == 0
        kept[(np.cumsum(self.depth) - 1)[without]] = True
        return replace(self, number=self.number[kept], depth=np.bincount(stack[kept], minlength=len(self.depth)))

    def inverted(self) -> _Calls:
        """The same with the innermost frames first."""
        columns = {name: getattr(self, name)[::-1] for name in ("number", "depth", "held_bytes", "block_count", "site")}
        return replace(self, **columns)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """A tree as columns, callers first; the root is row 0. `site` is NO_ONE_SITE where there are several."""

    parent: Int64s
    frame: Int64s
    held_bytes: Int64s
    block_count: Int64s
    site: Int64s


def _tree(calls: _Calls, rest_bytes: int, nodes_max: int) -> FlameTree:
    nodes = _merge(calls, rest_bytes)
    return _flatten(calls, nodes, rest_bytes, nodes_max)


def _merge(calls: _Calls, rest_bytes: int) -> _Nodes:
    """All stacks walked at once, from the outside in, level by level: equal frames below one caller are one node."""
    starts = np.cumsum(calls.depth) - calls.depth
    at = np.zeros(len(calls.depth), np.int64)
    root = np.zeros(1, np.int64)
    levels = [_level(calls, np.arange(len(at)), root - 1, root, at)]
    levels[0].held_bytes[0] += rest_bytes
    node_count = 1
    for level in range(int(calls.depth.max(initial=0))):
        active = np.flatnonzero(calls.depth > level)
        keys = at[active] * len(calls.frames) + calls.number[starts[active] + level]
        distinct, where = np.unique(keys, return_inverse=True)
        levels.append(_level(calls, active, distinct // len(calls.frames), distinct % len(calls.frames), where))
        at[active] = node_count + where
        node_count += len(distinct)
    return _Nodes(*(np.concatenate([getattr(level, name) for level in levels]) for name in _Nodes.__slots__))


def _level(
    calls: _Calls, stacks: npt.NDArray[np.intp], parent: Int64s, frame: Int64s, where: npt.NDArray[np.intp]
) -> _Nodes:
    """The nodes of one level, `where` saying which of them each of `stacks` goes through."""
    held_bytes, block_count = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    np.add.at(held_bytes, where, calls.held_bytes[stacks])
    np.add.at(block_count, where, calls.block_count[stacks])
    site, site_max = np.full(len(parent), len(calls.sites)), np.full(len(parent), NO_ONE_SITE)
    np.minimum.at(site, where, calls.site[stacks])
    np.maximum.at(site_max, where, calls.site[stacks])
    return _Nodes(parent, frame, held_bytes, block_count, np.where(site == site_max, site, NO_ONE_SITE))


def _flatten(calls: _Calls, nodes: _Nodes, rest_bytes: int, nodes_max: int) -> FlameTree:
    """The nodes with the most bytes, callers first; children too small to be drawn become one node."""
    least = max(1, int(nodes.held_bytes[0]) // LEAST_SHARE, _bytes_of_rank(nodes.held_bytes, nodes_max))
    is_kept = nodes.held_bytes >= least
    is_kept[0] = True
    small = np.flatnonzero(~is_kept)
    summed_bytes, summed_count = np.zeros_like(nodes.held_bytes), np.zeros_like(nodes.block_count)
    np.add.at(summed_bytes, nodes.parent[small], nodes.held_bytes[small])
    np.add.at(summed_count, nodes.parent[small], nodes.block_count[small])
    summed_bytes[0] += rest_bytes
    children: dict[int, list[tuple[FlameNode, int]]] = {}
    for row in np.flatnonzero(is_kept).tolist():
        children.setdefault(int(nodes.parent[row]), []).append((_flat(calls, nodes, row), row))
        if summed_bytes[row]:
            rest = FlameNode(-1, None, int(summed_bytes[row]), int(summed_count[row]), False, None, True)
            children.setdefault(row, []).append((rest, _NO_ROW))
    return _in_order(children)


def _in_order(children: Mapping[int, Sequence[tuple[FlameNode, int]]]) -> FlameTree:
    """The nodes by row of their parent as a tree, each before its children, those with the most bytes first."""
    found: list[FlameNode] = []
    depth = 0
    waiting = [(*child, -1, 1) for child in children[-1]]
    while waiting:
        node, row, parent, level = waiting.pop()
        place, depth = len(found), max(depth, level)
        found.append(replace(node, parent=parent))
        below = sorted(children.get(row, ()), key=_order)
        waiting.extend((*child, place, level + 1) for child in below)
    return FlameTree(found, depth)


def _order(child: tuple[FlameNode, int]) -> tuple[bool, int, str, int, str]:
    """Least first, as they are taken from the end; what was summed up comes last."""
    node = child[0]
    frame = node.frame or Frame("", 0, "")
    return (not node.is_rest, node.held_bytes, frame.file, frame.line, frame.function)


def _flat(calls: _Calls, nodes: _Nodes, row: int) -> FlameNode:
    site = int(nodes.site[row])
    return FlameNode(
        -1,
        calls.frames[int(nodes.frame[row])] if row else None,
        int(nodes.held_bytes[row]),
        int(nodes.block_count[row]),
        site != NO_ONE_SITE,
        None if site == NO_ONE_SITE else calls.sites[site],
        False,
    )


def _bytes_of_rank(held_bytes: Int64s, rank: int) -> int:
    """One more than the bytes of the node that is `rank`-th by bytes; 0 where there are fewer nodes."""
    return int(np.sort(held_bytes)[-1 - rank]) + 1 if len(held_bytes) > rank else 0
