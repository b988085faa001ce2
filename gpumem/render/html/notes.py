"""What a reader of the figures must know of the recording: losses, how it ended, what is missing.

Owns: these sentences. Must not know: HTML.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpumem.analyses.summary import TraceSummary
from gpumem.render.html.markup import foreign, foreign_line
from gpumem.render.summary_words import recording_sentences
from gpumem.render.text import ending_sentence
from gpumem.vocabulary import TraceSource


def trace_notes(summary: TraceSummary) -> Iterator[str]:
    """One sentence each; none where the recording is whole."""
    meta = summary.meta
    if meta.running:
        yield "The program was still running when this page was made: the figures are those of the events so far."
    elif ended := ending_sentence(meta.ended_by):
        yield foreign(ended)
    yield from recording_sentences(meta, foreign_line)
    is_any_known = any(device.allocated_bytes is not None for device in summary.devices)
    if summary.events and not is_any_known and meta.source is not TraceSource.NONE:
        yield (
            "Block sizes are not known in this trace: bytes are those that were asked for, without rounding. "
            "gpumem import fills them in."
        )
