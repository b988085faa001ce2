"""`gpumem oom`: an out-of-memory error explained.

Owns: its flags. Must not know: how an error is read, judged or drawn.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpumem_cli import options
from gpumem_cli.output import print_json, print_note, print_page

if TYPE_CHECKING:
    from gpumem.trace.oom_message import OomLog

TOP = 16


@click.command()
@click.argument("log", metavar="FILE|-", callback=options.check_log)
@options.json_option
@options.top_option(TOP, "errors")
@click.option("--rank", type=options.whole_number(0), metavar="N", help="Only the errors of this rank.")
def oom(log: str, as_json: bool, top: int, rank: int | None) -> None:
    """Say why memory ran out, from the error that a program printed, with the arithmetic and what to do.

    FILE is a log with an out-of-memory error of PyTorch (any version), CuPy, gpumem, XLA (JAX, TensorFlow) or CUDA
    somewhere in it, of one process or of many ranks; - reads standard input. Of a recording, ask gpumem snapshot --at
    oom.
    """
    from gpumem.importers.oom_log import read_oom_log

    if log == "-" and sys.stdin.isatty():
        print_note("Paste the error, then press Ctrl-D.")
    print_oom(read_oom_log(log), as_json=as_json, top=top, rank=rank)


def print_oom(log: OomLog, *, as_json: bool, top: int = TOP, rank: int | None = None) -> None:
    """Prints what the messages of a log mean."""
    from gpumem.analyses.oom import explain_log

    findings = explain_log(log, rank=rank)
    if as_json:
        from gpumem.render.json_oom import render_oom as render_oom_json

        print_json(render_oom_json(findings))
    else:
        from gpumem.render.terminal.oom import render_oom

        print_page(lambda page: render_oom(findings, page, top=top))
