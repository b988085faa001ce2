"""The curves as a plain picture that stands in the document, until the scripts have drawn the real one.

Owns: its SVG. Must not know: how points were chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpumem.analyses.page import PageView
from gpumem.render.html.markup import NOTHING, Html, sentence, tag
from gpumem.units import format_bytes, format_duration

COLUMNS = 600
HEIGHT = 240


def curves_preview(view: PageView, duration_ns: int) -> Html:
    """Reserved and held bytes at their most, column by column of the picture."""
    if view.curves is None:
        return NOTHING
    top = max(1, int(view.curves.reserved_bytes.max()), int(view.curves.held_bytes.max()))
    begin, end = view.beginning_ns, max(view.beginning_ns + 1, duration_ns)
    columns = np.maximum(0, view.curves.time_ns - begin) * (COLUMNS - 1) // (end - begin)
    shapes = [
        tag("path", d=_outline(columns, values, top), style=f"fill:var(--{colour});opacity:{opacity}")
        for values, colour, opacity in (
            (view.curves.reserved_bytes, "reserved", ".3"),
            (view.curves.held_bytes, "allocated", ".7"),
        )
    ]
    picture = tag("svg", *shapes, viewBox=f"0 0 {COLUMNS} {HEIGHT}", preserveAspectRatio="none", class_="preview")
    text = f"Up to {format_bytes(top)} in {format_duration(end - begin)}; the figure is being drawn …"
    return Html(picture + tag("p", sentence(text), class_="quiet"))


def _outline(columns: npt.NDArray[np.int64], values: npt.NDArray[np.int64], top: int) -> str:
    """The path around the area below the most of each column; a column without a point goes on at the last value."""
    most = np.full(COLUMNS, -1, np.int64)
    np.maximum.at(most, np.clip(columns, 0, COLUMNS - 1), values)
    last = np.zeros(COLUMNS, np.int64)
    last[np.clip(columns, 0, COLUMNS - 1)] = values
    has_point = most >= 0
    latest = np.maximum.accumulate(np.where(has_point, np.arange(COLUMNS), 0))
    heights = HEIGHT - np.where(has_point, most, last[latest]) * HEIGHT // top
    steps = np.flatnonzero(np.diff(heights)) + 1
    path = [f"M0 {HEIGHT}V{heights[0]}", *(f"H{column}V{heights[column]}" for column in steps.tolist())]
    return "".join(path) + f"H{COLUMNS}V{HEIGHT}Z"
