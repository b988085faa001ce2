"""`gpumem explain`: nvidia-smi against the allocator, every component named.

Owns: its flags. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import click

from gpumem_cli import options


@click.command()
@options.trace_argument
@click.option(
    "--at",
    "moment",
    metavar="MOMENT",
    help=f"When: {options.MOMENTS}; without it, the peak, or now while the program runs.",
)
@options.json_option
@options.device_option
def explain(trace: str, moment: str | None, as_json: bool, device: int | None) -> None:
    """Say where the bytes go that nvidia-smi shows: a ledger from NVML's figure down to the live requests.

    TRACE is a .gpumem file, the journal of a running or killed program, or a memory snapshot of PyTorch.
    """
    _explain_trace(trace, moment, as_json, device)


def _explain_trace(trace: str, moment: str | None, as_json: bool, device: int | None) -> None:
    from gpumem.analyses.explain import find_explanation
    from gpumem.simulate.opening import open_trace
    from gpumem.trace.moments import parse_moment
    from gpumem_cli.output import print_json, print_page

    opened = open_trace(trace)
    devices = options.chosen_devices(opened, device)
    found = find_explanation(opened, None if moment is None else parse_moment(moment), devices=devices)
    if as_json:
        from gpumem.render import json_explain

        print_json(json_explain.render_explanation(found))
    else:
        from gpumem.render.terminal.explain import render_explanation

        print_page(lambda page: render_explanation(found, page))
