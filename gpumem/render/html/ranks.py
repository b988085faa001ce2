"""The table of processes and devices that a page of several traces begins with.

Owns: its HTML. Must not know: how figures are found.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpumem.analyses.page import PageFindings
from gpumem.analyses.summary import DeviceSummary, TraceSummary
from gpumem.render.html.markup import NOTHING, Html, foreign, sentence, tag
from gpumem.render.html.overview import view_label
from gpumem.render.html.verdict import device_label
from gpumem.render.summary_words import most
from gpumem.units import counted, format_bytes, format_count, format_share
from gpumem.vocabulary import Basis

HEAD = ("Process", "Device", "Held at most", "Reserved at most", "Of the card", "Out of memory")


def ranks_section(page: PageFindings) -> Html:
    """A row for each device of each trace; picking one that has figures shows them below."""
    shown = {(view.trace, view.summary.facts.device): number for number, view in enumerate(page.views)}
    rows = []
    for number, trace in enumerate(page.traces):
        for device in trace.summary.devices:
            view = shown.get((number, device.facts.device))
            rows.append(_row(trace.summary, device, view))
    head = tag("tr", *(tag("th", word, class_="number" if at > 1 else "") for at, word in enumerate(HEAD)))
    left_out = len(rows) - len(page.views)
    text = f"Figures of {counted(left_out, 'row')} are left out: those that reserved less than the ones shown."
    return tag(
        "section",
        tag("h2", "Processes and devices"),
        tag("p", sentence(_first(page)), class_="verdict"),
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
        tag("p", text, class_="quiet") if left_out else NOTHING,
        id="ranks",
    )


def _first(page: PageFindings) -> str:
    first = page.views[page.first_view]
    reserved = most(first.summary.reserved_bytes)
    capacity = first.summary.facts.capacity_bytes
    share = f", {format_share(reserved, capacity)} of its card" if capacity else ""
    label = view_label(page, first)
    alike = sum(most(view.summary.reserved_bytes) == reserved for view in page.views)
    if alike > 1:
        most_of = f"{format_count(alike)} of {format_count(len(page.views))} reserved the most"
        return f"{most_of}, {format_bytes(reserved)} each: {label}{share}, is shown below; pick another here."
    return f"{label} reserved the most: {format_bytes(reserved)}{share}. It is shown below; pick another here."


def _row(summary: TraceSummary, device: DeviceSummary, view: int | None) -> Html:
    cells = [tag("td", text, class_="number" if at > 1 else "") for at, text in enumerate(_cells(summary, device))]
    return tag("tr", *cells) if view is None else tag("tr", *cells, data_show=str(view))


def _cells(summary: TraceSummary, device: DeviceSummary) -> Iterator[str]:
    rank = f"rank {summary.meta.rank}: " if summary.meta.rank is not None else ""
    reserved = most(device.reserved_bytes)
    word = "allocated" if device.peak.basis is Basis.ALLOCATED else "requested"
    yield f"{rank}{foreign(summary.path)}"
    yield device_label(str(device.facts.device), device)
    if not device.is_recorded:
        yield from ("not recorded", "-", "-", "-")
        return
    yield f"{format_bytes(device.peak.held_bytes)} {word}"
    yield format_bytes(reserved)
    yield format_share(reserved, device.facts.capacity_bytes or 0)
    yield counted(device.oom_count, "time") if device.oom_count else "never"
