"""Which event a moment is, and what is said where there is none."""

from __future__ import annotations

import pytest

from gpumem.errors import MomentUnknown
from gpumem.heap.instants import Instant, find_instant
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import DeviceOrdinal
from trace_builder import MS, MiB, TraceBuilder


def sample() -> Trace:
    builder = TraceBuilder().segment(20 * MiB).alloc("a", 100).mark("loaded").alloc("b", 900).free("a").step()
    builder.free_requested("b").alloc("c", 950).segment(20 * MiB).oom(1).mark("loaded").oom(2).free("c").step()
    return builder.free_completed("b").wait(5 * MS).build()


@pytest.mark.parametrize(
    ("text", "event", "time_ms"),
    [
        ("start", -1, 0),
        ("end", 14, 20),
        ("peak", 3, 4),
        ("peak:reserved", 8, 9),
        ("peak:active", 7, 8),
        ("oom", 9, 10),
        ("oom:2", 11, 12),
        ("mark:loaded", 2, 3),
        ("mark:loaded:2", 10, 11),
        ("step:1", 13, 14),
        ("event:6", 6, 7),
        ("4ms", 3, 4),
        ("4.9ms", 3, 4.9),
        ("0s", -1, 0),
        ("-10ms", 9, 10),
    ],
)
def test_moment_is_found(text: str, event: int, time_ms: float) -> None:
    assert find_instant(sample(), parse_moment(text)) == Instant(event, int(time_ms * MS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("oom:3", r"train.4711.gpumem has no oom:3; it has oom to oom:2\."),
        ("mark:lost", r"has no mark 'lost'; it has: mark:loaded to mark:loaded:2\."),
        ("step:2", r"has no step:2; it has step:0 to step:1\."),
        ("event:99", r"has no event:99; its events are event:0 to event:14\."),
        ("21ms", r"lasts 20.0 ms; name a time from 0s to 0.02s"),
        ("-3s", r"lasts 20.0 ms"),
    ],
)
def test_missing_moment_names_those_there_are(text: str, sentence: str) -> None:
    with pytest.raises(MomentUnknown, match=sentence):
        find_instant(sample(), parse_moment(text))


@pytest.mark.parametrize("text", ["oom", "mark:x", "step:0"])
def test_bare_trace_lists_its_moments(text: str) -> None:
    trace = TraceBuilder().segment(2 * MiB).build()
    with pytest.raises(MomentUnknown, match=r"It has start, end, peak, event:0 to event:0, 0s to 0.001s\."):
        find_instant(trace, parse_moment(text))


def test_peak_is_of_the_devices_asked_for() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100).free("a").on(device=1).segment(2 * MiB)
    trace = builder.alloc("b", 70).on().alloc("c", 60).build()
    peak = parse_moment("peak")
    assert find_instant(trace, peak, devices=[DeviceOrdinal(0)]).event == 1
    assert find_instant(trace, peak, devices=[DeviceOrdinal(1)]).event == 4
    assert find_instant(trace, peak).event == 5


def test_marks_that_are_not_named_are_counted() -> None:
    builder = TraceBuilder()
    for number in range(14):
        builder.mark(f"m{number}")
    with pytest.raises(MomentUnknown, match=r"mark:m11 and 2 more marks, event:0 to event:13"):
        find_instant(builder.build(), parse_moment("oom"))


def test_only_out_of_memory_event_is_called_that() -> None:
    with pytest.raises(MomentUnknown, match=r"has no oom:2; it has only oom\."):
        find_instant(TraceBuilder().oom(1).build(), parse_moment("oom:2"))
