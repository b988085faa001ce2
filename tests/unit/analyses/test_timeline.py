"""The thinned curves keep every extreme."""

from __future__ import annotations

from gpumem.analyses.timeline import find_moving_timeline, find_timeline
from gpumem.heap.instants import find_instant
from gpumem.trace.moments import parse_moment
from trace_builder import MS, KiB, MiB, TraceBuilder
from training_trace import training_trace


def test_spike_of_one_event_survives_thinning() -> None:
    builder = TraceBuilder().segment(20 * MiB)
    for number in range(300):
        builder.alloc("small", 1000).free("small")
        if number == 170:
            builder.alloc("spike", 5 * MiB).free("spike")
    (device,) = find_timeline(builder.build(), buckets=5).devices
    assert max(point.requested_bytes for point in device.points) == 5 * MiB
    assert len(device.points) <= 1 + 5 * 8
    assert [point.event for point in device.points] == sorted({point.event for point in device.points})


def test_few_events_are_all_there() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100).wait(50 * MS).alloc("b", 40).wait(50 * MS).free("a")
    (device,) = find_timeline(builder.build(), buckets=100).devices
    assert [(point.event, point.requested_bytes, point.reserved_bytes) for point in device.points] == [
        (-1, 0, 0),
        (0, 0, 2 * MiB),
        (1, 100, 2 * MiB),
        (2, 140, 2 * MiB),
        (3, 40, 2 * MiB),
    ]
    assert all(point.allocated_bytes is None for point in device.points)


def test_known_blocks_give_the_allocated_curve() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 100)
    (device,) = find_timeline(builder.build()).devices
    assert [point.allocated_bytes for point in device.points] == [0, 0, 512]


def test_window_starts_at_the_levels_before_it() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 9 * KiB).mark("go").alloc("b", 10).free("b").mark("stop")
    trace = builder.free("a").build()
    start = find_instant(trace, parse_moment("mark:go"))
    end = find_instant(trace, parse_moment("mark:stop"))
    timeline = find_timeline(trace, start=start, end=end)
    (device,) = timeline.devices
    assert device.points[0].requested_bytes == 9 * KiB
    assert max(point.requested_bytes for point in device.points) == 9 * KiB + 10
    assert min(point.requested_bytes for point in device.points) == 9 * KiB
    assert [mark.name for mark in timeline.marks] == ["go", "stop"]


def test_out_of_memory_and_marks_are_placed() -> None:
    timeline = find_timeline(training_trace(oom=True))
    assert [mark.name for mark in timeline.marks if mark.name] == ["model built"]
    assert [mark.step for mark in timeline.marks if mark.step is not None] == [0, 1, 2, 3]
    assert len(timeline.devices[0].ooms) == 1


def slow_start() -> TraceBuilder:
    """Imports for 2 s, a small tensor, as long again, then 10 MiB come and go for 20 ms."""
    builder = TraceBuilder().wait(2000 * MS).segment(2 * MiB).alloc("small", 1000).wait(1900 * MS).segment(20 * MiB)
    for _ in range(10):
        builder.alloc("a", 10 * MiB).free("a")
    return builder


def test_it_begins_where_memory_moves() -> None:
    trace = slow_start().build()
    timeline = find_moving_timeline(trace)
    assert timeline.left_out_ns == timeline.start.time_ns
    assert 3900 * MS < timeline.start.time_ns < trace.meta.duration_ns - 20 * MS
    points = timeline.devices[0].points
    assert (points[0].event, points[0].requested_bytes, points[0].reserved_bytes) == (1, 1000, 2 * MiB)
    assert max(point.requested_bytes for point in points) == 10 * MiB + 1000


def test_a_mark_or_an_early_peak_is_not_left_out() -> None:
    marked = TraceBuilder().mark("begin").wait(5000 * MS).segment(2 * MiB).alloc("a", MiB).build()
    assert find_moving_timeline(marked).left_out_ns == 0
    early = TraceBuilder().segment(2 * MiB).alloc("a", MiB).free("a").wait(5000 * MS).alloc("a", MiB).build()
    assert find_moving_timeline(early) == find_timeline(early)
    assert find_moving_timeline(TraceBuilder().build()).left_out_ns == 0
