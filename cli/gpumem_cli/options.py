"""The flags that commands share, and what they become.

Owns: one spelling and one help text a flag. Must not know: what a command does with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpumem.errors import UsageError

if TYPE_CHECKING:
    from gpumem.heap.instants import Instant
    from gpumem.trace.model import Trace
    from gpumem.vocabulary import DeviceOrdinal

_DIGITS_MAX = 18
_DECIMAL = re.compile(r"(\d{1,18}\.?\d{0,18}|\.\d{1,18})\Z", re.ASCII)

Value = TypeVar("Value")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MOMENTS = (
    "start, end, peak (of allocated; peak:reserved, peak:active), oom (oom:2 the second), mark:NAME (mark:NAME:2 the "
    "second), step:N, event:N, 12.5s, 300ms or -2s (from the end)"
)


def whole_number(least: int) -> Callable[[str | int], int]:
    """A flag's type: a whole number from `least` on; the help says nothing of the bound, the error does."""

    def convert(value: str | int) -> int:
        text = str(value)
        is_number = text.isascii() and text.isdigit()
        if is_number and len(text) > _DIGITS_MAX:
            raise click.BadParameter(f"'{text}' is larger than any there can be")
        if not is_number or int(text) < least:
            raise click.BadParameter(f"'{text}' is no whole number from {least} on")
        return int(text)

    return convert


def seconds(most: int) -> Callable[[str | float], float]:
    """A flag's type: a time from 0 to `most` seconds."""

    def convert(value: str | float) -> float:
        text = str(value)
        if _DECIMAL.match(text) is None or float(text) > most:
            raise click.BadParameter(f"'{text}' is no time from 0 to {most} seconds")
        return float(text)

    return convert


def check_path(ctx: click.Context, param: click.Parameter, value: Value) -> Value:
    """The path or paths as they were written; raises click.BadParameter for the empty one, Path's current folder."""
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise click.BadParameter("the path is empty; write . for the current folder", ctx, param)
    return value


def check_log(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The log's name as it was written; raises click.BadParameter for the empty one."""
    if not value:
        raise click.BadParameter("the name is empty; name a log, or - for standard input", ctx, param)
    return value


def check_one_moment(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """The moment, None without one; raises click.BadParameter for several, of which one would be passed over."""
    if len(values) > 1:
        raise click.BadParameter(
            "one moment is shown; to compare two: gpumem diff TRACE --at MOMENT --at MOMENT", ctx, param
        )
    return values[0] if values else None


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for scripts, instead of text.")
device_option = click.option(
    "--device", type=whole_number(0), metavar="N", help="Only this device, by the program's own number."
)
rank_option = click.option(
    "--rank", type=whole_number(0), metavar="N", help="Of a folder of several ranks, only this one."
)
from_option = click.option("--from", "from_moment", metavar="MOMENT", help=f"Only what came after: {MOMENTS}.")
to_option = click.option("--to", "to_moment", metavar="MOMENT", help="Only what came until then, in the same words.")
trace_argument = click.argument("trace", metavar="TRACE", callback=check_path)
traces_argument = click.argument("traces", metavar="TRACE...", nargs=-1, required=True, callback=check_path)


def at_option(otherwise: str) -> Callable[[Decorated], Decorated]:
    """`--at MOMENT`: the one moment that is shown; `otherwise` says in the help which one is without it."""
    return click.option(
        "--at",
        "moment",
        metavar="MOMENT",
        multiple=True,
        callback=check_one_moment,
        help=f"When: {MOMENTS}{otherwise}.",
    )


def top_option(default: int, noun: str) -> Callable[[Decorated], Decorated]:
    """`--top N`: how many of `noun` the text shows."""
    return click.option(
        "--top",
        type=whole_number(1),
        metavar="N",
        default=default,
        show_default=True,
        help=f"How many {noun} to show; JSON has all.",
    )


def chosen_devices(trace: Trace, device: int | None) -> list[DeviceOrdinal] | None:
    """The device asked for, None for all; raises UsageError, naming those it has, where the trace has not this one."""
    from gpumem.vocabulary import DeviceOrdinal

    if device is None:
        return None
    known = sorted(
        {facts.device for facts in trace.meta.devices}
        | {row.device for row in trace.streams[1:]}
        | {block.device for block in trace.initial_blocks}
        | {reading.device for reading in trace.readings}
    )
    if device not in known:
        has = f"it has {', '.join(map(str, known))}" if known else "it has none"
        raise UsageError(f"{trace.path} has no device {device}; {has}.")
    return [DeviceOrdinal(device)]


def open_ranks(path: str, rank: int | None) -> list[Trace]:
    """The trace in a file, or those in a folder, of one rank or of all; raises UsageError, naming the ranks there are,
    where there is none of this one.
    """
    from gpumem.simulate.opening import open_traces

    traces = open_traces(path)
    chosen = [trace for trace in traces if rank is None or trace.meta.rank == rank]
    if not chosen:
        ranks = sorted({trace.meta.rank for trace in traces if trace.meta.rank is not None})
        has = f"rank {', '.join(map(str, ranks))}" if ranks else "none that says its rank"
        raise UsageError(f"{path} has no trace of rank {rank}; it has {has}.")
    return chosen


def find_moment(trace: Trace, text: str | None, devices: list[DeviceOrdinal] | None) -> Instant | None:
    """The event that a moment's text means in the trace; None without text."""
    from gpumem.heap.instants import find_instant
    from gpumem.trace.moments import parse_moment

    return None if text is None else find_instant(trace, parse_moment(text), devices=devices)
