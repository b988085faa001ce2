"""The page: one HTML file with its text, figures, scripts and styles, which loads nothing from anywhere.

Owns: the order of the page, its document, what the browser may do. Must not know: traces, what figures look like
(assets/). The first text and figures stand in the document itself; what the scripts draw is packed behind them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from gpumem.analyses.page import PageFindings
from gpumem.render.html.changes import changes_section
from gpumem.render.html.environment import environment_section
from gpumem.render.html.ledger import ledger_section
from gpumem.render.html.licence import PLOTLY_NOTICE
from gpumem.render.html.markup import NOTHING, Html, join, tag
from gpumem.render.html.overview import header, subject, title_section, verdict_section
from gpumem.render.html.page_json import pack_page
from gpumem.render.html.payload import compress
from gpumem.render.html.preview import curves_preview
from gpumem.render.html.ranks import ranks_section

SCRIPTS = (
    "gm.js",
    "address.js",
    "canvas.js",
    "curves_parts.js",
    "curves.js",
    "flame.js",
    "sites.js",
    "bands_stack.js",
    "bands.js",
    "heap_layout.js",
    "heap_words.js",
    "heap_tables.js",
    "heap_map.js",
    "start.js",
)
"""In this order: each may use those before it, and start.js draws what they brought."""
STYLES = ("page.css", "canvas.css")


def render_page(page: PageFindings) -> str:
    """The page as text, the same for the same findings."""
    scripts = ["(() => {\n" + _asset(name) + "\n})();" for name in SCRIPTS]
    plotly = _plotly_script() if _has_figures(page) else ""
    policy = _policy([*scripts, plotly] if plotly else scripts)
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            tag("title", _title(page)),
            Html(f"<style>{''.join(map(_asset, STYLES))}</style>"),
        ]
    )
    body = join(
        [
            header(page),
            tag("main", *_sections(page)),
            _selection_bar(),
            _footer(plotly),
            _packed("gm-payload", pack_page(page)),
            _packed("gm-plotly", _packed_plotly()) if plotly else NOTHING,
            *(Html(f"<script>{script}</script>\n") for script in scripts),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}</body>\n</html>\n'


def _sections(page: PageFindings) -> Sequence[Html]:
    """The sections in the order of the page; figures are drawn into elements with data-figure."""
    sections = [title_section(page)]
    if page.diff is not None:
        sections.append(changes_section(page, page.diff))
    if len(page.traces) > 1 and len(page.views) > 1:
        sections.append(ranks_section(page))
    sections.append(verdict_section(page))
    if _has_figures(page):
        sections.append(_figure_section("over-time", "Memory over time", "curves", _preview(page)))
    if any(view.curves is not None for view in page.views):
        sections += [
            _figure_section("peak", "The peak by call", "flame"),
            _figure_section("sites", "Sites", "sites"),
            _figure_section("allocations", "The largest allocations", "bands"),
            _figure_section("heap", "The heap at a moment", "heap"),
        ]
    if any(view.ledger is not None for view in page.views):
        sections.append(ledger_section(page))
    sections.append(environment_section(page))
    return sections


def _has_figures(page: PageFindings) -> bool:
    """Whether there is anything to draw."""
    return any(view.curves is not None or len(view.readings.event) for view in page.views)


def _preview(page: PageFindings) -> Html:
    view = page.views[page.first_view]
    return curves_preview(view, page.traces[view.trace].summary.meta.duration_ns)


def _figure_section(name: str, title: str, figure: str, until: Html = NOTHING) -> Html:
    """A section with a figure that the scripts draw; `until` stands in its place before."""
    return tag(
        "section",
        tag("h2", title),
        tag("div", until or tag("p", "Being drawn …", class_="quiet"), data_figure=figure, class_="figure"),
        id=name,
    )


def _title(page: PageFindings) -> str:
    names = [subject(trace.summary) for trace in page.traces[:2]]
    more = f" and {len(page.traces) - 2} more" if len(page.traces) > 2 else ""
    return f"GPU memory of {', '.join(names)}{more}"


def _selection_bar() -> Html:
    return tag(
        "div",
        tag("span", "", id="selected-text"),
        tag("button", "Clear", type="button", id="selected-clear"),
        id="selected",
        role="status",
        hidden=True,
    )


def _packed(name: str, content: str) -> Html:
    """A part that gm.js unpacks; base64 cannot end the element."""
    return Html(f'<script type="text/plain" id="{name}">{content}</script>\n')


def _footer(plotly: str) -> Html:
    said = tag(
        "p",
        "This file holds everything it shows and loads nothing from anywhere. What is picked and zoomed stands in its "
        "address: who opens that sees the same.",
    )
    if not plotly:
        return tag("footer", said)
    match = re.search(r"plotly\.js v(\S+)\s*\*\s*Copyright (\d+-\d+)", plotly)
    version, years = (match[1], match[2]) if match else ("", "2012-2026")
    return tag(
        "footer",
        said,
        tag(
            "details",
            tag("summary", f"Drawn with plotly.js {version}, MIT licence"),
            tag("pre", PLOTLY_NOTICE.format(years=years), id="plotly-licence"),
        ),
    )


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be loaded, and no script run but ours: each is named by its hash."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@cache
def _asset(name: str) -> str:
    return (files("gpumem.render.html") / "assets" / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    return compress(_plotly_script().encode("utf-8"))


@cache
def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
