"""The grammar of moments: how a person names a point in a trace.

    start  end  peak  peak:reserved  peak:active  oom  oom:2  mark:NAME  mark:NAME:2  step:N
    event:1200  12.5s  300ms  -2s

Owns: text -> Moment and back. Must not know: which event of a given trace a moment is (heap/instants.py).
The state at a moment is the one after its event; times count from the recording's start, negative ones from its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from gpumem.errors import MomentUnknown

GRAMMAR = (
    "start, end, peak, peak:reserved, peak:active, oom, oom:2, mark:NAME, mark:NAME:2, step:N, event:N, 12.5s, 300ms, "
    "-2s"
)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3}
_TIME = re.compile(r"(-?)(\d+(?:\.\d*)?|\.\d+)(s|ms|us)\Z")
_NUMBER = re.compile(r"\d{1,18}\Z")


class PeakOf(Enum):
    """The curve whose peak is meant."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Start:
    """Before the first event."""


@dataclass(frozen=True, slots=True)
class End:
    """After the last event."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The first event with the greatest bytes of a curve."""

    of: PeakOf = PeakOf.ALLOCATED


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The n-th out-of-memory event, counted from 1."""

    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class AtMark:
    """The first mark of this name; where there is none and it ends in `:N`, the N-th of the name before."""

    name: str


@dataclass(frozen=True, slots=True)
class AtStep:
    """The end of a step, counted from 0."""

    step: int


@dataclass(frozen=True, slots=True)
class AtEvent:
    """The event at this position."""

    event: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The last event no later than this time, from the recording's start or before its end."""

    time_ns: int
    from_end: bool = False


Moment = Start | End | Peak | OutOfMemory | AtMark | AtStep | AtEvent | AtTime

_PLAIN: dict[str, Moment] = {
    "start": Start(),
    "end": End(),
    "peak": Peak(),
    "peak:allocated": Peak(),
    "peak:reserved": Peak(PeakOf.RESERVED),
    "peak:active": Peak(PeakOf.ACTIVE),
    "oom": OutOfMemory(),
}


def parse_moment(text: str) -> Moment:
    """The moment that `text` names; raises MomentUnknown with the grammar where it names none."""
    plain = _PLAIN.get(text)
    if plain is not None:
        return plain
    word, colon, rest = text.partition(":")
    if colon and word == "mark" and rest:
        return AtMark(rest)
    if colon and _NUMBER.match(rest):
        number = int(rest)
        if word == "step":
            return AtStep(number)
        if word == "event":
            return AtEvent(number)
        if word == "oom" and number > 0:
            return OutOfMemory(number)
    time = _TIME.match(text)
    if time:
        return AtTime(int(Decimal(time[2]) * _NANOSECONDS[time[3]]), from_end=bool(time[1]))
    raise MomentUnknown(f"'{text}' is no moment; write one of {GRAMMAR}.")


def format_moment(moment: Moment) -> str:
    """The words that name `moment`: what parse_moment reads as the same."""
    match moment:
        case Start():
            return "start"
        case End():
            return "end"
        case Peak(of):
            return "peak" if of is PeakOf.ALLOCATED else f"peak:{of.value}"
        case OutOfMemory(ordinal):
            return "oom" if ordinal == 1 else f"oom:{ordinal}"
        case AtMark(name):
            return f"mark:{name}"
        case AtStep(step):
            return f"step:{step}"
        case AtEvent(event):
            return f"event:{event}"
        case AtTime(time_ns, from_end):
            return f"{'-' if from_end else ''}{Decimal(time_ns) / 10**9:f}s"
