"""Who holds blocks: bytes and counts grouped by site, stack, stream, thread, pool, scope, function or file.

Owns: grouping a table of blocks. Must not know: how the blocks were found, how groups are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from gpumem.analyses.sites import NO_SITE, SiteFinder
from gpumem.heap.live import LiveTable
from gpumem.trace.model import Frame, ScopeTable, Trace
from gpumem.trace.stack_links import read_stacks
from gpumem.vocabulary import FrameId

Integers = npt.NDArray[np.int64]


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
    found_count: int = 0
    """Of the blocks, those that were there already when recording began."""


def measure_holdings(trace: Trace, blocks: LiveTable, bytes_column: str, by: GroupBy) -> list[Holding]:
    """The groups of `blocks`, most bytes first; they add up to the bytes of the blocks."""
    finder = SiteFinder(trace)
    pairs = _find_pairs(blocks, bytes_column, COLUMN_OF_GROUP.get(by))
    keys, group = _find_keys(trace, finder, by, pairs)
    held_bytes = _sums(group, pairs.held_bytes, len(keys))
    block_count = _sums(group, pairs.block_count, len(keys))
    with_stack = np.sort(group[pairs.stack > 0] << 32 | pairs.stack[pairs.stack > 0])
    is_another = np.diff(with_stack, prepend=-1) != 0
    stack_count = np.bincount(with_stack[is_another] >> 32, minlength=len(keys))
    order = np.lexsort((pairs.stack, -pairs.held_bytes, group))
    heaviest = pairs.stack[order[np.searchsorted(group[order], np.arange(len(keys)))]]
    sites, stacks = _read_sites(trace, finder, heaviest), read_stacks(trace, heaviest)
    found_count = _sums(group, pairs.found_count, len(keys)).tolist()
    figures = (column.tolist() for column in (held_bytes, block_count, stack_count))
    holdings = [Holding(*one) for one in zip(keys, sites, *figures, stacks, found_count, strict=True)]
    return sorted(holdings, key=lambda one: (-one.held_bytes, one.key is None, one.key or ""))


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The blocks that share a stack and a value of the grouping's column: what they hold, and how many they are."""

    value: Integers
    stack: Integers
    held_bytes: Integers
    block_count: Integers
    found_count: Integers


def _find_pairs(blocks: LiveTable, bytes_column: str, column: str | None) -> _Pairs:
    stack = blocks["stack"].astype(np.int64)
    value = blocks[column].astype(np.int64) if column else np.zeros_like(stack)
    pairs, where = np.unique(value << 32 | stack, return_inverse=True)
    held_bytes = _sums(where, blocks[bytes_column].astype(np.int64), len(pairs))
    block_count, found_count = (np.bincount(rows, minlength=len(pairs)) for rows in (where, where[blocks.event < 0]))
    return _Pairs(pairs >> 32, pairs & 0xFFFF_FFFF, held_bytes, block_count, found_count)


def _sums(group: npt.NDArray[np.intp], values: Integers, count: int) -> Integers:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


def _find_keys(
    trace: Trace, finder: SiteFinder, by: GroupBy, pairs: _Pairs
) -> tuple[list[str | None], npt.NDArray[np.intp]]:
    """The keys that there are, and of each pair the number of its own."""
    if by in COLUMN_OF_GROUP:
        named = pairs.value
    else:
        named = pairs.stack if by is GroupBy.STACK else finder.find_frames(pairs.stack)
    distinct, where = np.unique(named, return_inverse=True)
    write = _key_function(trace, by)
    numbers: dict[str | None, int] = {}
    number = [numbers.setdefault(write(one), len(numbers)) for one in distinct.tolist()]
    return list(numbers), np.array(number, np.int64)[where]


def _key_function(trace: Trace, by: GroupBy) -> Callable[[int], str | None]:
    """What a group is called, by the row of its site's frame, its stack or the row of the grouping's column."""

    def of_site(write: Callable[[Frame], str]) -> Callable[[int], str | None]:
        return lambda row: None if row == NO_SITE else write(trace.frames.frame(FrameId(row)))

    functions: dict[GroupBy, Callable[[int], str | None]] = {
        GroupBy.SITE: of_site(lambda site: f"{site.file}:{site.line} {site.function}"),
        GroupBy.FUNCTION: of_site(lambda site: f"{site.file} {site.function}"),
        GroupBy.FILE: of_site(lambda site: site.file),
        GroupBy.STACK: lambda stack: str(stack) if stack else None,
        GroupBy.STREAM: lambda row: _stream_name(trace, row),
        GroupBy.THREAD: lambda row: _thread_name(trace, row),
        GroupBy.POOL: lambda row: _pool_name(trace, row),
        GroupBy.SCOPE: lambda row: scope_path(trace.scopes, row),
    }
    return functions[by]


def _read_sites(trace: Trace, finder: SiteFinder, stacks: Integers) -> list[Frame | None]:
    rows = finder.find_frames(stacks).tolist()
    return [None if row == NO_SITE else trace.frames.frame(FrameId(row)) for row in rows]


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
