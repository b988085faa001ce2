"""The demo: summary, curves and heap one below the other, each under the command that shows it.

Owns: the order and the words between. Must not know: how findings are made.
"""

from __future__ import annotations

from rich.text import Text

from gpumem.analyses.snapshot import HeapSnapshot
from gpumem.analyses.summary import TraceSummary
from gpumem.analyses.timeline import Timeline
from gpumem.render.terminal import theme
from gpumem.render.terminal.snapshot import render_snapshot
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import Page
from gpumem.render.terminal.timeline import render_timeline

INTRODUCTION = (
    "This is a recording of a small PyTorch program made on an NVIDIA H200; it comes with gpumem, and nothing runs on "
    "your GPU now. Record your own program with: gpumem run train.py"
)


def render_demo(
    summary: TraceSummary, timeline: Timeline, snapshot: HeapSnapshot, page: Page, *, segments_shown: int
) -> Text:
    """The three reports with the commands that show them for a trace of one's own."""
    text = theme.join_lines(theme.wrap(INTRODUCTION, page.width))
    for command, part in (
        ("gpumem summary TRACE", render_summaries([summary], page)),
        ("gpumem timeline TRACE", render_timeline(timeline, page)),
        ("gpumem snapshot TRACE --at peak", render_snapshot(snapshot, page, top=segments_shown)),
    ):
        text.append("\n").append(f"$ {command}\n", style=theme.COMMAND).append_text(part)
    return text
