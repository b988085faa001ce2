"""The state that a scan takes on its way: after any event, and after the peak, as if the trace ended there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem.errors import TraceTruncated
from gpumem.heap.levels import LEVEL_BYTES_MOST
from gpumem.heap.live import LiveTable
from gpumem.heap.scan import BEFORE_EVENTS, Window, live_at, scan_trace
from gpumem.trace.model import Trace
from gpumem.vocabulary import EventIndex
from trace_builder import MiB, TraceBuilder
from training_trace import training_trace


def two_devices() -> Trace:
    """The second device appears late; blocks from before the recording, a deferred free."""
    builder = TraceBuilder(block_bytes_known=True).initial("old", 3 * MiB).segment(20 * MiB).alloc("a", 2 * MiB)
    builder.free_requested("a").alloc("b", 1 * MiB).free("old").free_completed("a").mark("half")
    builder.on(device=1).segment(20 * MiB).alloc("c", 5 * MiB).free("c").alloc("d", 4 * MiB)
    return builder.build()


def rows(table: LiveTable) -> list[tuple[int, int, bool]]:
    return list(zip(table.address.tolist(), table["requested_bytes"].tolist(), table.pending.tolist(), strict=True))


@pytest.mark.parametrize("trace", [two_devices(), training_trace(block_bytes_known=True), training_trace(oom=True)])
def test_state_at_an_event_is_that_of_a_trace_which_ends_there(trace: Trace) -> None:
    for number in range(-1, trace.event_count, max(1, trace.event_count // 40)):
        event = EventIndex(number)
        ended = {scan.device: scan for scan in scan_trace(trace, window=Window(BEFORE_EVENTS, event))}
        tables = live_at(trace, event)
        for scan in scan_trace(trace, event=event):
            if scan.device in ended:
                assert scan.state.levels == ended[scan.device].end
                assert rows(scan.state.blocks) == rows(tables[scan.device])
            else:
                assert (scan.state.levels.reserved_bytes, len(scan.state.blocks)) == (0, 0)


@pytest.mark.parametrize("trace", [two_devices(), training_trace(block_bytes_known=True), training_trace()])
def test_levels_at_the_peak_are_those_of_a_trace_which_ends_there(trace: Trace) -> None:
    for scan in scan_trace(trace):
        window = Window(BEFORE_EVENTS, scan.held_peak.event)
        (ended,) = [one for one in scan_trace(trace, window=window) if one.device == scan.device]
        assert scan.peak_levels == ended.end
        assert scan.peak_levels.held_bytes == scan.held_peak.peak_bytes
        assert rows(scan.peak_blocks) == rows(ended.end_blocks)


def test_more_bytes_than_any_device_has_are_damage_that_names_the_event() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 2)
    for name in ("b", "c"):
        builder.alloc(name, LEVEL_BYTES_MOST // 2 - 1, block_bytes=512)
    trace = builder.build()
    assert scan_trace(trace)[0].held_peak.peak_bytes == LEVEL_BYTES_MOST
    with pytest.raises(TraceTruncated, match="after event 4 its blocks would hold more bytes than any device has"):
        scan_trace(builder.alloc("d", 1).build())
    begun = TraceBuilder().initial("old", 512).build()
    odd = replace(begun.initial_blocks[0], segment_bytes=LEVEL_BYTES_MOST + 1)
    with pytest.raises(TraceTruncated, match="before the first event its blocks would hold"):
        scan_trace(replace(begun, initial_blocks=[odd]))
