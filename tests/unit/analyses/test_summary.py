"""Findings of the summary, in numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from explained_traces import unrecorded_trace
from gpumem.analyses.holdings import GroupBy
from gpumem.analyses.summary import DeviceSummary, EndAndPeak, summarise_trace
from gpumem.analyses.timeline import find_timeline
from gpumem.errors import UsageError
from gpumem.heap.instants import find_instant
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import Basis, BlockState, DeviceOrdinal, TraceSource
from trace_builder import MS, GiB, KiB, MiB, TraceBuilder
from training_trace import training_trace

A = [("/home/a/train.py", 1, "first")]
B = [("/home/a/train.py", 2, "second")]


def only_device(trace: Trace) -> DeviceSummary:
    (device,) = summarise_trace(trace).devices
    return device


def test_native_trace_adds_up_requests_and_leaves_blocks_unknown() -> None:
    builder = TraceBuilder().segment(20 * MiB).alloc("a", 700, stack=A).alloc("b", 5000, stack=B)
    device = only_device(builder.free("a").build())
    assert device.requested_bytes == EndAndPeak(5000, 5700)
    assert device.reserved_bytes == EndAndPeak(20 * MiB, 20 * MiB)
    assert device.allocated_bytes is None
    assert device.active_bytes is None
    assert device.peak.basis is Basis.REQUESTED
    assert [(one.site.line if one.site else None, one.held_bytes) for one in device.peak.by_site] == [
        (2, 5000),
        (1, 700),
    ]
    assert device.headroom_bytes == 140 * GiB - 20 * MiB


def test_known_blocks_are_the_basis_and_pending_ones_stay_active() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB).alloc("a", 700, stack=A)
    device = only_device(builder.free_requested("a").alloc("b", 500).free_completed("a").build())
    assert device.allocated_bytes == EndAndPeak(512, 1024)
    assert device.active_bytes == EndAndPeak(512, 1536)
    assert device.requested_bytes == EndAndPeak(500, 700)
    assert device.peak.basis is Basis.ALLOCATED
    assert (device.alloc_count, device.free_count) == (2, 1)


def test_sites_and_categories_add_up_to_the_peak() -> None:
    peak = only_device(training_trace()).peak
    assert sum(one.held_bytes for one in peak.by_site) == peak.held_bytes
    assert sum(peak.by_category.values()) == peak.held_bytes
    assert peak.unmatched_bytes == 0
    assert peak.unattributed_bytes == sum(one.held_bytes for one in peak.by_site if one.site is None) == 40 * MiB


def test_pending_blocks_are_not_in_the_peak() -> None:
    builder = TraceBuilder().segment(20 * MiB).alloc("a", 6000, stack=A).free_requested("a")
    peak = only_device(builder.alloc("b", 7000, stack=B).build()).peak
    assert (peak.held_bytes, peak.instant.event) == (7000, 3)
    assert [one.held_bytes for one in peak.by_site] == [7000]


def test_initial_blocks_count_from_the_start() -> None:
    builder = TraceBuilder().initial("old", 9000, stack=A).initial("gone", 800, state=BlockState.FREE)
    device = only_device(builder.free("old").alloc("new", 100).build())
    assert device.requested_bytes == EndAndPeak(100, 9000)
    assert device.reserved_bytes == EndAndPeak(20 * MiB, 20 * MiB)
    assert (device.peak.instant.event, device.peak.instant.time_ns) == (-1, 0)
    assert [one.block_count for one in device.peak.by_site] == [1]


def test_stacks_of_one_site_are_counted_and_the_heaviest_is_shown() -> None:
    light, heavy = [("/x/site-packages/f.py", 1, "f"), *A], [("/x/site-packages/g.py", 2, "g"), *A]
    builder = TraceBuilder().segment(20 * MiB).alloc("a", 100, stack=light).alloc("b", 900, stack=heavy)
    (site,) = only_device(builder.alloc("c", 50, stack=light).build()).peak.by_site
    assert (site.held_bytes, site.block_count, site.stack_count) == (1050, 3, 2)
    assert [frame.function for frame in site.stack] == ["g", "first"]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (GroupBy.STREAM, {"0x0": 300, "0x7": 40}),
        (GroupBy.THREAD, {"main (1001)": 300, "loader (1002)": 40}),
        (GroupBy.POOL, {"(0, 3)": 40, None: 300}),
        (GroupBy.SCOPE, {"train/forward": 200, None: 140}),
        (GroupBy.FUNCTION, {"/home/a/train.py first": 100, "/home/a/train.py second": 240}),
        (GroupBy.FILE, {"/home/a/train.py": 340}),
    ],
)
def test_holders_group_by_any_key(by: GroupBy, expected: dict[str | None, int]) -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100, stack=A).scope("train", "forward")
    builder.alloc("b", 200, stack=B).scope().on(stream=7, pool=(0, 3), thread="loader").segment(2 * MiB)
    peak = summarise_trace(builder.alloc("c", 40, stack=B).build(), by=by).devices[0].peak
    assert {one.key: one.held_bytes for one in peak.by_key} == expected


def test_devices_are_kept_apart_and_can_be_chosen() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100)
    builder.on(device=1).segment(20 * MiB).alloc("b", 5000).free("b").on().free("a")
    trace = builder.build()
    found = summarise_trace(trace).devices
    assert [(one.facts.device, one.requested_bytes.peak, one.reserved_bytes.peak) for one in found] == [
        (0, 100, 2 * MiB),
        (1, 5000, 20 * MiB),
    ]
    (chosen,) = summarise_trace(trace, devices=[DeviceOrdinal(1)]).devices
    assert chosen == found[1]


def test_window_narrows_counts_and_peaks_but_knows_the_state_before() -> None:
    builder = TraceBuilder().segment(20 * MiB).alloc("a", 1000).alloc("big", 9000).free("big").mark("go")
    trace = builder.alloc("b", 200).free("b").alloc("c", 50).build()
    go = find_instant(trace, parse_moment("mark:go"))
    (device,) = summarise_trace(trace, start=go).devices
    assert device.requested_bytes == EndAndPeak(1050, 1200)
    assert device.reserved_bytes.peak == 20 * MiB
    assert (device.alloc_count, device.free_count, device.segment_alloc_count) == (2, 1, 0)
    (before,) = summarise_trace(trace, end=go).devices
    assert before.requested_bytes == EndAndPeak(1000, 10000)


def test_growth_of_an_expandable_segment_counts_as_memory_obtained_as_in_a_replay() -> None:
    builder = TraceBuilder().segment(2 * MiB, "s").map(20 * MiB, "m").map(40 * MiB, "n").unmap("n").release("s")
    (device,) = summarise_trace(builder.build()).devices
    assert (device.segment_alloc_count, device.segment_map_count) == (3, 2)
    assert (device.segment_free_count, device.segment_unmap_count) == (2, 1)


def test_window_the_wrong_way_round_is_a_usage_error() -> None:
    trace = training_trace()
    end, start = (find_instant(trace, parse_moment(text)) for text in ("end", "start"))
    with pytest.raises(UsageError, match=r"--to \(the start\) comes before --from \(event \d+\); exchange them"):
        summarise_trace(trace, start=end, end=start)
    earlier = replace(end, time_ns=end.time_ns - 1_000)
    for report in (summarise_trace, find_timeline):
        with pytest.raises(UsageError, match=r"--to \(\d\.\d+ s\) comes before --from \(\d\.\d+ s\)"):
            report(trace, start=end, end=earlier)


def test_peak_names_its_step() -> None:
    peak = only_device(training_trace()).peak
    assert peak.step == 1
    assert peak.instant.time_ns > 1000 * MS


def test_nearest_reading_stands_beside_the_peak() -> None:
    builder = TraceBuilder().segment(2 * MiB).reading(process_bytes=1 * MiB, free_bytes=9 * MiB)
    builder.alloc("a", 100).reading(process_bytes=3 * MiB, free_bytes=7 * MiB).wait(9 * MS)
    device = only_device(builder.free("a").reading(process_bytes=2 * MiB, free_bytes=8 * MiB).build())
    assert device.nvml is not None
    assert device.nvml.process_bytes == 3 * MiB
    assert device.nvml_end is not None
    assert device.nvml_end.process_bytes == 2 * MiB
    assert (device.nvml_process_bytes_peak, device.nvml_free_bytes_min) == (3 * MiB, 7 * MiB)


def test_out_of_memory_is_described() -> None:
    builder = TraceBuilder().segment(2 * MiB).oom(5 * GiB, limit=4 * GiB, free=1 * GiB, total=8 * GiB)
    device = only_device(builder.build())
    assert device.oom_count == 1
    (oom,) = device.ooms
    assert (oom.requested_bytes, oom.limit_bytes, oom.free_bytes, oom.card_bytes) == (
        5 * GiB,
        4 * GiB,
        1 * GiB,
        8 * GiB,
    )


def test_limit_below_capacity_bounds_the_headroom() -> None:
    trace = TraceBuilder().device_facts(memory_limit_bytes=10 * GiB).segment(2 * GiB).build()
    assert only_device(trace).headroom_bytes == 8 * GiB


def test_lost_events_leave_a_row_that_makes_the_sum_right() -> None:
    builder = TraceBuilder(records_lost=1).segment(2 * MiB).alloc("a", 100, stack=A)
    builder.blocks["a"].live = False  # its free was lost
    peak = only_device(builder.alloc("b", 30, stack=B).build()).peak
    assert peak.held_bytes == 130
    assert peak.unmatched_bytes == 100
    assert sum(one.held_bytes for one in peak.by_site) == 130
    assert peak.unattributed_bytes == 100


def test_device_without_events_is_reported_as_empty() -> None:
    trace = TraceBuilder().reading(process_bytes=500 * MiB).build()
    device = only_device(trace)
    assert (device.requested_bytes, device.alloc_count) == (EndAndPeak(0, 0), 0)
    assert device.nvml is not None
    assert len(summarise_trace(replace(trace, meta=replace(trace.meta, devices=()))).devices) == 1


@pytest.mark.parametrize("by", list(GroupBy))
def test_device_without_events_has_no_holders_by_any_key(by: GroupBy) -> None:
    (device,) = summarise_trace(TraceBuilder().build(), by=by).devices
    assert (device.peak.held_bytes, device.peak.by_key) == (0, [])


def test_large_requests_do_not_lose_bytes() -> None:
    builder = TraceBuilder().segment(130 * GiB)
    for number in range(3):
        builder.alloc(f"b{number}", 40 * GiB + number, stack=A)
    (site,) = only_device(builder.alloc("small", 1 * KiB, stack=A).build()).peak.by_site
    assert site.held_bytes == 120 * GiB + 3 + 1024


def test_without_a_recorded_allocator_nothing_is_said_of_it_and_nvml_s_most_is_shown() -> None:
    device = only_device(unrecorded_trace())
    assert not device.is_recorded
    assert device.requested_bytes == device.reserved_bytes == EndAndPeak(None, None)
    assert (device.headroom_bytes, device.nvml_process_bytes_peak) == (None, 9000 * MiB)
    assert device.nvml is not None
    assert device.nvml.process_bytes == 9000 * MiB


def test_events_of_a_recording_that_does_not_name_its_source_count() -> None:
    device = only_device(TraceBuilder(source=TraceSource.NONE).segment(2 * MiB).alloc("a", 700).build())
    assert device.is_recorded
    assert device.requested_bytes == EndAndPeak(700, 700)
