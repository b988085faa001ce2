"""The state that a scan takes on its way: after any event, and after the peak, as if the trace ended there."""

from __future__ import annotations

import pytest

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
