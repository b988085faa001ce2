"""How fine a page draws its views, so that its bytes are bounded whatever the traces are.

Owns: these numbers. Must not know: figures, HTML.
Views share what a page can carry. A page that is too large all the same is made again with twice the coarseness.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.analyses.bands import BANDS_MAX
from gpumem.analyses.heap_moments import CELLS_MAX

VIEWS_IN_FULL = 4
VIEWS_DRAWN = 32
BUCKETS = 700
SITES_LISTED = 3000
STACKS_LISTED = 4000
FLAME_NODES = 1500
MARKS_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page shows, of each view but for `views`, `sites_in_all` and `marks`."""

    views: int
    """Views with figures; of further ones the table of processes tells."""
    buckets: int
    """Of the curves, on each axis."""
    sites: int
    bands: int
    cells: int
    stacks: int
    """Stacks that bands and heap maps tell."""
    flame_nodes: int
    """Of each tree."""
    marks: int
    """Of each trace."""

    @classmethod
    def of(cls, view_count: int, coarseness: int = 1) -> Detail:
        """What a page with so many views can carry; a `coarseness` of 2 halves it."""
        views = max(1, min(view_count, VIEWS_DRAWN // coarseness))
        count = views * coarseness
        share = max(1, -(-views // VIEWS_IN_FULL)) * coarseness
        return cls(
            views,
            max(20, BUCKETS // share),
            max(20, SITES_LISTED // count),
            max(100, min(BANDS_MAX, 2 * BANDS_MAX // count)),
            max(1000, CELLS_MAX // count),
            max(50, STACKS_LISTED // count),
            max(100, FLAME_NODES // share),
            max(100, MARKS_LISTED // share),
        )
