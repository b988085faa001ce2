"""`gpumem summary`: peaks, who holds them, cache behaviour, NVML beside it.

Owns: its flags. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import click

from gpumem_cli import options

GROUPS = ("site", "stack", "stream", "thread", "pool", "scope", "function", "file")
TOP = 6


@click.command()
@options.traces_argument
@options.json_option
@options.top_option(TOP, "holders of the peak")
@click.option("--by", type=click.Choice(GROUPS), help="What to group the holders by, instead of the site.")
@options.device_option
@options.from_option
@options.to_option
def summary(
    traces: tuple[str, ...],
    as_json: bool,
    top: int,
    by: str | None,
    device: int | None,
    from_moment: str | None,
    to_moment: str | None,
) -> None:
    """Say what was live at the peak, who asked for it, how the cache behaved and what NVML, nvidia-smi's library, saw.

    TRACE is a .gpumem file, the journal of a running or killed program, a memory snapshot of PyTorch, or a folder of
    them. The site of a block is the innermost line of your own code that led to it. gpumem report draws all of it.
    """
    from gpumem.analyses.holdings import GroupBy
    from gpumem.analyses.summary import summarise_trace
    from gpumem.simulate.opening import open_traces

    found = []
    for trace in (trace for path in traces for trace in open_traces(path)):
        devices = options.chosen_devices(trace, device)
        found.append(
            summarise_trace(
                trace,
                start=options.find_moment(trace, from_moment, devices),
                end=options.find_moment(trace, to_moment, devices),
                devices=devices,
                by=None if by is None else GroupBy(by),
            )
        )
    from gpumem_cli.output import print_json, print_page

    if as_json:
        from gpumem.render import json

        print_json(json.render_summaries(found))
    else:
        from gpumem.render.terminal.summary import render_summaries

        print_page(lambda page: render_summaries(found, page, top=top))
