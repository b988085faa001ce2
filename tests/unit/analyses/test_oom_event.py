"""Why memory ran out in a recording: exact figures, the heap at the event, the recordings of a real card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpumem.analyses.oom_event import explain_oom_event, is_oom_event
from gpumem.analyses.oom_facts import OomCode, OomVerdict, Verdict
from gpumem.heap.instants import find_instant
from gpumem.simulate.opening import open_trace
from gpumem.trace.model import AllocatorFacts, ColumnEvents, Trace
from gpumem.trace.moments import parse_moment
from gpumem.trace.oom_message import Figure
from gpumem.vocabulary import DeviceOrdinal, EventFlag
from recorded_snapshots import SAMPLES, recorded_bytes
from trace_builder import GiB, KiB, MiB, TraceBuilder


def verdict_at(trace: Trace, moment: str = "oom") -> OomVerdict:
    return explain_oom_event(trace, find_instant(trace, parse_moment(moment)).event)


def codes_of(found: OomVerdict) -> list[OomCode]:
    return [finding.code for finding in found.findings]


def in_pieces() -> TraceBuilder:
    """Four segments of 100 MiB, each with one block of 60 MiB: gaps of 40 MiB."""
    builder = TraceBuilder(block_bytes_known=True)
    for number in range(4):
        builder.segment(100 * MiB).alloc(f"b{number}", 60 * MiB)
    return builder


def test_figures_of_the_heap_are_exact() -> None:
    found = verdict_at(in_pieces().oom(150 * MiB, free=20 * MiB, total=GiB).build())
    assert found.verdict is Verdict.FRAGMENTATION
    assert found.also_possible == ()
    facts = found.facts
    assert (facts.allocated, facts.idle, facts.reserved) == (Figure(240 * MiB), Figure(160 * MiB), Figure(400 * MiB))
    assert found.within_reach == Figure(180 * MiB)
    assert found.outside == Figure(1024 * MiB - 20 * MiB - 400 * MiB)
    assert facts.largest_gap_bytes == 40 * MiB
    assert codes_of(found)[0] is OomCode.SET_EXPANDABLE
    assert OomCode.RECORD not in codes_of(found)


def test_request_and_the_segment_it_needs_are_told_apart() -> None:
    found = verdict_at(in_pieces().oom(3 * MiB, free=1 * MiB, total=GiB).build())
    assert (found.facts.request, found.facts.asked) == (Figure(3 * MiB), Figure(20 * MiB))
    assert found.request_range == (3 * MiB, 3 * MiB)


def test_largest_gap_is_that_of_the_pool_that_serves_the_request() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("tiny", 512 * KiB)
    builder.segment(100 * MiB).alloc("large", 60 * MiB)
    assert verdict_at(builder.oom(MiB, free=0, total=GiB).build()).facts.largest_gap_bytes == 2 * MiB - 512 * KiB


def test_block_that_fits_after_all_came_back_late() -> None:
    found = verdict_at(in_pieces().oom(30 * MiB, free=0, total=GiB).build())
    assert found.verdict is Verdict.FRAGMENTATION
    assert (found.findings[0].code, found.findings[0].byte_count) == (OomCode.RETRY, 40 * MiB)


def test_idle_block_of_another_stream_is_no_use() -> None:
    builder = in_pieces().on(stream=0x55D0).segment(100 * MiB).alloc("other", 10 * MiB).on()
    found = verdict_at(builder.oom(80 * MiB, free=0, total=GiB).build())
    assert found.facts.largest_gap_bytes == 40 * MiB
    assert found.facts.other_streams_idle_bytes == 90 * MiB
    assert OomCode.RETRY not in codes_of(found)
    assert OomCode.OTHER_STREAMS in codes_of(found)


def test_large_block_that_a_setting_keeps_whole_did_not_come_back_late() -> None:
    builder = TraceBuilder(block_bytes_known=True, settings="max_split_size_mb:20").segment(100 * MiB)
    found = verdict_at(builder.alloc("a", 60 * MiB).oom(30 * MiB, free=0, total=GiB).build())
    assert OomCode.RETRY not in codes_of(found)


def test_another_allocator_s_idle_bytes_and_settings_are_not_those_of_the_one_that_ran_out() -> None:
    builder = TraceBuilder(
        block_bytes_known=True, settings="max_split_size_mb:20", allocators=(AllocatorFacts(0, 1, ""),)
    )
    builder.segment(100 * MiB).alloc("a", 60 * MiB).segment(200 * MiB).alloc("b", 50 * MiB)
    trace = builder.oom(30 * MiB, free=0, total=GiB).build()
    assert isinstance(trace.events, ColumnEvents)
    own = EventFlag.OWN_ALLOCATOR | 1 << 8
    for flags, reserved, idle, retried in (
        ([own, own, 0, 0, own], 100 * MiB, 40 * MiB, True),
        ([0, 0, own, own, own], 200 * MiB, 150 * MiB, True),
        ([own, own, 0, 0, 0], 200 * MiB, 150 * MiB, False),
    ):
        columns = {**trace.events.columns, "flags": np.array(flags, np.uint16)}
        found = verdict_at(replace(trace, events=ColumnEvents(columns)))
        assert (found.facts.reserved, found.facts.idle) == (Figure(reserved), Figure(idle))
        assert (OomCode.RETRY in codes_of(found)) is retried


def test_private_pools_idle_bytes_are_counted_apart() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(100 * MiB).alloc("a", 90 * MiB)
    builder.on(pool=(1, 0)).segment(200 * MiB).alloc("g", 50 * MiB).on()
    found = verdict_at(builder.oom(120 * MiB, free=4 * MiB, total=GiB).build())
    assert found.verdict is Verdict.PRIVATE_POOLS
    assert (found.facts.idle, found.facts.private_idle) == (Figure(10 * MiB), Figure(150 * MiB))
    assert found.findings[0].byte_count == 150 * MiB


def test_capacity_says_what_is_missing_to_the_byte() -> None:
    found = verdict_at(in_pieces().oom(2 * GiB, free=20 * MiB, total=GiB).build())
    assert (found.verdict, found.short) == (Verdict.CAPACITY, Figure(2 * GiB - 180 * MiB))


def test_other_processes_are_what_nvml_read() -> None:
    builder = in_pieces().reading(total_bytes=8 * GiB, process_bytes=900 * MiB, other_processes_bytes=6 * GiB)
    found = verdict_at(builder.oom(3 * GiB, free=1 * GiB, total=8 * GiB).build())
    assert found.verdict is Verdict.OUTSIDE
    assert found.others_outside == Figure(6 * GiB)
    assert found.own_outside == Figure(1 * GiB - 400 * MiB)


def test_blocks_whose_bytes_are_not_known_leave_an_interval() -> None:
    builder = TraceBuilder().segment(100 * MiB).alloc("a", 60 * MiB)
    facts = verdict_at(builder.oom(150 * MiB, free=20 * MiB, total=GiB).build()).facts
    assert facts.allocated is not None
    assert (facts.allocated.low, facts.allocated.high) == (60 * MiB, 61 * MiB)


def test_only_an_out_of_memory_event_of_the_device_is_one() -> None:
    trace = in_pieces().oom(MiB).build()
    last = find_instant(trace, parse_moment("oom")).event
    assert is_oom_event(trace, last, DeviceOrdinal(0))
    assert not is_oom_event(trace, last, DeviceOrdinal(1))
    assert not is_oom_event(trace, find_instant(trace, parse_moment("start")).event, DeviceOrdinal(0))
    assert not is_oom_event(trace, find_instant(trace, parse_moment("peak")).event, DeviceOrdinal(0))


def test_sample_ran_into_its_limit() -> None:
    found = verdict_at(open_trace(str(SAMPLES / "out_of_memory.gpumem")))
    assert (found.verdict, found.facts.limit) == (Verdict.LIMIT, Figure(GiB))
    assert (found.facts.asked, found.facts.reserved) == (Figure(120 * MiB), Figure(916 * MiB))
    assert found.facts.idle == Figure(334 * MiB)
    assert codes_of(found)[:2] == [OomCode.RAISE_LIMIT, OomCode.ALSO_FRAGMENTED]


@pytest.mark.parametrize(
    ("name", "verdict", "idle_bytes"),
    [
        ("exhaust", Verdict.CAPACITY, 0),
        ("oom", Verdict.LIMIT, 10941440),
        ("fuzz_cap", Verdict.LIMIT, 822416384),
        ("mempools", Verdict.LIMIT, 0),
        ("split_edges64", Verdict.LIMIT, 0),
    ],
)
def test_recordings_of_a_card_have_the_right_verdict(
    name: str, verdict: Verdict, idle_bytes: int, tmp_path: Path
) -> None:
    """All but `exhaust` had a limit that PyTorch's snapshots do not record: the card had the bytes."""
    path = tmp_path / f"{name}.pickle"
    path.write_bytes(recorded_bytes(name))
    found = verdict_at(open_trace(str(path)))
    assert found.verdict is verdict
    assert found.facts.idle == Figure(idle_bytes)
    if name == "oom":
        assert found.implied_limit is not None
        least, below = found.implied_limit
        assert least <= 2_000_000_000 < below  # what the recording's limit was
    if name == "exhaust":
        assert found.short == Figure(4294967296 - 3528589312)
