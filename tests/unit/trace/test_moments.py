"""The grammar of moments."""

from __future__ import annotations

import pytest

from gpumem.errors import MomentUnknown
from gpumem.trace.moments import (
    AtEvent,
    AtMark,
    AtStep,
    AtTime,
    End,
    Moment,
    OutOfMemory,
    Peak,
    PeakOf,
    Start,
    parse_moment,
)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("start", Start()),
        ("end", End()),
        ("peak", Peak(PeakOf.ALLOCATED)),
        ("peak:reserved", Peak(PeakOf.RESERVED)),
        ("peak:active", Peak(PeakOf.ACTIVE)),
        ("oom", OutOfMemory(1)),
        ("oom:2", OutOfMemory(2)),
        ("mark:before backward", AtMark("before backward")),
        ("mark:a:b", AtMark("a:b")),
        ("step:0", AtStep(0)),
        ("event:1200", AtEvent(1200)),
        ("12.5s", AtTime(12_500_000_000)),
        ("300ms", AtTime(300_000_000)),
        ("7us", AtTime(7_000)),
        ("-2s", AtTime(2_000_000_000, from_end=True)),
        (".1s", AtTime(100_000_000)),
    ],
)
def test_moment_is_read(text: str, moment: Moment) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["", "later", "mark:", "step:-1", "oom:0", "event:x", "12", "1h", "peak:free", "5 s"])
def test_anything_else_names_the_grammar(text: str) -> None:
    with pytest.raises(MomentUnknown, match=r"is no moment; write one of start, end, peak"):
        parse_moment(text)
