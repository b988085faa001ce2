"""Reserved bytes as steps: the same curve from the whole trace and from segment events gathered before."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.heap import reserved
from gpumem.heap.reserved import find_reserved_curve
from gpumem.heap.scan import scan_trace
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex
from random_traces import CutEvents, traces
from trace_builder import MiB, TraceBuilder

DEVICE = DeviceOrdinal(0)


@pytest.mark.parametrize("near", [1, 1 << 20])
def test_curve_says_what_was_reserved_after_each_event(near: int) -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB, "s").alloc("a", 512).wait(5)
    trace = builder.segment(20 * MiB).free("a").release("s").build()
    (scan,) = scan_trace(trace)
    with patch.object(reserved, "_NEAR_EVENTS", near):
        curve = find_reserved_curve(trace, DEVICE, scan.segments)
    assert [curve.at(EventIndex(event)) // MiB for event in range(-1, trace.event_count)] == [0, 2, 2, 22, 22, 20]
    assert curve.events.tolist() == [0, 2, 4]
    times = next(trace.event_batches(["time_ns"]))["time_ns"]
    assert curve.times_ns.tolist() == times[curve.events].tolist()


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(1, 8))
def test_gathered_segment_events_give_the_same_curve(case: tuple[Trace, int, bool], near: int) -> None:
    trace, length, _ = case
    cut = replace(trace, events=CutEvents(trace, length))
    for scan in scan_trace(cut):
        read = find_reserved_curve(cut, scan.device)
        if not trace.meta.block_bytes_known:
            continue  # segments are gathered only where blocks are known
        with patch.object(reserved, "_NEAR_EVENTS", near):
            gathered = find_reserved_curve(cut, scan.device, scan.segments)
        assert gathered.initial_bytes == read.initial_bytes
        for name in ("events", "times_ns", "reserved_bytes"):
            assert getattr(gathered, name).tolist() == getattr(read, name).tolist()
