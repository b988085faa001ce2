"""`gpumem diff`: what changed between two traces, or between two moments of one.

Owns: its flags, which moments they mean, and its exit code. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpumem.errors import UsageError
from gpumem_cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem.analyses.diff_ranks import Pairing, RankDiff
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
    f"The peak by default, each device's own; else {options.MOMENTS}.",
)
@options.json_option
@options.top_option(TOP, "changes")
@click.option("--by", type=click.Choice(("site", "stack")), default="site", show_default=True, help="What to list.")
@options.device_option
@options.rank_option
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
    rank: int | None,
    fail_above: str | None,
) -> int:
    """Say what changed from BEFORE to AFTER: which sites hold more or less, what is new or gone, which settings differ.

    Stacks are compared by functions and lines, never by address. In a script that was edited between the runs they are
    found again by their functions, in another checkout by the ends of their paths.

    BEFORE and AFTER are traces as for the other commands: .gpumem files, journals, memory snapshots of PyTorch. With
    BEFORE alone, --at FIRST --at SECOND compares two moments of it. Of two folders with the traces of several ranks,
    each rank is compared with itself: a line each, and the one that changed the most whole.
    """
    from gpumem.units import parse_bytes

    was_at, now_at = _two_moments(moments, is_one_trace=after is None)
    limit_bytes = None if fail_above is None else parse_bytes(fail_above)
    pairing = _pair_traces(before, after, rank)
    found = [_compare(was, now, (was_at, now_at), device, limit_bytes) for was, now in pairing.pairs]
    if len(found) == 1 and not pairing.before_only and not pairing.after_only:
        _print_diff(found[0], as_json, top=top, by_stack=by == "stack")
    else:
        _print_ranks(found, pairing, as_json, top=top, by_stack=by == "stack")
    return 1 if any(one.growth is not None and one.growth.exceeding for one in found) else 0


def _pair_traces(before: str, after: str | None, rank: int | None) -> Pairing:
    """The traces of both sides that belong together; each with itself where there is one side."""
    from gpumem.analyses.diff_ranks import pair_ranks

    was = options.open_ranks(before, rank)
    return pair_ranks(was, was if after is None else options.open_ranks(after, rank))


def _compare(
    was: Trace, now: Trace, moments: tuple[Moment, Moment], device: int | None, limit_bytes: int | None
) -> RankDiff:
    from gpumem.analyses.diff import compare_traces
    from gpumem.analyses.diff_headline import check_growth
    from gpumem.analyses.diff_ranks import RankDiff

    found = compare_traces(
        was, now, before_moment=moments[0], after_moment=moments[1], devices=_chosen_devices(was, now, device)
    )
    rank = was.meta.rank if was.meta.rank == now.meta.rank else None
    return RankDiff(rank, found, None if limit_bytes is None else check_growth(found, limit_bytes))


def _print_diff(found: RankDiff, as_json: bool, *, top: int, by_stack: bool) -> None:
    from gpumem_cli.output import print_json, print_page

    if as_json:
        from gpumem.render.json_diff import render_diff as write_diff

        print_json(write_diff(found.diff, found.growth))
        return
    from gpumem.render.terminal.diff import render_diff

    print_page(lambda page: render_diff(found.diff, page, top=top, by_stack=by_stack, growth=found.growth))


def _print_ranks(ranks: Sequence[RankDiff], pairing: Pairing, as_json: bool, *, top: int, by_stack: bool) -> None:
    from gpumem.analyses.diff_ranks import LoneTrace, RankDiffs
    from gpumem_cli.output import print_json, print_page

    before_only, after_only = (
        [LoneTrace(str(trace.path), trace.meta.rank) for trace in traces]
        for traces in (pairing.before_only, pairing.after_only)
    )
    found = RankDiffs(ranks, before_only, after_only)
    if as_json:
        from gpumem.render.json_diff import render_rank_diffs as write_diffs

        print_json(write_diffs(found))
        return
    from gpumem.render.terminal.diff_ranks import render_rank_diffs

    print_page(lambda page: render_rank_diffs(found, page, top=top, by_stack=by_stack))


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
