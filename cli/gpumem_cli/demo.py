"""`gpumem demo`: the nine steps on gpumem's own allocator, recorded and explained.

Owns: its flags, the choice of the device, the order of the show. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpumem_cli import options

if TYPE_CHECKING:
    from gpumem.allocator import Allocator

SHOWN_AT = "mark:5 c on the GPU again"
DEMO_STEM = "demo"
NEEDED_BYTES = 4 << 30
"""What must be free on a GPU: three segments of 1 GiB and what CUDA itself takes."""


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=options.check_path,
    help="The trace to write [default: demo.gpumem; where that is taken, demo.2.gpumem and so on].",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing trace.")
@click.option(
    "--report", "page", metavar="FILE", callback=options.check_path, help="Write the page of gpumem report too."
)
@options.json_option
def demo(output: str | None, force: bool, page: str | None, as_json: bool) -> None:
    """Allocate and free 1 GiB at a time, and say why each figure moves or stays.

    It runs on the first GPU, or where there is none on a simulated one, for some seconds.
    """
    from gpumem.analyses.demo import find_demo
    from gpumem.simulate.opening import open_trace
    from gpumem_cli.output import print_json, print_page, say_written
    from gpumem_cli.report import find_target, write_report

    path = _find_path(output, force=force)
    target = None if page is None else find_target(page, str(path), force=force, option="--report")
    why_simulated = record_steps(path, force=force)
    trace = open_trace(path)
    found = find_demo(trace, why_simulated=why_simulated)
    if target is not None:
        write_report([trace], target, force=force)
    if as_json:
        from gpumem.render import json

        print_json(json.render_demo(found))
        return

    from gpumem.analyses.snapshot import find_snapshot
    from gpumem.analyses.summary import summarise_trace
    from gpumem.heap.instants import find_instant
    from gpumem.render.terminal.demo import render_demo
    from gpumem.trace.moments import parse_moment

    snapshot = find_snapshot(trace, find_instant(trace, parse_moment(SHOWN_AT)))
    summary = summarise_trace(trace)
    has_page = target is not None
    print_page(lambda width: render_demo(found, summary, snapshot, width, shown_at=SHOWN_AT, has_page=has_page))
    if target is not None:
        say_written(target, "; it opens in any browser")


def record_steps(path: Path, *, force: bool) -> str | None:
    """Records the steps into `path`; why the GPU was a simulated one, None where it was real."""
    from gpumem.abi.gpus import count_gpus
    from gpumem.recorder.marks import mark
    from gpumem.recorder.session import record
    from gpumem.samples.nine_steps import run_steps

    _, why_simulated = count_gpus()
    with record(path, force=force, nvml_interval=0.1 if why_simulated is None else 0):
        gpu, why_simulated = _open_allocator(why_simulated)
        with gpu:
            run_steps(gpu, mark)
    return why_simulated


def _open_allocator(why_simulated: str | None) -> tuple[Allocator, str | None]:
    """The allocator on the first GPU where that can hold the steps, else on a simulated one with the reason."""
    from gpumem.allocator import Allocator
    from gpumem.errors import DeviceUnavailable
    from gpumem.units import format_bytes

    if why_simulated is None:
        try:
            gpu = Allocator("cuda")
        except DeviceUnavailable as error:
            why_simulated = str(error)
        else:
            free_bytes = gpu.free_bytes()
            if free_bytes >= NEEDED_BYTES:
                return gpu, None
            gpu.close()
            why_simulated = f"GPU 0 has {format_bytes(free_bytes)} free, and {format_bytes(NEEDED_BYTES)} are needed"
    return Allocator("simulated"), why_simulated


def _find_path(output: str | None, *, force: bool) -> Path:
    """The trace to write; raises what check_writable and check_target do."""
    from gpumem.recorder.output import check_target
    from gpumem.recorder.spec import TRACE_SUFFIX, find_free_stem
    from gpumem.trace.targets import check_writable

    folder = Path() if output is None else Path(output)
    if not folder.is_dir():
        check_writable(folder.parent)
        check_target(folder, force=force)
        return folder
    return folder / ((DEMO_STEM if force else find_free_stem(folder, DEMO_STEM)) + TRACE_SUFFIX)
