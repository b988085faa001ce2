"""`gpumem demo`: summary, timeline and snapshot of the recording that comes with gpumem.

Owns: the order of the show. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

import click

from gpumem.errors import TraceNotFound
from gpumem_cli import options

if TYPE_CHECKING:
    from rich.text import Text

    from gpumem.render.terminal.theme import Page
    from gpumem.trace.model import Trace

SAMPLE = "nine_steps.gpumem"
SEGMENTS_SHOWN = 6


@click.command()
@options.json_option
def demo(as_json: bool) -> None:
    """Show the summary, the curves and the heap of a real recording.

    It was made on an NVIDIA H200 and comes with gpumem: nothing runs on your GPU.
    """
    from gpumem.simulate.opening import open_trace
    from gpumem_cli.output import print_json, print_page

    sample = files("gpumem").joinpath("samples", SAMPLE)
    if not sample.is_file():
        raise TraceNotFound(
            f"The demo's recording samples/{SAMPLE} is missing from this installation; install gpumem again."
        )
    with as_file(sample) as path:
        trace = open_trace(path)
        if as_json:
            from gpumem.analyses.summary import summarise_trace
            from gpumem.render import json

            print_json(json.render_summaries([summarise_trace(trace)]))
            return
        print_page(lambda page: _show(trace, page))


def _show(trace: Trace, page: Page) -> Text:
    from gpumem.analyses.snapshot import find_snapshot
    from gpumem.analyses.summary import summarise_trace
    from gpumem.analyses.timeline import find_timeline
    from gpumem.heap.instants import find_instant
    from gpumem.render.terminal.demo import render_demo
    from gpumem.render.terminal.timeline import plot_width
    from gpumem.trace.moments import Peak

    return render_demo(
        summarise_trace(trace),
        find_timeline(trace, buckets=plot_width(page)),
        find_snapshot(trace, find_instant(trace, Peak())),
        page,
        segments_shown=SEGMENTS_SHOWN,
    )
