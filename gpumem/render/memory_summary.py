"""A live allocator's figures as a table in plain text, for a program's own output.

Owns: the layout of memory_summary(). Must not know: how anything is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpumem.analyses.memory_summary import MemorySummary
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_count

_LABEL_WIDTH = 24
_FIGURE_WIDTH = 14
_BYTE_ROWS = (
    ("allocated", "allocated_bytes"),
    ("active (with pending)", "active_bytes"),
    ("requested", "requested_bytes"),
    ("reserved", "reserved_bytes"),
    ("free parts of segments", "inactive_split_bytes"),
)
_COUNT_ROWS = (
    ("blocks allocated", "allocation"),
    ("blocks active", "active"),
    ("segments", "segment"),
    ("free parts of segments", "inactive_split"),
)
_COLUMNS = (("now", "current"), ("at most", "peak"), ("came", "allocated"), ("went", "freed"))
_POOLS = ("all", "small_pool", "large_pool")


def render_memory_summary(found: MemorySummary, *, abbreviated: bool) -> str:
    """The device, bytes and counts now, at most, come and gone, and what stands behind the idle bytes."""
    return "\n".join([*_head(found), "", *_table(found, abbreviated), "", *_ending(found)]) + "\n"


def _head(found: MemorySummary) -> Iterator[str]:
    room = f"{format_bytes(found.free_bytes)} of {format_bytes(found.memory_bytes)} free"
    limit = "" if found.limit_bytes is None else f", limit {format_bytes(found.limit_bytes)}"
    yield f"gpumem's allocator on device {found.device} ({printable(found.name)}), {room}{limit}"


def _table(found: MemorySummary, abbreviated: bool) -> Iterator[str]:
    yield f"{'bytes':<{_LABEL_WIDTH}}" + "".join(f"{title:>{_FIGURE_WIDTH}}" for title, _ in _COLUMNS)
    for label, name in _BYTE_ROWS:
        yield from _rows(found, label, name, abbreviated, format_bytes)
    yield ""
    yield f"{'counts':<{_LABEL_WIDTH}}" + "".join(f"{title:>{_FIGURE_WIDTH}}" for title, _ in _COLUMNS)
    for label, name in _COUNT_ROWS:
        yield from _rows(found, label, name, abbreviated, format_count)


def _rows(
    found: MemorySummary, label: str, name: str, abbreviated: bool, written: Callable[[int], str]
) -> Iterator[str]:
    for pool in _POOLS[: 1 if abbreviated else None]:
        shown = label if pool == "all" else f"  {pool.replace('_', ' ')}"
        figures = (written(found.statistics[f"{name}.{pool}.{column}"]) for _, column in _COLUMNS)
        yield f"{shown:<{_LABEL_WIDTH}}" + "".join(f"{figure:>{_FIGURE_WIDTH}}" for figure in figures)


def _ending(found: MemorySummary) -> Iterator[str]:
    numbers = found.statistics
    yield (
        f"idle {format_bytes(found.idle_bytes)}: {format_bytes(found.releasable_bytes)} that empty_cache() would give "
        f"back, {format_bytes(found.gap_bytes)} in gaps; pending {format_bytes(found.pending_bytes)}; slack "
        f"{format_bytes(found.slack_bytes)}"
    )
    requests = numbers["allocation.all.allocated"]
    yield (
        f"{format_count(found.cache_hit_count)} of {counted(requests, 'request')} served by the cache, "
        f"{counted(found.split_count, 'split')}; the driver was asked {format_count(numbers['num_device_alloc'])} "
        f"times and given back to {format_count(numbers['num_device_free'])} times"
    )
    yield (
        f"{format_count(numbers['num_alloc_retries'])} retried after a release, "
        f"{format_count(numbers['num_ooms'])} refused for good"
    )
