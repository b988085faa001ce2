"""The peak as one bar: a part for each of the sites that held most of it, named below with its bytes and share.

Owns: its HTML. Must not know: scripts, how sites are found. gm.js gives sites the same colours.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.analyses.holdings import Holding
from gpumem.analyses.page import PageFindings, PageView
from gpumem.analyses.page_sites import PageSites
from gpumem.render.html.markup import NOTHING, Html, foreign, tag
from gpumem.render.html.verdict import site_name
from gpumem.render.text import place
from gpumem.trace.model import Frame
from gpumem.units import counted, format_bytes, format_share

SITES_SHOWN = 6
SITE_COLOURS = 20
"""As many as page.css has."""


def peak_bar(page: PageFindings, view: PageView) -> Html:
    """The sites that held most at the peak, and the others together; nothing where nothing was held."""
    peak = view.summary.peak
    if not peak.held_bytes:
        return NOTHING
    shown, others = peak.by_site[:SITES_SHOWN], peak.by_site[SITES_SHOWN:]
    parts = [_part(one.held_bytes, peak.held_bytes, _colour(page.sites, one.site)) for one in shown]
    names = [_name(page.sites, one, peak.held_bytes) for one in shown]
    if others:
        others_bytes = sum(one.held_bytes for one in others)
        parts.append(_part(others_bytes, peak.held_bytes, "idle"))
        names.append(_others(others, others_bytes, peak.held_bytes))
    return tag(
        "div",
        tag("span", *parts, class_="peak-bar", aria_hidden="true"),
        tag("div", *names, class_="legend", role="group", aria_label="Who held the peak"),
        class_="peak",
    )


def _part(held_bytes: int, whole: int, colour: str) -> Html:
    return tag("span", style=f"width:{100 * held_bytes / whole:.2f}%;background:var(--{colour})")


def _colour(sites: PageSites, site: Frame | None) -> str:
    return "none" if site is None else f"site-{sites.number(site) % SITE_COLOURS}"


def _name(sites: PageSites, holding: Holding, whole: int) -> Html:
    """A button that marks the site everywhere."""
    site = holding.site
    text, title = "no Python stack", "blocks whose event has no Python stack"
    if site is not None:
        text, title = site_name(site), f"{foreign(site.function)} ({place(foreign(site.file), site.line)})"
    return tag(
        "button",
        tag("span", class_="dot", style=f"background:var(--{_colour(sites, site)})"),
        tag("span", text, class_="name"),
        tag("span", _held(holding.held_bytes, whole), class_="quiet whole"),
        type="button",
        title=title,
        data_mark=str(sites.number(site)),
        aria_pressed="false",
    )


def _others(others: Sequence[Holding], held_bytes: int, whole: int) -> Html:
    return tag(
        "span",
        tag("span", class_="dot", style="background:var(--idle)"),
        counted(len(others), "other site"),
        tag("span", _held(held_bytes, whole), class_="quiet whole"),
    )


def _held(held_bytes: int, whole: int) -> str:
    return f"{format_bytes(held_bytes)} ({format_share(held_bytes, whole)})"
