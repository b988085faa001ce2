"""`gpumem doctor`: what works on this machine, and why not the rest.

Owns: its flags and exit code. Must not know: how anything is checked or drawn.
"""

from __future__ import annotations

from pathlib import Path

import click

from gpumem_cli import options

EXIT_BROKEN = 1


@click.command()
@options.json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check everything that a recording into the current folder needs; exit 1 when something is broken."""
    from gpumem.analyses.doctor import measure_machine
    from gpumem_cli.output import print_json, print_page

    diagnosis = measure_machine(Path.cwd())
    if as_json:
        from gpumem.render.json import render_diagnosis as render_diagnosis_json

        print_json(render_diagnosis_json(diagnosis))
    else:
        from gpumem.render.terminal.doctor import render_diagnosis

        print_page(lambda page: render_diagnosis(diagnosis, page))
    ctx.exit(0 if diagnosis.is_working else EXIT_BROKEN)
