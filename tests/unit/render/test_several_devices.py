"""Reports of several devices say whose figures and whose moment they show."""

from __future__ import annotations

import pytest

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.summary import summarise_trace
from gpumem.render.terminal.diff import render_diff
from gpumem.render.terminal.explain import render_explanation
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.trace.model import Trace
from gpumem.trace.moments import End, Peak, parse_moment
from gpumem.vocabulary import DeviceOrdinal
from trace_builder import MiB, TraceBuilder

PAGE = Page(160, UNICODE)


def two_devices() -> Trace:
    """Each device has its own peak after that of both; the second one runs out of memory."""
    builder = TraceBuilder(block_bytes_known=True)
    builder.on(device=0).segment(20 * MiB, "s").alloc("a", 10 * MiB)
    builder.on(device=1).segment(20 * MiB, "t").alloc("b", 10 * MiB)
    return builder.oom(40 * MiB, free=1 * MiB).build()


def test_a_peak_of_several_devices_is_called_that_of_all_together() -> None:
    trace = two_devices()
    text = render_explanation(find_explanation(trace, None), PAGE).plain
    assert text.count("At the peak of all devices together, ") == 2
    reserved = render_explanation(find_explanation(trace, parse_moment("peak:reserved")), PAGE).plain
    assert reserved.startswith("At the peak of reserved of all devices together, ")


def test_devices_are_compared_each_at_its_own_peak_which_is_told() -> None:
    """The first one's peak is over when the second one's begins."""
    builder = TraceBuilder(block_bytes_known=True).segment(40 * MiB).alloc("a", 30 * MiB).free("a")
    builder.on(device=1).segment(40 * MiB).alloc("b", 20 * MiB)
    trace = builder.build()
    found = compare_traces(trace, trace)
    assert [device.held_bytes.after for device in found.devices] == [30 * MiB, 20 * MiB]
    assert [device.after_instant and device.after_instant.event for device in found.devices] == [1, 4]
    assert found.after.instant is None
    lines = render_diff(found, PAGE).plain.splitlines()
    assert sum(line.endswith("peak of each device") for line in lines) == 2
    assert [line for line in lines if line.startswith("peak of device 0:")] == [
        "peak of device 0: before at 2.00 ms, event 1, after at 2.00 ms, event 1"
    ]
    reserved = compare_traces(trace, trace, before_moment=parse_moment("peak:reserved"), after_moment=Peak())
    assert [device.before_instant and device.before_instant.event for device in reserved.devices] == [0, 3]
    both = compare_traces(trace, trace, before_moment=End(), after_moment=End())
    assert [device.held_bytes.after for device in both.devices] == [0, 20 * MiB]
    assert not [line for line in render_diff(both, PAGE).plain.splitlines() if line.startswith("peak of device 0:")]


def test_a_peak_of_one_device_is_the_peak() -> None:
    found = find_explanation(two_devices(), None, devices=[DeviceOrdinal(1)])
    assert render_explanation(found, PAGE).plain.startswith("At the peak, ")


@pytest.mark.parametrize(("devices", "command"), [(None, " --at oom --device 1"), ([DeviceOrdinal(1)], " --at oom")])
def test_the_next_command_chooses_the_device_that_ran_out(devices: list[DeviceOrdinal] | None, command: str) -> None:
    text = render_summaries([summarise_trace(two_devices(), devices=devices)], PAGE).plain
    (line,) = (line for line in text.splitlines() if line.startswith("what to do"))
    assert line.partition(";")[0].endswith(f"gpumem snapshot train.4711.gpumem{command}")
