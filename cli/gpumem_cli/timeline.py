"""`gpumem timeline`: the curves of a trace in the terminal.

Owns: its flags. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpumem_cli import options

if TYPE_CHECKING:
    from rich.text import Text

    from gpumem.render.terminal.theme import Page


@click.command()
@options.trace_argument
@options.json_option
@options.device_option
@options.from_option
@options.to_option
def timeline(trace: str, as_json: bool, device: int | None, from_moment: str | None, to_moment: str | None) -> None:
    """Draw allocated and reserved bytes over time, with marks, steps and out-of-memory events.

    Begins where memory begins to move, after imports and start-up; --from start draws all of it. JSON leaves
    nothing out.

    TRACE is a .gpumem file, the journal of a running or killed program, or a memory snapshot of PyTorch.
    """
    from gpumem.analyses.timeline import find_moving_timeline, find_timeline
    from gpumem.simulate.opening import open_trace
    from gpumem_cli.output import print_json, print_page

    opened = open_trace(trace)
    devices = options.chosen_devices(opened, device)
    start = options.find_moment(opened, from_moment, devices)
    end = options.find_moment(opened, to_moment, devices)
    if as_json:
        from gpumem.render import json

        print_json(json.render_timeline(find_timeline(opened, start=start, end=end, devices=devices)))
        return
    from gpumem.render.terminal.timeline import plot_width, render_timeline

    def picture(page: Page) -> Text:
        buckets = plot_width(page)
        if start is None:
            return render_timeline(find_moving_timeline(opened, end=end, devices=devices, buckets=buckets), page)
        return render_timeline(find_timeline(opened, start=start, end=end, devices=devices, buckets=buckets), page)

    print_page(picture)
