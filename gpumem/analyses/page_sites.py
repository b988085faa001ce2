"""The one list of sites that all figures of a page share.

Owns: the order of sites, so that a number means the same site in every figure. Must not know: figures, HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpumem.trace.model import Frame


@dataclass(frozen=True, slots=True)
class PageSites:
    """The sites of a page, by most bytes at a peak and then by name; None is "no Python stack"."""

    sites: Sequence[Frame | None]
    numbers: Mapping[Frame | None, int]

    def number(self, site: Frame | None) -> int:
        """The place of a site in the list."""
        return self.numbers[site]


def list_sites(named: Iterable[tuple[Frame | None, int]]) -> PageSites:
    """Every site named, each with the most bytes it is named with at a peak (0 where it is at none)."""
    most: dict[Frame | None, int] = {}
    for site, peak_bytes in named:
        most[site] = max(peak_bytes, most.get(site, 0))
    ordered = sorted(most, key=lambda site: (-most[site], *_name(site)))
    return PageSites(ordered, {site: number for number, site in enumerate(ordered)})


def _name(site: Frame | None) -> tuple[bool, str, int, str]:
    return (True, "", 0, "") if site is None else (False, site.file, site.line, site.function)
