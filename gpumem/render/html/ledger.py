"""The ledger of a view: nvidia-smi's figure at the peak, part by part, each bar beginning where the last one ended.

Owns: its HTML. Must not know: how a ledger is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumem.analyses.explain import Ledger
from gpumem.analyses.ledger_parts import Component, Evidence
from gpumem.analyses.page import PageFindings
from gpumem.render.explain_text import component_label, finding_text, pinned_text
from gpumem.render.html.markup import NOTHING, TEXT_CHARACTERS_MAX, Html, sentence, tag
from gpumem.render.html.verdict import site_name
from gpumem.render.text import instant_text
from gpumem.units import counted, format_bytes, format_count, format_duration, format_share

CHILDREN_SHOWN = 12
PINNED_SHOWN = 3


def ledger_section(page: PageFindings) -> Html:
    """The ledgers of the views that have one, of which the scripts show one."""
    ledgers = [
        tag("div", *_ledger(view.ledger), data_view=str(number), hidden=number != page.first_view)
        for number, view in enumerate(page.views)
        if view.ledger is not None
    ]
    return tag("section", tag("h2", "What nvidia-smi shows, part by part"), *ledgers, id="ledger")


def _ledger(ledger: Ledger) -> Iterator[Html]:
    whole = (ledger.reserved_bytes if ledger.process_bytes is None else ledger.process_bytes) or 0
    yield tag("p", sentence(_circumstances(ledger)), class_="quiet")
    name = "The allocator" if ledger.process_bytes is None else "This process"
    rows = list(_rows(ledger.components, 0, 0))
    if ledger.unexplained_bytes is not None:
        end = sum(one.held_bytes for one in ledger.components)
        rows.append(("rest", 0, ledger.unexplained_bytes, Evidence.DIFFERENCE, end))
    if rows:
        yield _table(name, whole, rows)
        yield tag("p", sentence(_sums(ledger)), class_="quiet")
    if ledger.card:
        yield _table("The card", ledger.card_bytes, list(_rows(ledger.card, 0, 0)))
    if ledger.findings:
        yield tag("ul", *(tag("li", *_finding(ledger, number)) for number in range(len(ledger.findings))))


def _circumstances(ledger: Ledger) -> str:
    """Of which moment it is, and how far the reading is from it."""
    instant = ledger.instant
    name = "peak" if ledger.reserved_bytes is not None else "end"
    at = f"At the {name}, {format_duration(instant.time_ns)} in, after event {format_count(instant.event)}"
    if instant.event < 0:
        at = f"At {instant_text(instant.time_ns, instant.event)}"
    if ledger.reading is None:
        return f"{at}."
    apart = ledger.reading.time_ns - ledger.instant.time_ns
    when = "then" if not apart else f"{format_duration(abs(apart))} {'later' if apart > 0 else 'earlier'}"
    return f"{at}; NVML read {when}."


def _sums(ledger: Ledger) -> str:
    sums = ledger.sums
    return (
        f"Measured {format_bytes(sums.measured_bytes)}, derived {format_bytes(sums.derived_bytes)}, by difference "
        f"{format_bytes(sums.difference_bytes)}: together {format_bytes(sums.sum_bytes)}."
    )


_Row = tuple[str, int, int, Evidence, int]
"""Label, depth, bytes, evidence, where the bar begins."""


def _rows(components: Sequence[Component], depth: int, begin: int) -> Iterator[_Row]:
    for component in components:
        blocks = "" if component.block_count is None else f" ({counted(component.block_count, 'block')})"
        yield (
            component_label(component, TEXT_CHARACTERS_MAX) + blocks,
            depth,
            component.held_bytes,
            component.evidence,
            begin,
        )
        largest = sorted(component.children, key=lambda child: -abs(child.held_bytes))[:CHILDREN_SHOWN]
        shown = [child for child in component.children if child in largest]
        yield from _rows(shown, depth + 1, begin)
        if len(component.children) > len(shown):
            held = sum(child.held_bytes for child in shown)
            label = counted(len(component.children) - len(shown), "more moment")
            yield label, depth + 1, component.held_bytes - held, component.evidence, begin + held
        begin += component.held_bytes


def _table(name: str, whole: int, rows: Sequence[_Row]) -> Html:
    head = tag(
        "tr",
        tag("th", name),
        tag("th", format_bytes(whole), class_="number"),
        tag("th", "of it", class_="number"),
        tag("th", "known by", class_="wide-only"),
        tag("th", "", class_="wide-only"),
    )
    body = [
        tag(
            "tr",
            tag(
                "td",
                label,
                tag("span", _known_by(evidence), class_="where narrow-only"),
                style=f"padding-left:{0.6 + 1.1 * depth:.1f}rem",
            ),
            tag("td", format_bytes(held), class_="number"),
            tag("td", format_share(held, whole), class_="number"),
            tag("td", _known_by(evidence), class_="wide-only"),
            tag("td", _bar(held, begin, whole, is_part=depth > 0), class_="span wide-only"),
        )
        for label, depth, held, evidence, begin in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_="ledger"), class_="scroll")


def _known_by(evidence: Evidence) -> str:
    return "by difference" if evidence is Evidence.DIFFERENCE else evidence.value


def _bar(held: int, begin: int, whole: int, *, is_part: bool) -> Html:
    if not held or not whole:
        return NOTHING
    left = max(0.0, min(100.0, 100 * begin / whole))
    width = max(0.2, min(100.0 - left, 100 * held / whole))
    style = f"margin-left:{left:.2f}%;width:{width:.2f}%"
    return tag("span", class_="waterfall part" if is_part else "waterfall", style=style, aria_hidden="true")


def _finding(ledger: Ledger, number: int) -> Iterator[Html]:
    finding = ledger.findings[number]
    yield tag("span", sentence(finding_text(finding)))
    if finding.pinned:
        yield tag(
            "ul",
            *(
                tag("li", sentence(f"{pinned_text(one)}: {site_name(one.largest_site)}"), class_="quiet")
                for one in finding.pinned[:PINNED_SHOWN]
            ),
        )
