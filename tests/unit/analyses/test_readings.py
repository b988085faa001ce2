"""Which reading shows a moment: the same one for every report."""

from __future__ import annotations

from gpumem.analyses.explain import find_ledger
from gpumem.analyses.oom_event import explain_oom_event
from gpumem.analyses.readings import find_process_bytes, find_reading
from gpumem.analyses.snapshot import find_snapshot
from gpumem.analyses.summary import summarise_trace
from gpumem.heap.instants import find_instant
from gpumem.trace.moments import Peak, parse_moment
from gpumem.units import GIB, MIB
from gpumem.vocabulary import DeviceOrdinal
from tests.trace_builder import TraceBuilder

MS = 1_000_000
DEVICE = DeviceOrdinal(0)


def grown() -> TraceBuilder:
    """A reading just before a second segment, the peak in it, and a reading of both segments later."""
    builder = TraceBuilder().segment(1 * GIB).alloc("a", 1 * GIB).reading(process_bytes=1 * GIB + 518 * MIB)
    builder.wait(2 * MS).segment(1 * GIB).alloc("b", 1 * GIB)
    return builder.wait(3 * MS).free("a").reading(process_bytes=2 * GIB + 518 * MIB)


def test_later_reading_of_the_same_segments_is_preferred_to_a_nearer_one_of_fewer() -> None:
    trace = grown().build()
    reading = find_reading(trace, DEVICE, find_instant(trace, Peak()))
    assert reading is not None
    assert reading.process_bytes == 2 * GIB + 518 * MIB


def test_summary_snapshot_and_ledger_show_the_same_reading() -> None:
    trace = grown().build()
    instant = find_instant(trace, Peak())
    (summary,) = summarise_trace(trace).devices
    (snapshot,) = find_snapshot(trace, instant).devices
    ledger = find_ledger(trace, instant, DEVICE)
    assert ledger.reading is not None
    assert summary.nvml is ledger.reading
    assert snapshot.nvml is ledger.reading


def test_process_bytes_of_other_segments_are_not_those_of_the_moment() -> None:
    builder = TraceBuilder().segment(1 * GIB).reading(process_bytes=1 * GIB + 518 * MIB).mark("one")
    trace = builder.wait(2 * MS).segment(1 * GIB).mark("two").build()
    at_one, at_two = (find_instant(trace, parse_moment(f"mark:{name}")) for name in ("one", "two"))
    assert find_process_bytes(trace, DEVICE, at_one) == 1 * GIB + 518 * MIB
    assert find_process_bytes(trace, DEVICE, at_two) is None


def test_process_bytes_are_those_of_the_reading_that_shows_the_moment_or_none() -> None:
    builder = TraceBuilder().reading(process_bytes=None).wait(2 * MS).reading(process_bytes=518 * MIB)
    trace = builder.wait(2 * MS).segment(1 * GIB).build()
    start = find_instant(trace, parse_moment("start"))
    assert find_reading(trace, DEVICE, start) is trace.readings[0]
    assert find_process_bytes(trace, DEVICE, start) is None


def test_reading_outside_the_window_is_not_taken() -> None:
    trace = grown().build()
    early = trace.readings[0]
    assert find_reading(trace, DEVICE, find_instant(trace, Peak()), [early]) is early


def test_bytes_of_no_process_are_not_counted_as_this_ones_when_memory_runs_out() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(1 * GIB)
    builder.reading(process_bytes=1600 * MIB, other_processes_bytes=0, used_bytes=1609 * MIB)
    builder.oom(2 * GIB, free=3 * GIB - 1609 * MIB, total=3 * GIB)
    trace = builder.build()
    facts = explain_oom_event(trace, find_instant(trace, parse_moment("oom")).event).facts
    assert facts.process is not None
    assert facts.process.byte_count == 1600 * MIB
