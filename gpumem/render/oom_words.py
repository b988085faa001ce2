"""The words for a verdict on an out-of-memory error, the same wherever it is shown: terminal, JSON, page.

Owns: a sentence for each verdict. Must not know: how a verdict is found, what is advised (oom_advice.py), layout.
Numbers of figures that were printed with two decimals are written as exactly as they are known.
"""

from __future__ import annotations

from gpumem.analyses.oom_facts import OomVerdict, Verdict
from gpumem.analyses.oom_findings import is_without_figures
from gpumem.analyses.oom_rule import is_held_elsewhere
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin
from gpumem.units import format_bytes

OWNERS = {
    OomOrigin.TORCH: "PyTorch",
    OomOrigin.TORCH_ASYNC: "PyTorch",
    OomOrigin.CUPY: "CuPy",
    OomOrigin.GPUMEM: "gpumem",
    OomOrigin.XLA: "XLA",
    OomOrigin.LIBRARY: "the allocator",
    OomOrigin.TRACE: "the allocator",
}


def verdict_text(found: OomVerdict) -> str:
    """The verdict in one or two sentences, with the figures it turns on."""
    return {
        Verdict.CAPACITY: _capacity,
        Verdict.FRAGMENTATION: _fragmentation,
        Verdict.LIMIT: _limit,
        Verdict.OUTSIDE: _outside,
        Verdict.PRIVATE_POOLS: _private_pools,
        Verdict.SPILL: _spill,
        Verdict.UNKNOWN: _unknown,
    }[found.verdict](found)


def verdict_word(verdict: Verdict) -> str:
    """`private pools`."""
    return verdict.value.replace("_", " ")


def asked_text(found: OomVerdict) -> str:
    """What the program itself asked for, where that is known: `a request of 1 to 10 MiB`; else ""."""
    span, facts = found.request_range, found.facts
    if span is None or facts.asked is None:
        return ""
    least, most = span
    if least == most:
        return "" if most == facts.asked.byte_count else f"a segment for a request of {format_bytes(most)}"
    if least <= 1:
        return f"a segment for a request of up to {format_bytes(most)}"
    if format_bytes(least) == format_bytes(most) or facts.asked.rounding_bytes:
        return "a segment, the request rounded up to 2 MiB"
    return f"a segment for a request of {format_bytes(least)} to {format_bytes(most)}"


def is_rough(figure: Figure) -> bool:
    """Whether a figure is so rough that this has to be said: its rounding is more than 2 % of it."""
    return figure.rounding_bytes * 50 > figure.byte_count


def is_more_than_rounding(figure: Figure) -> bool:
    """Whether a difference is more than the rounding of the figures it comes from, or exact."""
    return figure.byte_count > figure.rounding_bytes or not figure.rounding_bytes


def _bytes(figure: Figure | None) -> str:
    if figure is None:
        return "an unknown number of bytes"
    return f"about {format_bytes(figure.byte_count)}" if is_rough(figure) else format_bytes(figure.byte_count)


def _reach(found: OomVerdict) -> str:
    """`187.94 MiB free on the card and 335.07 MiB idle in PyTorch's reserve make 523.01 MiB`."""
    facts = found.facts
    idle = f"{_bytes(facts.idle)} idle in {_owners(facts.origin)} reserve"
    pools = f" and {_bytes(facts.private_idle)} idle in private pools" if found.has_private_in_reach else ""
    return f"{_bytes(facts.free)} free on the card and {idle}{pools} make {_bytes(found.within_reach)}"


def _owners(origin: OomOrigin) -> str:
    owner = OWNERS[origin]
    return f"{owner}'s"


def _capacity(found: OomVerdict) -> str:
    facts = found.facts
    if facts.asked is not None and facts.asked.byte_count >= IMPOSSIBLE_BYTES:
        return "Capacity: more than 1 EiB (2^60 bytes) were asked for, which no memory has."
    if facts.idle is None or found.short is None:
        return (
            f"Capacity: {_bytes(facts.asked)} were asked for in one piece, more than the card's {_bytes(facts.card)}."
        )
    return (
        f"Capacity: {_bytes(found.short)} too little, and no setting can help. {_bytes(facts.asked)} were asked for; "
        f"{_reach(found)}."
    )


def _fragmentation(found: OomVerdict) -> str:
    return (
        f"Fragmentation: the bytes were there, but not in one piece. {_bytes(found.facts.asked)} were asked for; "
        f"{_reach(found)}."
    )


def _limit(found: OomVerdict) -> str:
    facts, owner = found.facts, OWNERS[found.facts.origin]
    if facts.is_preemptive:
        return (
            f"A limit: PyTorch refused {_bytes(facts.asked)} before it asked the driver, for they would exceed its "
            "per-process memory fraction."
        )
    if facts.limit is not None and facts.reserved is not None:
        free = "" if facts.free is None else f", with {_bytes(facts.free)} free on the card"
        return (
            f"A limit: {owner} may hold {_bytes(facts.limit)}, held {_bytes(facts.reserved)} and asked for "
            f"{_bytes(facts.asked)} more{free}."
        )
    return (
        f"A limit that is not named: {_bytes(facts.asked)} were refused although {_bytes(facts.free)} were free on the "
        "card."
    )


def _outside(found: OomVerdict) -> str:
    return (
        f"Outside {OWNERS[found.facts.origin]}: {_bytes(found.short)} too little, while {_bytes(found.outside)} of "
        f"the card's {_bytes(found.facts.card)} are neither free nor {_owners(found.facts.origin)}. "
        f"{_bytes(found.facts.asked)} were asked for; {_reach(found)}."
    )


def _private_pools(found: OomVerdict) -> str:
    return (
        f"Private pools: {_bytes(found.facts.private_idle)} lie idle in the pools of CUDA graphs or a MemPool, which "
        f"alone may use them. {_bytes(found.facts.asked)} were asked for; {_reach(found)}."
    )


def _spill(found: OomVerdict) -> str:
    facts = found.facts
    held = facts.reserved if facts.reserved is not None else facts.allocated
    return (
        f"Spill: {OWNERS[facts.origin]} holds {_bytes(held)} on a card of {_bytes(facts.card)}: the driver lends host "
        "memory, which is slow, and had no more to lend."
    )


def _unknown(found: OomVerdict) -> str:
    facts = found.facts
    if facts.origin is OomOrigin.XLA:
        asked = "memory was" if facts.asked is None else f"{_bytes(facts.asked)} were"
        return f"Unknown: {asked} refused by XLA's allocator, and its error gives no figures of the card."
    if facts.origin is OomOrigin.LIBRARY:
        return "Unknown: memory was refused, and this error gives no figures of the card."
    if is_without_figures(facts):
        return "Unknown: PyTorch's error begins like this, but the figures that follow there are missing here."
    if facts.asked is not None and facts.free is None:
        return f"Unknown: {_bytes(facts.asked)} were refused, and the error does not say what was free on the card."
    if facts.asked is not None and facts.idle is None:
        return (
            f"Unknown: {_bytes(facts.asked)} were refused with {_bytes(facts.free)} free on the card, and the error is "
            f"cut off before it says what lay idle in {_owners(facts.origin)} reserve."
        )
    if is_held_elsewhere(facts):
        return (
            f"Unknown: {OWNERS[facts.origin]} counts {_bytes(facts.reserved)} as its own, but this process holds "
            f"{_bytes(facts.process)} of the card's {_bytes(facts.card)}."
        )
    return "Unknown: the figures of this error contradict one another."
