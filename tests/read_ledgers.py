"""Ledgers read in tests: their parts by name, their findings by code.

Owns: looking into a ledger. Must not know: traces.
"""

from __future__ import annotations

from gpumem.analyses.explain import Ledger, find_ledger
from gpumem.analyses.explain_findings import Finding, FindingCode
from gpumem.analyses.ledger_parts import Component
from gpumem.heap.instants import find_instant
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import DeviceOrdinal


def ledger_of(trace: Trace, moment: str = "end", device: int = 0) -> Ledger:
    return find_ledger(trace, find_instant(trace, parse_moment(moment)), DeviceOrdinal(device))


def parts(ledger: Ledger) -> dict[str, int]:
    """Bytes by name, nested ones by their path."""
    found: dict[str, int] = {}

    def add(prefix: str, components: tuple[Component, ...]) -> None:
        for one in components:
            name = prefix + (one.moment or (f"after {one.after}" if one.after else one.name.value))
            found[name] = one.held_bytes
            add(f"{name}/", tuple(one.children))

    add("", tuple(ledger.components))
    return found


def finding(ledger: Ledger, code: FindingCode) -> Finding:
    (found,) = [one for one in ledger.findings if one.code is code]
    return found


def codes(ledger: Ledger) -> list[FindingCode]:
    return [one.code for one in ledger.findings]
