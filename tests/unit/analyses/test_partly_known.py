"""A trace of two devices of which one's blocks are all known: each device reads as in a trace where that goes for both.

PyTorch's allocator as replayed parts from what was recorded on one device; that says nothing of the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.page import find_page
from gpumem.analyses.snapshot import find_snapshot
from gpumem.analyses.summary import summarise_trace
from gpumem.analyses.timeline import find_timeline
from gpumem.heap.instants import find_instant
from gpumem.render.html.page import render_page
from gpumem.render.json import render_snapshot, render_summaries, render_timeline
from gpumem.render.json_diff import render_diff
from gpumem.render.json_explain import render_explanation
from gpumem.render.terminal.diff import render_diff as render_diff_text
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.simulate.fill import DeviceFill, filled_meta
from gpumem.trace.model import Trace
from gpumem.trace.moments import AtEvent, End, Peak, PeakOf
from gpumem.vocabulary import Basis, DeviceOrdinal
from trace_builder import KiB, MiB, TraceBuilder

KNOWN, UNKNOWN = DeviceOrdinal(0), DeviceOrdinal(1)


def trace_of(blocks: int = 7) -> Trace:
    """Both devices in turns: a block of 1 KiB, then some of 1.5 KiB for requests of a little more than 1 KiB."""
    builder = TraceBuilder(block_bytes_known=True)
    for device in (0, 1):
        builder.on(device=device).initial(f"i{device}", 3000, segment=f"early {device}").segment(20 * MiB)
    for number in range(blocks):
        for device in (0, 1):
            builder.on(device=device).alloc(f"{device}.{number}", KiB + number, stack=[("a.py", number, "f")])
    for device in (0, 1):
        builder.on(device=device).reading(process_bytes=600 * MiB)
        builder.free_requested(f"{device}.0").free(f"{device}.1").free_completed(f"{device}.0")
    return builder.step().build()


def with_known(trace: Trace, *known: int) -> Trace:
    """The trace as replay leaves it where it could follow these devices to the end, and others for a while."""
    fills = [DeviceFill(device, None if device in known else 1, ()) for device in (0, 1)]
    return replace(trace, meta=filled_meta(trace.meta, fills, trace.event_count))


WHOLE, NONE = trace_of(), with_known(trace_of())
MIXED = with_known(trace_of(), KNOWN)

REPORTS: dict[str, Callable[[Trace], str]] = {
    "summary": lambda trace: render_summaries([summarise_trace(trace)]),
    "snapshot": lambda trace: render_snapshot(find_snapshot(trace, find_instant(trace, AtEvent(14)))),
    "snapshot at the end": lambda trace: render_snapshot(find_snapshot(trace, find_instant(trace, End()))),
    "timeline": lambda trace: render_timeline(find_timeline(trace)),
    "diff": lambda trace: render_diff(compare_traces(trace, trace, before_moment=AtEvent(14), after_moment=End())),
}


def device_of(report: str, trace: Trace, device: DeviceOrdinal) -> Any:
    document = json.loads(REPORTS[report](trace))
    return next(one for one in document["devices"] if one["device"] == device)


def ledger_of(trace: Trace, device: DeviceOrdinal) -> str:
    return render_explanation(find_explanation(trace, AtEvent(14), devices=[device]))


def test_ledger_of_each_device_too() -> None:
    assert ledger_of(WHOLE, KNOWN) != ledger_of(NONE, KNOWN)
    assert ledger_of(MIXED, KNOWN) == ledger_of(WHOLE, KNOWN)
    assert ledger_of(MIXED, UNKNOWN) == ledger_of(NONE, UNKNOWN)


@pytest.mark.parametrize("report", REPORTS)
def test_each_device_reads_as_if_it_were_so_for_both(report: str) -> None:
    assert device_of(report, WHOLE, KNOWN) != device_of(report, NONE, KNOWN)
    assert device_of(report, MIXED, KNOWN) == device_of(report, WHOLE, KNOWN)
    assert device_of(report, MIXED, UNKNOWN) == device_of(report, NONE, UNKNOWN)


def text_of(found: object) -> str:
    """All of it, but for the fact that both traces differ in."""
    with np.printoptions(threshold=100_000):
        return re.sub(r"block_bytes_known_until=\w+", "", repr(found))


def test_page_draws_each_device_in_its_own_bytes() -> None:
    views = {name: find_page([trace]).views for name, trace in {"mixed": MIXED, "whole": WHOLE, "none": NONE}.items()}
    for device, like in ((KNOWN, "whole"), (UNKNOWN, "none")):
        shown, wanted = views["mixed"][device], views[like][device]
        for part in ("curves", "shares", "flame", "canvases", "ledger", "beginning_ns"):
            assert text_of(getattr(shown, part)) == text_of(getattr(wanted, part)), (device, part)
    assert [view.canvases.heap.basis for view in views["mixed"] if view.canvases] == [Basis.ALLOCATED, Basis.REQUESTED]
    page = render_page(find_page([MIXED]))
    assert "known on device 0; elsewhere bytes are those asked for" in page
    assert "Block sizes are not known in this trace" not in page


def test_peak_of_both_devices_adds_up_what_each_is_known_by() -> None:
    for of in PeakOf:
        events = {find_instant(trace, Peak(of)).event for trace in (WHOLE, MIXED, NONE)}
        assert len(events) == 1
    # Blocks of 64 MiB known on one device, requests of as much on the other: the block is what makes the peak.
    builder = TraceBuilder(block_bytes_known=True)
    for device, requested_bytes, block_bytes in ((0, 33 * MiB, 64 * MiB), (1, 60 * MiB, 60 * MiB)):
        builder.on(device=device).segment(64 * MiB).alloc("a", requested_bytes, block_bytes=block_bytes).free("a")
    trace = builder.build()
    assert find_instant(with_known(trace, 0), Peak()).event == 1
    assert find_instant(with_known(trace), Peak()).event == 4


def test_diff_compares_a_device_by_blocks_only_where_both_sides_know_them() -> None:
    found = compare_traces(trace_of(5), MIXED)
    assert [one.basis for one in found.devices] == [Basis.ALLOCATED, Basis.REQUESTED]
    assert found.basis is Basis.REQUESTED
    known, unknown = (json.loads(render_diff(found))["devices"][device] for device in (0, 1))
    before_bytes, after_bytes = (3072 + KiB + more * 1536 for more in (4, 6))
    assert known["allocated_bytes"] == {"before": before_bytes, "after": after_bytes, "delta": 2 * 1536}
    assert unknown["allocated_bytes"] is None
    shown = render_diff_text(found, Page(200, UNICODE), top=3).plain
    assert "Device 1 is compared by requested bytes: block bytes are not known after." in shown
    other = compare_traces(with_known(trace_of(5), UNKNOWN), MIXED)
    assert [one.basis for one in other.devices] == [Basis.REQUESTED, Basis.REQUESTED]
