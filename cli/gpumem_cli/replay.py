"""`gpumem replay`: the allocator run again on the recorded requests.

Owns: its flags and its exit code. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import click

from gpumem_cli import options

TOP = 6


@click.command(short_help="Re-run the allocator: exact, or under other settings.")
@options.trace_argument
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of PYTORCH_CUDA_ALLOC_CONF to try instead of the recorded one; as often as needed.",
)
@click.option("--gpu-memory", metavar="SIZE", help="Try a card with this much memory, such as 24GiB.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="The run's memory limit where the trace does not say it; another than the run's is tried.",
)
@options.json_option
@options.top_option(TOP, "sites whose requests would run out of memory")
@options.device_option
def replay(
    trace: str,
    assignments: tuple[str, ...],
    gpu_memory: str | None,
    memory_limit: str | None,
    as_json: bool,
    top: int,
    device: int | None,
) -> int:
    """Run PyTorch's allocator again, not the program, on the requests that were recorded.

    Under the recorded settings every decision is checked against the recording: the address of every alloc, every
    segment event, every out-of-memory, and the heap at the end where the file holds it. Exit code 1 says that they
    differ. Each allocator of a device is followed by itself, under its own settings; where the recording does not say
    them, PyTorch's default ones are assumed, and the report says so. With --set, --gpu-memory or another --memory-limit
    it says what would have been.

    TRACE is a .gpumem file, a journal, or a memory snapshot written by PyTorch.
    """
    from gpumem.analyses.replay import Wish, find_replay
    from gpumem.importers.open_end import open_with_end
    from gpumem.simulate.settings_line import parse_assignments
    from gpumem.units import parse_capacity
    from gpumem_cli.output import print_json, print_page

    wish = Wish(
        parse_assignments(assignments),
        None if gpu_memory is None else parse_capacity(gpu_memory),
        None if memory_limit is None else parse_capacity(memory_limit),
    )
    opened = open_with_end(trace)
    found = find_replay(
        opened.trace,
        wish,
        end_heaps=opened.end_heaps,
        pools_recorded=opened.pools_recorded,
        devices=options.chosen_devices(opened.trace, device),
    )
    if as_json:
        from gpumem.render.json_replay import render_replay

        print_json(render_replay(found))
    else:
        from gpumem.render.terminal.replay import render_replay as draw_replay

        print_page(lambda page: draw_replay(found, page, top=top))
    return 1 if found.differs else 0
