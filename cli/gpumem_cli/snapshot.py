"""`gpumem snapshot`: the heap at a moment of a trace.

Owns: its flags. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import click

from gpumem_cli import options

TOP = 12


@click.command()
@options.trace_argument
@options.at_option(" [default: end]")
@options.json_option
@options.top_option(TOP, "segments")
@options.device_option
def snapshot(trace: str, moment: str | None, as_json: bool, top: int, device: int | None) -> None:
    """Show the segments held at a moment, the blocks in them, and the NVML reading that shows it best.

    TRACE is a .gpumem file, the journal of a running or killed program (the program itself is not asked), or a memory
    snapshot of PyTorch.
    """
    from gpumem.analyses.snapshot import find_snapshot
    from gpumem.simulate.opening import open_trace
    from gpumem_cli.output import print_json, print_page

    opened = open_trace(trace)
    devices = options.chosen_devices(opened, device)
    instant = options.find_moment(opened, "end" if moment is None else moment, devices)
    assert instant is not None, "a moment was named"
    found = find_snapshot(opened, instant, devices=devices)
    if as_json:
        from gpumem.render import json

        print_json(json.render_snapshot(found))
    else:
        from gpumem.render.terminal.snapshot import render_snapshot

        print_page(lambda page: render_snapshot(found, page, top=top))
