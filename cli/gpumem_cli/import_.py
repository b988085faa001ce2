"""`gpumem import`: a .gpumem of a journal.

Owns: its flags and the line it says. Must not know: how formats are read.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gpumem_cli.options import check_path
from gpumem_cli.output import say_written


@click.command("import")
@click.argument("source", metavar="FILE", callback=check_path)
@click.option("-o", "--output", metavar="FILE", callback=check_path, help="The .gpumem to write.")
@click.option("-f", "--force", is_flag=True, help="Overwrite it if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when it went well.")
def import_(source: str, output: str | None, force: bool, quiet: bool) -> None:
    """Write what FILE holds as a .gpumem.

    FILE is a journal, a memory snapshot of PyTorch (pickle or JSON, compressed or not), or a .gpumem whose block sizes
    are not known yet: they are filled in.

    The journal of a program that was killed together with its recorder is finished: the trace takes its place. The
    journal of a running program is left to it; what it holds now is written to the file that -o names.
    """
    from gpumem.render.text import ending
    from gpumem.seal.importing import import_trace
    from gpumem.units import counted

    made = import_trace(Path(source), None if output is None else Path(output), force=force)
    if not quiet:
        ended = ", its program still runs" if made.is_partial else ending(made.ended_by)
        said = f": {counted(made.event_count, 'event')}{ended}"
        say_written(made.path, said, ("next:", f"gpumem summary {shlex.quote(str(made.path))}"))
