"""Who holds blocks: bytes and counts grouped by site, stack, stream, thread, pool, scope, function or file.

Owns: grouping a table of blocks. Must not know: how the blocks were found, how groups are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from gpumem.analyses.sites import SiteFinder
from gpumem.heap.live import LiveTable
from gpumem.trace.model import Frame, ScopeTable, Trace
from gpumem.vocabulary import StackId


class GroupBy(Enum):
    """What blocks are grouped by."""

    SITE = "site"
    STACK = "stack"
    STREAM = "stream"
    THREAD = "thread"
    POOL = "pool"
    SCOPE = "scope"
    FUNCTION = "function"
    FILE = "file"


COLUMN_OF_GROUP = {
    GroupBy.STREAM: "stream",
    GroupBy.THREAD: "thread",
    GroupBy.POOL: "pool",
    GroupBy.SCOPE: "scope",
}
"""The event column that a grouping needs besides the stack."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The blocks of one group: `key` is None for blocks that have none (no stack, no scope)."""

    key: str | None
    site: Frame | None
    """The site of the group's heaviest stack."""
    held_bytes: int
    block_count: int
    stack_count: int
    """Distinct stacks of the group's blocks; 0 where none has one."""
    stack: Sequence[Frame]
    """The stack that holds most of the group, innermost frame first."""


def measure_holdings(trace: Trace, blocks: LiveTable, bytes_column: str, by: GroupBy) -> list[Holding]:
    """The groups of `blocks`, most bytes first; they add up to the bytes of the blocks."""
    finder = SiteFinder(trace)
    key_of = _key_function(trace, finder, by)
    groups: dict[str | None, list[_Pair]] = {}
    for pair in _pairs(blocks, bytes_column, COLUMN_OF_GROUP.get(by)):
        groups.setdefault(key_of(pair), []).append(pair)
    holdings = [_holding(trace, finder, key, pairs) for key, pairs in groups.items()]
    return sorted(holdings, key=lambda one: (-one.held_bytes, one.key is None, one.key or ""))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The blocks that share a stack and a value of the grouping's column."""

    value: int
    stack: StackId
    held_bytes: int
    block_count: int


def _pairs(blocks: LiveTable, bytes_column: str, column: str | None) -> list[_Pair]:
    stack = blocks["stack"].astype(np.uint64)
    value = blocks[column].astype(np.uint64) if column else np.zeros_like(stack)
    pairs, where = np.unique((value << np.uint64(32)) | stack, return_inverse=True)
    held_bytes = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(held_bytes, where, blocks[bytes_column].astype(np.int64))
    counts = np.bincount(where, minlength=len(pairs))
    return [
        _Pair(pair >> 32, StackId(pair & 0xFFFF_FFFF), held, count)
        for pair, held, count in zip(pairs.tolist(), held_bytes.tolist(), counts.tolist(), strict=True)
    ]


def _holding(trace: Trace, finder: SiteFinder, key: str | None, pairs: Sequence[_Pair]) -> Holding:
    heaviest = max(pairs, key=lambda pair: (pair.held_bytes, -pair.stack))
    return Holding(
        key,
        finder.site(heaviest.stack),
        sum(pair.held_bytes for pair in pairs),
        sum(pair.block_count for pair in pairs),
        len({pair.stack for pair in pairs if pair.stack}),
        tuple(trace.stack_frames(heaviest.stack)),
    )


def _key_function(trace: Trace, finder: SiteFinder, by: GroupBy) -> Callable[[_Pair], str | None]:
    def of_site(write: Callable[[Frame], str]) -> Callable[[_Pair], str | None]:
        def key(pair: _Pair) -> str | None:
            site = finder.site(pair.stack)
            return None if site is None else write(site)

        return key

    functions: dict[GroupBy, Callable[[_Pair], str | None]] = {
        GroupBy.SITE: of_site(lambda site: f"{site.file}:{site.line} {site.function}"),
        GroupBy.FUNCTION: of_site(lambda site: f"{site.file} {site.function}"),
        GroupBy.FILE: of_site(lambda site: site.file),
        GroupBy.STACK: lambda pair: str(pair.stack) if pair.stack else None,
        GroupBy.STREAM: lambda pair: _stream_name(trace, pair.value),
        GroupBy.THREAD: lambda pair: _thread_name(trace, pair.value),
        GroupBy.POOL: lambda pair: _pool_name(trace, pair.value),
        GroupBy.SCOPE: lambda pair: scope_path(trace.scopes, pair.value),
    }
    return functions[by]


def scope_path(scopes: ScopeTable, row: int) -> str | None:
    """A scope with those around it, outermost first: `train/forward`; None for row 0."""
    names: list[str] = []
    while row:
        names.append(scopes.names[row])
        row = int(scopes.parents[row])
    return "/".join(reversed(names)) if names else None


def _stream_name(trace: Trace, row: int) -> str | None:
    return f"{trace.streams[row].handle:#x}" if 0 < row < len(trace.streams) else None


def _thread_name(trace: Trace, row: int) -> str | None:
    if not 0 < row < len(trace.threads):
        return None
    thread = trace.threads[row]
    return f"{thread.name} ({thread.system_id})" if thread.name else str(thread.system_id)


def _pool_name(trace: Trace, row: int) -> str | None:
    if not 0 < row < len(trace.pools):
        return None
    pool = trace.pools[row]
    return f"({pool.first}, {pool.second})"
