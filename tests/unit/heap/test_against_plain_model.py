"""The streaming heap against a plain model, a dictionary changed event by event, on random traces.

Each random trace is cut into batches of a few events, so that every border between batches is met.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.heap.scan import Window, live_at, scan_trace
from gpumem.heap.segments import segments_at
from gpumem.heap.stops import heaps_at
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex
from random_traces import CutEvents, PlainHeap, plain_states, traces
from trace_builder import MiB


@settings(max_examples=120, deadline=None)
@given(traces(), st.data())
def test_streaming_heap_equals_plain_model(case: tuple[Trace, int, bool], data: st.DataObject) -> None:
    trace, length, known = case
    states = plain_states(trace, known=known)
    cut = replace(trace, events=CutEvents(trace, length))
    first = data.draw(st.integers(-1, trace.event_count - 1))
    last = data.draw(st.integers(first, trace.event_count - 1))
    window = Window(EventIndex(first), EventIndex(last))
    for scan in scan_trace(cut, window=window):
        heaps = states[scan.device][first + 1 : last + 2]
        held = [heap.held for heap in heaps]
        assert scan.held_peak.peak_bytes == max(held)
        assert scan.held_peak.event == first + held.index(max(held))
        assert scan.reserved_peak.peak_bytes == max(heap.reserved for heap in heaps)
        active = [heap.held + heap.pending for heap in heaps]
        assert (scan.active_peak.peak_bytes, scan.active_peak.event) == (max(active), first + active.index(max(active)))
        assert scan.end.held_bytes == held[-1]
        assert scan.end.pending_bytes == heaps[-1].pending
        assert scan.end.reserved_bytes == heaps[-1].reserved
        at_peak = states[scan.device][scan.held_peak.event + 1]
        column = "block_bytes" if known else "requested_bytes"
        assert live_rows(scan.peak_blocks, column) == plain_rows(at_peak)


@settings(max_examples=80, deadline=None)
@given(traces(), st.data())
def test_state_at_an_event_equals_plain_model(case: tuple[Trace, int, bool], data: st.DataObject) -> None:
    trace, length, known = case
    states = plain_states(trace, known=known)
    cut = replace(trace, events=CutEvents(trace, length))
    event = EventIndex(data.draw(st.integers(-1, trace.event_count - 1)))
    tables = live_at(cut, event)
    segments = segments_at(cut, event)
    for device, heaps in states.items():
        heap = heaps[event + 1]
        table = tables.get(DeviceOrdinal(device))
        column = "block_bytes" if known else "requested_bytes"
        assert (live_rows(table, column) if table is not None else []) == plain_rows(heap)
        covered = {
            at
            for segment in segments
            if segment.device == device
            for at in range(segment.address, segment.end, 2 * MiB)
        }
        assert covered == {at for address, length in heap.ranges for at in range(address, address + length, 2 * MiB)}


@settings(max_examples=60, deadline=None)
@given(traces(), st.data())
def test_heaps_at_several_events_are_those_at_each(case: tuple[Trace, int, bool], data: st.DataObject) -> None:
    trace, length, known = case
    cut = replace(trace, events=CutEvents(trace, length))
    events = [EventIndex(one) for one in data.draw(st.lists(st.integers(-1, trace.event_count - 1), max_size=6))]
    column = "block_bytes" if known else "requested_bytes"
    for device, heaps in plain_states(trace, known=known).items():
        found = heaps_at(cut, events, device=DeviceOrdinal(device))
        assert [one.event for one in found] == events
        for one in found:
            assert live_rows(one.blocks, column) == plain_rows(heaps[one.event + 1])
            assert list(one.segments) == segments_at(trace, one.event, devices=[DeviceOrdinal(device)])


def live_rows(table: object, column: str) -> list[tuple[int, int, int, bool]]:
    from gpumem.heap.live import LiveTable

    assert isinstance(table, LiveTable)
    assert np.all(np.diff(table.address.astype(np.int64)) > 0)
    return list(
        zip(table.address.tolist(), table.event.tolist(), table[column].tolist(), table.pending.tolist(), strict=True)
    )


def plain_rows(heap: PlainHeap) -> list[tuple[int, int, int, bool]]:
    return [(address, *heap.live[address]) for address in sorted(heap.live)]


@pytest.mark.parametrize("spread", [512, 1 << 20])
def test_last_rows_are_those_of_a_plain_search(spread: int) -> None:
    from gpumem.heap.live import find_last_rows

    random = np.random.default_rng(7)
    for count in (0, 1, 50, 5000):
        address = random.integers(0, max(1, count // 3), count).astype(np.uint64) * np.uint64(spread)
        expected = sorted({int(value): row for row, value in enumerate(address)}.values())
        assert sorted(find_last_rows(address).tolist()) == expected
