"""The blocks at the peak as trees of calls: what a flame graph draws.

Owns: merging stacks into a tree, from the outside in and from the inside out. Must not know: colours, HTML.
A node's bytes are those of its children and of the blocks that were allocated in its own frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpumem.analyses.page_shares import PeakStack
from gpumem.analyses.sites import is_users_own
from gpumem.trace.model import Frame

LEAST_SHARE = 4000
"""Nodes with less than one part in so many of the peak are summed up."""


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
    skipped = _shared_start(stacks)
    full = [(stack, stack.frames[::-1][skipped:]) for stack in stacks]
    own = [(stack, _own_frames(frames)) for stack, frames in full]
    inverted = [(stack, frames[::-1]) for stack, frames in own]
    return PeakFlame(*(_tree(calls, rest_bytes, nodes_max) for calls in (own, full, inverted)))


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


def _own_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The user's own frames of a stack, outermost first; its innermost frame where it has none."""
    own = [frame for frame in frames if is_users_own(frame.file)]
    return own or frames[-1:]


@dataclass(slots=True)
class _Node:
    frame: Frame | None
    held_bytes: int = 0
    block_count: int = 0
    sites: set[Frame | None] = field(default_factory=set)
    children: dict[Frame | None, _Node] = field(default_factory=dict)
    is_rest: bool = False


def _tree(stacks: Iterable[tuple[PeakStack, Sequence[Frame]]], rest_bytes: int, nodes_max: int) -> FlameTree:
    root = _Node(None)
    for stack, frames in stacks:
        at = root
        _add(at, stack)
        for frame in frames or (None,):
            child = at.children.get(frame)
            if child is None:
                child = at.children[frame] = _Node(frame)
            at = child
            _add(at, stack)
    if rest_bytes:
        root.held_bytes += rest_bytes
    return _flatten(root, rest_bytes, nodes_max)


def _add(node: _Node, stack: PeakStack) -> None:
    node.held_bytes += stack.held_bytes
    node.block_count += stack.block_count
    if len(node.sites) < 2:
        node.sites.add(stack.site)


def _flatten(root: _Node, rest_bytes: int, nodes_max: int) -> FlameTree:
    """The nodes with the most bytes, callers first; children too small to be drawn become one node."""
    least = max(1, root.held_bytes // LEAST_SHARE, _bytes_of_rank(root, nodes_max))
    nodes: list[FlameNode] = []
    depth = 0
    waiting: list[tuple[_Node, int, int]] = [(root, -1, 1)]
    while waiting:
        node, parent, level = waiting.pop()
        place, depth = len(nodes), max(depth, level)
        nodes.append(_flat(node, parent))
        kept = [child for child in node.children.values() if child.held_bytes >= least]
        small = [child for child in node.children.values() if child.held_bytes < least]
        rest = _Node(None, sum(one.held_bytes for one in small), sum(one.block_count for one in small), is_rest=True)
        if node is root:
            rest.held_bytes += rest_bytes
        if rest.held_bytes:
            kept.append(rest)
        waiting.extend((child, place, level + 1) for child in sorted(kept, key=_order))
    return FlameTree(nodes, depth)


def _order(node: _Node) -> tuple[bool, int, str, int, str]:
    """Least first, as they are taken from the end; what was summed up comes last."""
    frame = node.frame or Frame("", 0, "")
    return (not node.is_rest, node.held_bytes, frame.file, frame.line, frame.function)


def _flat(node: _Node, parent: int) -> FlameNode:
    is_one = len(node.sites) == 1 and not node.is_rest
    site = next(iter(node.sites)) if is_one else None
    return FlameNode(parent, node.frame, node.held_bytes, node.block_count, is_one, site, node.is_rest)


def _bytes_of_rank(root: _Node, rank: int) -> int:
    """One more than the bytes of the node that is `rank`-th by bytes; 0 where there are fewer nodes."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        found.append(node.held_bytes)
        waiting.extend(node.children.values())
    found.sort(reverse=True)
    return found[rank] + 1 if len(found) > rank else 0
