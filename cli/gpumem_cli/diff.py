"""`gpumem diff`: what changed between two traces, or between two moments of one.

Owns: its flags, which moments they mean, and its exit code. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpumem.errors import UsageError
from gpumem_cli import options

if TYPE_CHECKING:
    from gpumem.trace.model import Trace
    from gpumem.trace.moments import Moment
    from gpumem.vocabulary import DeviceOrdinal

TOP = 6


@click.command()
@click.argument("before", metavar="BEFORE", callback=options.check_path)
@click.argument("after", metavar="[AFTER]", required=False, callback=options.check_path)
@click.option(
    "--at",
    "moments",
    metavar="MOMENT",
    multiple=True,
    help="When: one for both traces, or one each by giving it twice; of one trace, the two moments to compare. "
    f"The peak by default; else {options.MOMENTS}.",
)
@options.json_option
@options.top_option(TOP, "changes")
@click.option("--by", type=click.Choice(("site", "stack")), default="site", show_default=True, help="What to list.")
@options.device_option
@click.option(
    "--fail-above",
    metavar="SIZE",
    help="Exit with 1 where a device's allocated bytes at the moments compared, or the peak of its reserved bytes "
    "(of one trace: the reserved bytes at the moments), grew by more than this.",
)
def diff(
    before: str,
    after: str | None,
    moments: tuple[str, ...],
    as_json: bool,
    top: int,
    by: str,
    device: int | None,
    fail_above: str | None,
) -> int:
    """Say what changed from BEFORE to AFTER: which sites hold more or less, what is new or gone, which settings differ.

    Stacks are compared by functions and lines, never by address. In a script that was edited between the runs they are
    found again by their functions, in another checkout by the ends of their paths.

    BEFORE and AFTER are traces as for the other commands: .gpumem files, journals, memory snapshots of PyTorch. With
    BEFORE alone, --at FIRST --at SECOND compares two moments of it.
    """
    from gpumem.analyses.diff import compare_traces
    from gpumem.analyses.diff_headline import check_growth
    from gpumem.simulate.opening import open_trace
    from gpumem.units import parse_bytes
    from gpumem_cli.output import print_json, print_page

    was_at, now_at = _two_moments(moments, is_one_trace=after is None)
    limit_bytes = None if fail_above is None else parse_bytes(fail_above)
    was = open_trace(before)
    now = was if after is None else open_trace(after)
    found = compare_traces(
        was, now, before_moment=was_at, after_moment=now_at, devices=_chosen_devices(was, now, device)
    )
    growth = None if limit_bytes is None else check_growth(found, limit_bytes)
    if as_json:
        from gpumem.render.json_diff import render_diff as write_diff

        print_json(write_diff(found, growth))
    else:
        from gpumem.render.terminal.diff import render_diff

        print_page(lambda page: render_diff(found, page, top=top, by_stack=by == "stack", growth=growth))
    return 1 if growth is not None and growth.exceeding else 0


def _two_moments(texts: tuple[str, ...], *, is_one_trace: bool) -> tuple[Moment, Moment]:
    from gpumem.trace.moments import Peak, parse_moment

    moments = [parse_moment(text) for text in texts]
    if len(moments) > 2:
        raise UsageError(f"--at was given {len(moments)} times; give it once for both traces, or once each.")
    if is_one_trace and len(moments) < 2:
        raise UsageError("To compare two moments of one trace, give both: --at MOMENT --at MOMENT; or name two traces.")
    if not moments:
        return Peak(), Peak()
    return moments[0], moments[-1]


def _chosen_devices(before: Trace, after: Trace, device: int | None) -> list[DeviceOrdinal] | None:
    """The device asked for, which one of the traces has to have."""
    try:
        return options.chosen_devices(before, device)
    except UsageError:
        return options.chosen_devices(after, device)
