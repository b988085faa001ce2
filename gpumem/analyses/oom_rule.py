"""Why memory ran out: the rule that makes a verdict of the figures of an out-of-memory error, with its arithmetic.

Owns: the rule, the sums it compares, what the program may have asked for. Must not know: where the figures come from
(oom.py), what a verdict is made of (oom_facts.py), what to do about it (oom_findings.py), words (render/oom_words.py).

With A asked, F free on the card, I idle in the allocator's reserve, X idle in private pools, E what lies outside the
allocator and could go:

    allocated > card          spill            A <= F              limit (refused although it would fit)
    reserved + A > limit      limit            A <= F + I          fragmentation
                                               A <= F + I + X      private pools
    A > all of these          capacity         A <= F + I + X + E  outside

Figures that were printed with two decimals are intervals: where the intervals overlap the verdict is not decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpumem.analyses.oom_facts import OomFacts, OomVerdict, Verdict
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin, ProcessShare
from gpumem.units import GIB, MIB

SMALL_REQUEST_BYTES_MAX = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES_MIN = 10 * MIB
SEGMENT_STEP_BYTES = 2 * MIB
CONTEXT_BYTES = GIB
"""What a process takes beside its allocator without more to be said: CUDA's context and its kernels."""
OUTSIDE_BYTES_LEAST = 256 * MIB
"""Less than that outside the allocator explains nothing: the driver's own share of a card varies by as much."""
LAST_BYTES = 64 * MIB
"""The driver promises not the last bytes it counts as free."""


def judge_refusal(facts: OomFacts) -> OomVerdict:
    """Why the request was refused, as far as the figures say; without findings."""
    sums = _sum_up(facts)
    verdict, also_possible = _Rule(sums).decide()
    return OomVerdict(
        verdict=verdict,
        facts=sums.facts,
        also_possible=also_possible,
        within_reach=sums.ordinary_reach if verdict is Verdict.FRAGMENTATION else sums.within_reach,
        short=sums.short if verdict in (Verdict.CAPACITY, Verdict.OUTSIDE) else None,
        outside=sums.outside,
        own_outside=sums.own_outside,
        others_outside=sums.others_outside,
        implied_limit=_implied_limit(sums.facts) if verdict is Verdict.LIMIT else None,
        implied_fraction=_implied_fraction(sums.facts) if verdict is Verdict.LIMIT else None,
        request_range=_request_range(facts),
        findings=(),
    )


def segment_bytes_of(request_bytes: int) -> int:
    """The segment that PyTorch's allocator obtains for a request that no idle block serves."""
    if request_bytes <= SMALL_REQUEST_BYTES_MAX:
        return SMALL_SEGMENT_BYTES
    if request_bytes < LARGE_REQUEST_BYTES_MIN:
        return LARGE_SEGMENT_BYTES
    return -(-request_bytes // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


@dataclass(frozen=True, slots=True)
class _Sums:
    facts: OomFacts
    ordinary_reach: Figure | None
    """Free and idle, without private pools."""
    within_reach: Figure | None
    short: Figure | None
    outside: Figure | None
    own_outside: Figure | None
    others_outside: Figure | None
    movable: Figure | None
    """Of what lies outside, more than a context takes."""


def _sum_up(facts: OomFacts) -> _Sums:
    known = _with_reserved(facts)
    process = this_process(known)
    ordinary = None if known.free is None else known.free + (known.idle or Figure(0))
    reach = None if ordinary is None else ordinary + (known.private_idle or Figure(0))
    outside = own = None
    if known.card is not None and known.free is not None and known.reserved is not None:
        outside = (known.card - known.free - known.reserved).floored()
        own = None if process is None else (process - known.reserved).floored()
    others = None if outside is None or own is None else (outside - own).floored()
    short = None if known.asked is None or reach is None else known.asked - reach
    return _Sums(known, ordinary, reach, short, outside, own, others, _movable(outside, own))


def _movable(outside: Figure | None, own: Figure | None) -> Figure | None:
    if outside is None:
        return None
    allowed = Figure(CONTEXT_BYTES if own is None else min(own.byte_count, CONTEXT_BYTES))
    return (outside - allowed).floored()


def _with_reserved(facts: OomFacts) -> OomFacts:
    """Of allocated, idle and reserved the one that follows from the others."""
    if facts.reserved is None and facts.allocated is not None and facts.idle is not None:
        extra = facts.private_idle or Figure(0)
        return replace(facts, reserved=facts.allocated + facts.idle + extra)
    if facts.idle is None and facts.allocated is not None and facts.reserved is not None:
        return replace(facts, idle=(facts.reserved - facts.allocated).floored())
    return facts


def this_process(facts: OomFacts) -> Figure | None:
    """What this process holds: as it says, or the one in the list that holds what the allocator reserves.

    In a container the driver knows this process by another number and lists it among the others.
    """
    if facts.process is not None:
        return facts.process
    one = listed_as_other(facts)
    return None if one is None else one.used


def listed_as_other(facts: OomFacts) -> ProcessShare | None:
    """The listed process that is most likely this one; None where the message names this one, or none fits."""
    if facts.process is not None or facts.reserved is None or not facts.reserved.byte_count:
        return None
    held = [one for one in facts.other_processes if one.used is not None and one.used.high >= facts.reserved.low]
    near = [one for one in held if one.used is not None and one.used.low <= facts.reserved.high + 8 * CONTEXT_BYTES]
    return min(near, key=lambda one: one.used.byte_count if one.used else 0, default=None)


class _Rule:
    """The rule on one set of figures; comparisons that rounding leaves open go as `choices` say, then as printed."""

    def __init__(self, sums: _Sums, choices: Sequence[bool] = ()) -> None:
        self._sums, self._facts = sums, sums.facts
        self._choices = choices
        self._open: list[bool] = []
        """The outcomes of the comparisons that were open, in order."""

    def decide(self) -> tuple[Verdict, Sequence[Verdict]]:
        """The verdict, and those that other values within the rounding would give."""
        verdict = self._verdict()
        others: dict[Verdict, None] = {}
        for position in range(len(self._choices), len(self._open)):
            flipped = [*self._open[:position], not self._open[position]]
            one, more = _Rule(self._sums, flipped).decide()
            others |= dict.fromkeys([one, *more])
        others.pop(verdict, None)
        return verdict, tuple(others)

    def _verdict(self) -> Verdict:
        facts = self._facts
        if facts.is_preemptive:
            return Verdict.LIMIT
        if facts.asked is not None and facts.asked.byte_count >= IMPOSSIBLE_BYTES:
            return Verdict.CAPACITY
        if self._exceeds(facts.allocated, facts.card) or self._exceeds(facts.reserved, facts.card):
            return Verdict.UNKNOWN if is_held_elsewhere(facts) else Verdict.SPILL
        if facts.asked is None:
            return Verdict.UNKNOWN
        if facts.limit is not None and facts.reserved is not None:
            if self._exceeds(facts.reserved + facts.asked, facts.limit):
                return self._against_limit()
            if facts.free is None:
                return Verdict.UNKNOWN
        if self._exceeds(facts.asked, facts.card):
            return Verdict.CAPACITY if not self._fits(facts.free) else Verdict.UNKNOWN
        return self._against_card()

    def _against_limit(self) -> Verdict:
        """The limit refused before the driver was asked: would the card have had the bytes?"""
        facts = self._facts
        if facts.free is None or self._fits(facts.free):
            return Verdict.LIMIT
        verdict = self._against_card()
        if verdict is Verdict.CAPACITY or facts.allocated is None or facts.asked is None:
            return verdict
        # Joining idle blocks or ending other processes would not do: the blocks in use and the request exceed it.
        return Verdict.LIMIT if self._exceeds(facts.allocated + facts.asked, facts.limit) else verdict

    def _against_card(self) -> Verdict:
        facts, sums = self._facts, self._sums
        if facts.free is None:
            return Verdict.UNKNOWN
        if self._fits(facts.free):
            return Verdict.LIMIT
        if facts.idle is None:
            return Verdict.UNKNOWN
        if self._fits(facts.free + facts.idle):
            return Verdict.FRAGMENTATION
        if facts.private_idle is not None and self._fits(sums.within_reach):
            return Verdict.PRIVATE_POOLS
        return self._beyond_reach()

    def _beyond_reach(self) -> Verdict:
        reach, movable = self._sums.within_reach, self._sums.movable
        if reach is None or movable is None or movable.byte_count < OUTSIDE_BYTES_LEAST:
            return Verdict.CAPACITY
        return Verdict.OUTSIDE if self._fits(reach + movable) else Verdict.CAPACITY

    def _fits(self, room: Figure | None) -> bool:
        asked = self._facts.asked
        if asked is None or room is None:
            return False
        return not self._exceeds(asked, room)

    def _exceeds(self, one: Figure | None, other: Figure | None) -> bool:
        if one is None or other is None:
            return False
        exceeds = one.byte_count > other.byte_count
        is_certain = one.low > other.high if exceeds else one.high <= other.low
        if is_certain:
            return exceeds
        position = len(self._open)
        self._open.append(self._choices[position] if position < len(self._choices) else exceeds)
        return self._open[-1]


def is_held_elsewhere(facts: OomFacts) -> bool:
    """Whether the allocator counts more than this process holds on a card that has room for it."""
    held = facts.reserved if facts.reserved is not None else facts.allocated
    if facts.process is None or facts.card is None or held is None:
        return False
    return facts.process.high < held.low and facts.process.low <= facts.card.high


def _implied_limit(facts: OomFacts) -> tuple[int, int] | None:
    """What was reserved fitted the limit, and with what was asked for it did not."""
    if facts.limit is not None or facts.reserved is None or facts.asked is None:
        return None
    return facts.reserved.low, (facts.reserved + facts.asked).high


def _implied_fraction(facts: OomFacts) -> float | None:
    """The round share of the card between what was reserved and what would have been; None where many would do."""
    bounds = _implied_limit(facts)
    if bounds is None or facts.card is None:
        return None
    least, most = bounds
    percents = [percent for percent in range(1, 100) if least <= facts.card.byte_count * percent / 100 < most]
    return percents[0] / 100 if len(percents) == 1 else None


def _request_range(facts: OomFacts) -> tuple[int, int] | None:
    """What the program may have asked for, from the segment that PyTorch's allocator wanted."""
    asked = facts.asked
    if asked is not None and asked.byte_count >= IMPOSSIBLE_BYTES:
        return None
    if facts.request is not None:
        return facts.request.low, facts.request.high
    if asked is None or facts.origin is not OomOrigin.TORCH or facts.is_preemptive:
        return None
    if asked.rounding_bytes == 0 and asked.byte_count == SMALL_SEGMENT_BYTES:
        return 1, SMALL_REQUEST_BYTES_MAX
    if asked.rounding_bytes == 0 and asked.byte_count == LARGE_SEGMENT_BYTES:
        return SMALL_REQUEST_BYTES_MAX + 1, LARGE_REQUEST_BYTES_MIN - 1
    if asked.high // SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES < asked.low:
        return None  # no segment has such bytes
    return max(1, asked.low - SEGMENT_STEP_BYTES + 1), asked.high
