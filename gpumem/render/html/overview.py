"""The top of the page: what it is of, the switches, the verdict with its figures, the table of processes.

Owns: their HTML. Must not know: scripts, how figures are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumem.analyses.page import PageFindings, PageView
from gpumem.analyses.summary import TraceSummary
from gpumem.render.html.markup import NOTHING, Html, foreign, foreign_line, sentence, short_name, tag
from gpumem.render.html.notes import trace_notes
from gpumem.render.html.peak_bar import peak_bar
from gpumem.render.html.verdict import Figure, device_label, key_figures, oom_advice, oom_remarks, verdict_sentences
from gpumem.render.summary_words import no_device_sentence
from gpumem.render.text import without_folders
from gpumem.units import counted, format_duration

TRACES_NAMED = 3
NAVIGATION = (
    ("diff", "Changes"),
    ("ranks", "Processes"),
    ("verdict", "Verdict"),
    ("over-time", "Over time"),
    ("peak", "Peak"),
    ("sites", "Sites"),
    ("allocations", "Allocations"),
    ("heap", "Heap"),
    ("ledger", "nvidia-smi"),
    ("environment", "Environment"),
)
"""Sections by id, in the order of the page; start.js hides the links of those that a page lacks."""


def header(page: PageFindings) -> Html:
    """Title, what the page is of, navigation and switches."""
    links = [tag("a", word, href=f"#{name}") for name, word in NAVIGATION]
    return tag(
        "header",
        tag("div", tag("strong", "gpumem"), tag("span", _what(page)), class_="brand"),
        tag("nav", *links, aria_label="Sections"),
        tag("div", _view_switch(page), _theme_switch(), class_="switches"),
    )


def view_label(page: PageFindings, view: PageView) -> str:
    """A view's name among the others of its page."""
    trace = page.traces[view.trace].summary
    device = f"device {view.summary.facts.device}"
    if len(page.traces) == 1:
        return device_label(device, view.summary)
    rank = f"rank {trace.meta.rank}, " if trace.meta.rank is not None else ""
    return f"{rank}{foreign(without_folders(trace.path))}, {device}"


def title_section(page: PageFindings) -> Html:
    """What the page is of, and what a reader must know of the recording."""
    return tag("section", tag("h1", _what(page)), *_notes(page), id="title")


def verdict_section(page: PageFindings) -> Html:
    """Three sentences and the figures of each view; the scripts show one view at a time."""
    if not page.views:
        sentences = dict.fromkeys(no_device_sentence(trace.summary.meta) for trace in page.traces)
        return tag("section", *(tag("p", text, class_="verdict") for text in sentences), id="verdict")
    views = [
        tag(
            "div",
            tag("p", sentence(_about(page, view)), class_="quiet"),
            *(tag("p", sentence(text), class_="verdict") for text in verdict_sentences(view.summary, view.oom)),
            peak_bar(page, view),
            _advice(page, view),
            tag("dl", *map(_figure, key_figures(view.summary)), class_="figures"),
            data_view=str(number),
            hidden=number != page.first_view,
        )
        for number, view in enumerate(page.views)
    ]
    return tag("section", *views, id="verdict")


def subject(summary: TraceSummary) -> str:
    """What a trace is of: its program, or the trace where that is not known, without folders."""
    return foreign(without_folders(summary.meta.program or summary.path))


def _what(page: PageFindings) -> str:
    """What the page is of, in a few words."""
    if len(page.traces) == 1:
        return subject(page.traces[0].summary)
    names = [without_folders(trace.summary.path) for trace in page.traces]
    if page.diff is not None and names[0] != names[1]:
        return " → ".join(map(short_name, names))
    return counted(len(page.traces), "trace")


def _about(page: PageFindings, view: PageView) -> str:
    summary = page.traces[view.trace].summary
    parts = [view_label(page, view), counted(summary.events, "event"), format_duration(summary.meta.duration_ns)]
    if "torch" in summary.meta.versions:
        parts.append(f"PyTorch {foreign(summary.meta.versions['torch'])}")
    return " · ".join(parts)


def _notes(page: PageFindings) -> Iterator[Html]:
    """What a reader must know of each recording; said once where it is true of several."""
    of_traces: dict[str, list[str]] = {}
    for trace in page.traces:
        for note in trace_notes(trace.summary):
            of_traces.setdefault(note, []).append(foreign(trace.summary.path))
    if of_traces:
        lines = [tag("p", sentence(note), *_whose(page, paths)) for note, paths in of_traces.items()]
        yield tag("div", *lines, class_="notes")


def _whose(page: PageFindings, paths: Sequence[str]) -> Iterator[Html]:
    if len(paths) < len(page.traces):
        more = f" and {counted(len(paths) - TRACES_NAMED, 'more trace')}" if len(paths) > TRACES_NAMED else ""
        yield tag("span", f" ({', '.join(paths[:TRACES_NAMED])}{more})", class_="quiet")


def _advice(page: PageFindings, view: PageView) -> Html:
    """What to do about a refused request, numbered; then what is peculiar about its figures."""
    if view.oom is None:
        return NOTHING
    path = page.traces[view.trace].summary.path
    advice, remarks = list(oom_advice(view.oom, path)), list(oom_remarks(view.oom, path))
    parts = []
    if advice:
        parts += [tag("h3", "What to do about it"), tag("ol", *map(_finding, advice))]
    if remarks:
        parts.append(tag("ul", *map(_finding, remarks), class_="quiet"))
    return tag("div", *parts, class_="advice")


def _finding(finding: tuple[str, str | None]) -> Html:
    text, command = finding
    return tag("li", sentence(foreign_line(text)), tag("pre", command) if command else NOTHING)


def _figure(figure: Figure) -> Html:
    bar = NOTHING
    if figure.part is not None and figure.whole:
        share = max(0.0, min(100.0, 100 * figure.part / figure.whole))
        bar = tag("span", tag("span", style=f"width:{share:.1f}%"), class_="bar", aria_hidden="true")
    value = tag("dd", tag("span", figure.value, class_="value"), tag("span", sentence(figure.of), class_="of"), bar)
    return tag("div", tag("dt", figure.name), value)


def _view_switch(page: PageFindings) -> Html:
    if len(page.views) < 2:
        return NOTHING
    options = [
        tag("option", view_label(page, view), value=str(n), selected=n == page.first_view)
        for n, view in enumerate(page.views)
    ]
    return tag("label", "Shown: ", tag("select", *options, id="view-switch"))


def _theme_switch() -> Html:
    options = [tag("option", word, value=value) for value, word in (("", "Auto"), ("light", "Light"), ("dark", "Dark"))]
    return tag("label", "Theme: ", tag("select", *options, id="theme-switch"))
