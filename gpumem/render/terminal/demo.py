"""The demo: the table of the nine steps, then the summary and the heap of their recording under the commands for them.

Owns: the order and the words between. Must not know: how findings are made.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from gpumem.analyses.demo import Demo, DemoStep
from gpumem.analyses.snapshot import HeapSnapshot
from gpumem.analyses.summary import TraceSummary
from gpumem.render.terminal import theme
from gpumem.render.terminal.snapshot import render_snapshot
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import Page, fit_right
from gpumem.render.text import printable
from gpumem.units import MIB, format_bytes, format_count

_COLUMNS = (("allocated", 9), ("reserved", 8), ("NVML process", 12))
_GAP = 2


_ON_ONE_PAGE = "All of it on one page, with curves, flame graph and heap map, for the browser:"


def render_demo(
    demo: Demo, summary: TraceSummary, snapshot: HeapSnapshot, page: Page, *, shown_at: str, has_page: bool = False
) -> Text:
    """The steps with why each figure moved, two reports with their commands, and the command for a page, unless that
    has been written already.
    """
    text = render_steps(demo, page)
    trace = shlex.quote(printable(demo.path))
    for command, part in (
        (f"gpumem summary {trace}", render_summaries([summary], page)),
        (f"gpumem snapshot {trace} --at {shlex.quote(shown_at)}", render_snapshot(snapshot, page)),
    ):
        text.append("\n").append(f"$ {command}\n", style=theme.COMMAND).append_text(part)
    if has_page:
        return text
    for line in ("", *theme.wrap(_ON_ONE_PAGE, page)):
        text.append(f"{line}\n")
    return text.append(f"$ gpumem report {trace}\n", style=theme.COMMAND)


def render_steps(demo: Demo, page: Page) -> Text:
    """What runs where, the table of the steps, and what NVML counts beside it."""
    return theme.join_lines([*theme.wrap(_introduction(demo), page), "", *_table(demo, page), *_ending(demo, page)])


def _introduction(demo: Demo) -> str:
    what = "Nine steps that move 1 GiB at a time, allocated and recorded by gpumem's own allocator"
    capacity = "" if demo.device.capacity_bytes is None else f" ({format_bytes(demo.device.capacity_bytes)})"
    name = printable(demo.device.name or "GPU")
    if demo.why_simulated is None:
        return f"{what} on GPU {demo.device.device}, {name}{capacity}."
    return f"{what} on a simulated GPU{capacity}, since {printable(demo.why_simulated)}: only the driver is pretended."


def _table(demo: Demo, page: Page) -> Iterator[Text | str]:
    name_width = max(len("MiB after step"), *(len(step.name) for step in demo.steps)) + _GAP
    titles = Text("".join(fit_right(title, width + _GAP) for title, width in _COLUMNS))
    for line in theme.labelled("MiB after step", name_width, titles, page):
        line.stylize(theme.TITLE)
        yield line
    for step in demo.steps:
        cells = zip(_cells(step), _COLUMNS, strict=True)
        figures = Text("".join(fit_right(cell, width + _GAP) for cell, (_, width) in cells))
        yield from theme.labelled(printable(step.name), name_width, figures, page)
        yield from (Text(line, style=theme.QUIET) for line in theme.wrap_behind(" " * 4, step.reason, page))


def _cells(step: DemoStep) -> tuple[str, str, str]:
    figures = (step.allocated_bytes, step.reserved_bytes, step.nvml_process_bytes)
    allocated, reserved, process = ("-" if figure is None else format_count(figure // MIB) for figure in figures)
    return allocated, reserved, process


def _ending(demo: Demo, page: Page) -> list[str]:
    if demo.context_bytes is None:
        why = "there is no GPU to be asked" if demo.why_simulated is not None else "NVML did not list this process"
        return theme.wrap(f"NVML process: not known, since {why}.", page)
    return theme.wrap(
        f"NVML counts what is reserved and {format_bytes(demo.context_bytes)} more: the process's CUDA context, which "
        "no allocator knows.",
        page,
    )
