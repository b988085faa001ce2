"""What follows from a verdict on an out-of-memory error: what is peculiar about its figures, then what to do.

Owns: which findings a verdict has and their order, most useful first. Must not know: words (render/oom_words.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumem.analyses.oom_facts import OomCode, OomFacts, OomFinding, OomVerdict, Verdict
from gpumem.analyses.oom_rule import (
    CONTEXT_BYTES,
    LARGE_SEGMENT_BYTES,
    LAST_BYTES,
    OUTSIDE_BYTES_LEAST,
    SMALL_SEGMENT_BYTES,
    is_held_elsewhere,
    listed_as_other,
)
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin, ProcessShare

PROCESSES_NAMED = 4
_ROUNDING_ORIGINS = (OomOrigin.TORCH, OomOrigin.TRACE)


def find_oom_findings(found: OomVerdict) -> Sequence[OomFinding]:
    """The findings on a verdict: advice first, in the order in which to try it, then what explains the figures."""
    advice = {
        Verdict.CAPACITY: _on_capacity,
        Verdict.FRAGMENTATION: _on_fragmentation,
        Verdict.LIMIT: _on_limit,
        Verdict.OUTSIDE: _on_outside,
        Verdict.PRIVATE_POOLS: _on_private_pools,
        Verdict.SPILL: _on_spill,
        Verdict.UNKNOWN: _on_unknown,
    }[found.verdict]
    seen: dict[tuple[OomCode, int | None], OomFinding] = {}
    for finding in (*advice(found), *_explanations(found)):
        if finding.code is OomCode.RECORD and found.facts.origin is OomOrigin.TRACE:
            continue  # it is recorded
        seen.setdefault((finding.code, finding.pid), finding)
    return tuple(seen.values())


def _on_capacity(found: OomVerdict) -> Iterator[OomFinding]:
    if found.facts.asked is not None and found.facts.asked.byte_count >= IMPOSSIBLE_BYTES:
        yield OomFinding(OomCode.IMPOSSIBLE_REQUEST)
        return
    yield OomFinding(OomCode.NEED_LESS, _bytes(found.short))
    yield from _on_processes(found)
    yield OomFinding(OomCode.RECORD)


def _on_fragmentation(found: OomVerdict) -> Iterator[OomFinding]:
    facts = found.facts
    if _came_back(found):
        yield OomFinding(OomCode.RETRY, facts.largest_gap_bytes)
    lacking = None if facts.asked is None or facts.free is None else (facts.asked - facts.free).floored().byte_count
    if facts.has_expandable:
        yield OomFinding(OomCode.EXPANDABLE_IS_ON)
        yield OomFinding(OomCode.NEED_LESS, lacking)
    elif facts.is_expandable_refused:
        yield OomFinding(OomCode.EXPANDABLE_REFUSED)
        yield OomFinding(OomCode.SET_MAX_SPLIT)
    elif facts.is_expandable_unknown:
        yield OomFinding(OomCode.SET_MAX_SPLIT)
    elif facts.origin in (OomOrigin.TORCH, OomOrigin.TRACE, OomOrigin.GPUMEM):
        yield OomFinding(OomCode.SET_EXPANDABLE, lacking)
        yield OomFinding(OomCode.TRY_REPLAY)
    yield from _on_processes(found)
    if facts.has_expandable or facts.is_expandable_refused or facts.is_expandable_unknown:
        yield OomFinding(OomCode.RECORD)


def _on_limit(found: OomVerdict) -> Iterator[OomFinding]:
    facts = found.facts
    if is_card_short(found):
        yield OomFinding(OomCode.NEED_LESS, _over_limit_and_card(found))
        yield from _on_processes(found)
    if facts.limit is not None or facts.is_preemptive:
        yield OomFinding(OomCode.RAISE_LIMIT, _bytes(facts.free if is_card_short(found) else facts.limit))
    else:
        if _is_nearly_full(found):
            yield OomFinding(OomCode.LEAVE_ROOM, _bytes(facts.free))
        yield OomFinding(OomCode.FIND_LIMIT)
    if facts.idle is not None and facts.asked is not None and facts.idle.byte_count >= facts.asked.byte_count:
        yield OomFinding(OomCode.ALSO_FRAGMENTED, facts.idle.byte_count)
    yield OomFinding(OomCode.NEED_LESS, _over_limit(found))
    yield OomFinding(OomCode.RECORD)


def _on_outside(found: OomVerdict) -> Iterator[OomFinding]:
    yield from _on_processes(found)
    yield OomFinding(OomCode.NEED_LESS, _bytes(found.short))


def _on_private_pools(found: OomVerdict) -> Iterator[OomFinding]:
    yield OomFinding(OomCode.FREE_GRAPHS, _bytes(found.facts.private_idle))
    yield from _on_processes(found)
    yield OomFinding(OomCode.RECORD)


def _on_spill(found: OomVerdict) -> Iterator[OomFinding]:
    facts = found.facts
    held = facts.reserved if facts.reserved is not None else facts.allocated
    over = None if held is None or facts.card is None else (held - facts.card).floored().byte_count
    yield OomFinding(OomCode.NEED_LESS, over)
    yield OomFinding(OomCode.STOP_SPILLING)
    yield OomFinding(OomCode.RECORD)


def _on_unknown(found: OomVerdict) -> Iterator[OomFinding]:
    if is_held_elsewhere(found.facts):
        yield OomFinding(OomCode.HELD_ELSEWHERE, _bytes(found.facts.process))
    if found.facts.origin is OomOrigin.XLA:
        yield from _on_xla()
        return
    if found.facts.origin is OomOrigin.LIBRARY:
        yield OomFinding(OomCode.LEAVE_ROOM)
        yield OomFinding(OomCode.PAST_THE_ALLOCATOR)
    elif found.facts.origin is OomOrigin.CUPY:
        yield OomFinding(OomCode.FIND_HIDDEN_PROCESSES)
    elif is_without_figures(found.facts):
        yield OomFinding(OomCode.FIND_FIGURES)
    yield OomFinding(OomCode.WATCH_DRIVER)
    yield OomFinding(OomCode.RECORD)


def _on_xla() -> Iterator[OomFinding]:
    """PyTorch's settings do not reach XLA's allocator, and a recording does not hold its events."""
    yield OomFinding(OomCode.XLA_SHARE_CARD)
    yield OomFinding(OomCode.XLA_RAISE_SHARE)
    yield OomFinding(OomCode.NEED_LESS)
    yield OomFinding(OomCode.WATCH_DRIVER)
    yield OomFinding(OomCode.XLA_RESERVES)


def _on_processes(found: OomVerdict) -> Iterator[OomFinding]:
    """Who holds what lies outside the allocator, where that is more than a context."""
    others = other_processes(found)
    named = [one for one in others if one.pid is not None]
    large = [one for one in named if _bytes_or_zero(one) >= OUTSIDE_BYTES_LEAST]
    for one in sorted(large, key=lambda share: -_bytes_or_zero(share))[:PROCESSES_NAMED]:
        yield OomFinding(OomCode.LOOK_AT_PROCESS, _bytes(one.used), one.pid)
    own, outside = found.own_outside, found.outside
    if own is not None and own.byte_count > CONTEXT_BYTES:
        yield OomFinding(OomCode.CUT_OWN_OUTSIDE, own.byte_count)
    if outside is None:
        return
    listed = sum(_bytes_or_zero(one) for one in named)
    hidden = outside.byte_count - listed - (0 if own is None else own.byte_count)
    least = OUTSIDE_BYTES_LEAST if own is not None else OUTSIDE_BYTES_LEAST + CONTEXT_BYTES
    if hidden > least:
        yield OomFinding(OomCode.FIND_HIDDEN_PROCESSES, hidden)


def is_card_short(found: OomVerdict) -> bool:
    """Whether a limit refused what the card had not free either."""
    facts = found.facts
    if found.verdict is not Verdict.LIMIT or facts.limit is None or facts.asked is None or facts.free is None:
        return False
    return facts.asked.low > facts.free.high


def is_without_figures(facts: OomFacts) -> bool:
    """Whether these are the first words of PyTorch's error alone."""
    return facts.origin is OomOrigin.TORCH and facts.asked is None and not facts.is_preemptive


def other_processes(found: OomVerdict) -> Sequence[ProcessShare]:
    """The listed processes less this one, should it be among them."""
    own = listed_as_other(found.facts)
    return [one for one in found.facts.other_processes if one is not own]


def _explanations(found: OomVerdict) -> Iterator[OomFinding]:
    facts = found.facts
    if is_held_elsewhere(facts):
        yield OomFinding(OomCode.HELD_ELSEWHERE, _bytes(facts.process))
    if found.also_possible and found.verdict is not Verdict.UNKNOWN:
        yield OomFinding(OomCode.WITHIN_ROUNDING)
    if facts.asked is not None and facts.card is not None:
        if facts.asked.low > facts.card.high:
            yield OomFinding(OomCode.LARGER_THAN_CARD, facts.card.byte_count)
        if facts.free is not None and facts.free.low > facts.card.high:
            yield OomFinding(OomCode.FIGURES_CONTRADICT, facts.free.byte_count)
    if found.verdict is Verdict.CAPACITY and facts.idle is not None and facts.origin is OomOrigin.TORCH:
        yield OomFinding(OomCode.SETTING_CANNOT_HELP, facts.idle.byte_count)
    if found.implied_limit is not None and not _is_nearly_full(found):
        yield OomFinding(OomCode.LIMIT_NOT_NAMED, found.implied_limit[0])
    if facts.largest_gap_bytes and facts.idle is not None and not _came_back(found):
        yield OomFinding(OomCode.LARGEST_GAP, facts.largest_gap_bytes)
    if facts.other_streams_idle_bytes:
        yield OomFinding(OomCode.OTHER_STREAMS, facts.other_streams_idle_bytes)
    own = listed_as_other(facts)
    if own is not None:
        yield OomFinding(OomCode.PROCESS_IS_THIS_ONE, _bytes(own.used), own.pid)
    if facts.origin is OomOrigin.TORCH and (facts.free is None or facts.idle is None) and not _is_short(found):
        yield OomFinding(OomCode.MESSAGE_CUT)
    yield from _on_segment(found)


def _is_short(found: OomVerdict) -> bool:
    """Whether the error says no more of itself: refused before the driver was asked, or without a figure at all."""
    asked = found.facts.asked
    if is_without_figures(found.facts):
        return True
    return found.facts.is_preemptive or (asked is not None and asked.byte_count >= IMPOSSIBLE_BYTES)


def _on_segment(found: OomVerdict) -> Iterator[OomFinding]:
    facts, span = found.facts, found.request_range
    if span is None or facts.asked is None or facts.origin not in _ROUNDING_ORIGINS:
        return
    if facts.asked.byte_count == SMALL_SEGMENT_BYTES:
        yield OomFinding(OomCode.SEGMENT_SMALL, span[1])
    elif facts.asked.byte_count == LARGE_SEGMENT_BYTES and span[1] < LARGE_SEGMENT_BYTES:
        yield OomFinding(OomCode.SEGMENT_LARGE, span[1])
    elif span[0] < facts.asked.low:
        yield OomFinding(OomCode.SEGMENT_ROUNDED, span[1])


def _came_back(found: OomVerdict) -> bool:
    """Whether an idle block would have served: it came back from another stream after the last search."""
    facts = found.facts
    if facts.largest_gap_bytes is None or facts.request is None or facts.has_max_split:
        return False
    return facts.largest_gap_bytes >= facts.request.high


def _is_nearly_full(found: OomVerdict) -> bool:
    """Whether what is free on the card are its last bytes, which the driver cannot always hand out."""
    free = found.facts.free
    return free is not None and free.byte_count < LAST_BYTES


def _over_limit(found: OomVerdict) -> int | None:
    facts = found.facts
    if facts.limit is None or facts.reserved is None or facts.asked is None:
        return None
    return (facts.reserved + facts.asked - facts.limit).floored().byte_count or None


def _over_limit_and_card(found: OomVerdict) -> int | None:
    """What is lacking to the limit or on the card, whichever is more."""
    facts = found.facts
    lacking = None if facts.asked is None or facts.free is None else (facts.asked - facts.free).floored().byte_count
    return max(_over_limit(found) or 0, lacking or 0) or None


def _bytes(figure: Figure | None) -> int | None:
    return None if figure is None else figure.byte_count


def _bytes_or_zero(share: ProcessShare) -> int:
    return 0 if share.used is None else share.used.byte_count
