"""Bands: which allocations they are, from when to when, and that with the rest they add up to the bytes held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses.bands import Bands, find_bands
from gpumem.trace.model import Trace
from gpumem.vocabulary import BlockState, DeviceOrdinal, EventIndex
from random_traces import CutEvents, plain_states, traces
from trace_builder import MS, KiB, MiB, TraceBuilder

DEVICE = DeviceOrdinal(0)


def shown_bytes(found: Bands, event: int) -> int:
    """Bands and rest after an event that is a point of the rest's curve."""
    banded = int(found.bands.held_bytes[found.bands.held_after(event)].sum())
    return banded + int(found.rest.held_bytes[found.rest.event.tolist().index(event)])


def test_a_band_lasts_from_its_allocation_to_its_free() -> None:
    trace = (
        TraceBuilder(block_bytes_known=True)
        .segment(8 * MiB)
        .alloc("a", 1 * MiB - 100, stack=[("train.py", 3, "f")])
        .alloc("b", 2 * MiB)
        .free("a")
        .build()
    )
    found = find_bands(trace, DEVICE)
    assert found.bands.held_bytes.tolist() == [1 * MiB, 2 * MiB]
    assert found.bands.requested_bytes.tolist() == [1 * MiB - 100, 2 * MiB]
    assert found.bands.start_event.tolist() == [1, 2]
    assert found.bands.end_event.tolist() == [3, 4]
    assert found.bands.end_time_ns.tolist() == [4 * MS, 4 * MS]
    assert found.bands.stack.tolist() == [1, 0]
    assert (found.allocation_count, found.peak_bytes, found.banded_bytes_at_peak) == (2, 3 * MiB, 3 * MiB)


def test_a_deferred_free_ends_a_band_when_it_is_asked_for() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 4096).free_requested("a").alloc("b", 512).free_completed("a")
    assert find_bands(builder.build(), DEVICE).bands.end_event.tolist() == [2, 5]


def test_blocks_from_before_the_recording_begin_before_it() -> None:
    builder = TraceBuilder().initial("a", 4096).initial("p", 512, state=BlockState.PENDING).initial("b", 1024)
    found = find_bands(builder.free("a").build(), DEVICE)
    assert found.bands.start_event.tolist() == [-1, -1]
    assert found.bands.held_bytes.tolist() == [4096, 1024]
    assert found.bands.end_event.tolist() == [0, 1]
    assert found.allocation_count == 2


def test_the_largest_live_at_the_peak_come_before_larger_ones_that_are_not() -> None:
    builder = TraceBuilder().segment(40 * MiB)
    for number in range(4):
        builder.alloc(f"large {number}", 4 * MiB).free(f"large {number}")
    for number in range(6):
        builder.alloc(f"small {number}", (number + 1) * MiB)
    found = find_bands(builder.build(), DEVICE, bands_max=4)
    assert found.bands.held_bytes.tolist() == [4 * MiB, 4 * MiB, 5 * MiB, 6 * MiB]
    assert found.bands.start_event.tolist() == [7, 12, 13, 14]
    assert (found.peak_bytes, found.banded_bytes_at_peak) == (21 * MiB, 15 * MiB)


def test_of_equal_allocations_those_held_longest_are_drawn() -> None:
    builder = TraceBuilder().segment(20 * MiB).alloc("peak", 8 * MiB).free("peak")
    builder.alloc("short", 1 * MiB).free("short")
    builder.alloc("long", 1 * MiB).alloc("tiny", 512).free("tiny").alloc("tiny", 512).free("tiny").free("long")
    found = find_bands(builder.build(), DEVICE, bands_max=2)
    assert found.bands.held_bytes.tolist() == [8 * MiB, 1 * MiB]
    assert found.bands.start_event.tolist() == [1, 5]


def test_of_those_held_as_long_the_nearest_to_the_peak_are_drawn() -> None:
    builder = TraceBuilder().segment(20 * MiB)
    for number in range(9):
        builder.alloc(f"a{number}", 1 * MiB).free(f"a{number}")
        if number == 5:
            builder.alloc("peak", 8 * MiB).free("peak")
    found = find_bands(builder.build(), DEVICE, bands_max=4)
    assert found.bands.start_event.tolist() == [9, 11, 13, 15]


def test_the_share_at_the_peak_is_that_of_the_bands() -> None:
    builder = TraceBuilder().segment(20 * MiB)
    for number in range(100):
        builder.alloc(f"small {number}", 8 * KiB)
    found = find_bands(builder.alloc("large", 4 * MiB).build(), DEVICE, bands_max=1)
    assert (found.peak_bytes, found.banded_bytes_at_peak) == (4 * MiB + 800 * KiB, 4 * MiB)
    assert shown_bytes(found, found.peak.event) == found.peak_bytes


def test_a_trace_without_events_has_no_bands() -> None:
    found = find_bands(TraceBuilder().build(), DEVICE)
    assert (len(found.bands), found.peak_bytes, found.rest.held_bytes.tolist()) == (0, 0, [0])


@settings(max_examples=100, deadline=None)
@given(traces(), st.integers(1, 6))
def test_bands_and_rest_are_the_bytes_held(case: tuple[Trace, int, bool], bands_max: int) -> None:
    trace, length, known = case
    cut = replace(trace, events=CutEvents(trace, length))
    for device, heaps in plain_states(trace, known=known).items():
        found = find_bands(cut, DeviceOrdinal(device), bands_max=bands_max)
        assert len(found.bands) <= bands_max
        assert found.peak_bytes == max(heap.held for heap in heaps)
        assert np.all(np.diff(found.rest.event) > 0)
        for event in found.rest.event.tolist():
            assert shown_bytes(found, event) == heaps[event + 1].held
        assert EventIndex(found.peak.event) in found.rest.event
        ends = set(found.bands.end_event.tolist()) | set(found.bands.start_event.tolist())
        assert ends - {trace.event_count} <= set(found.rest.event.tolist())
        for row in range(len(found.bands)):
            start, end = int(found.bands.start_event[row]), int(found.bands.end_event[row])
            alive = [any(made == start for made, _, _ in heap.live.values()) for heap in heaps[start + 1 : end + 1]]
            assert all(alive)
