"""Reports of several devices say whose figures and whose moment they show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.page import find_page
from gpumem.analyses.summary import summarise_trace
from gpumem.render.html.page import render_page
from gpumem.render.json import render_summaries as render_json
from gpumem.render.terminal.diff import render_diff
from gpumem.render.terminal.explain import render_explanation
from gpumem.render.terminal.summary import render_summaries
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.trace.model import AllocatorFacts, Trace
from gpumem.trace.moments import End, Peak, parse_moment
from gpumem.vocabulary import DeviceOrdinal, TraceSource
from trace_builder import GiB, MiB, TraceBuilder

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


def own_allocators() -> Trace:
    """Two devices on allocators of gpumem's: the second has had two, with settings of their own."""
    given = (
        AllocatorFacts(0, 0, "", 24 * GiB),
        AllocatorFacts(1, 0, "", 24 * GiB),
        AllocatorFacts(1, 1, "max_split_size_mb:64", 8 * GiB, 4 * GiB),
    )
    builder = TraceBuilder(block_bytes_known=True, source=TraceSource.GPUMEM, allocators=given)
    builder.segment(20 * MiB, "s").alloc("a", 10 * MiB).on(device=1).segment(20 * MiB, "t").alloc("b", 10 * MiB)
    return builder.build()


def test_a_summary_names_the_settings_of_each_device_where_they_are_not_the_same() -> None:
    found = summarise_trace(own_allocators())
    lines = [line for line in render_summaries([found], PAGE).plain.splitlines() if line.startswith("settings")]
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "PyTorch's default ones",
        "PyTorch's default ones and max_split_size_mb:64",
    ]
    shown = json.loads(render_json([found]))
    assert (shown["settings"], [device["settings"] for device in shown["devices"]]) == (None, ["", None])
    assert [len(device["allocators"]) for device in shown["devices"]] == [1, 2]
    assert shown["devices"][1]["allocators"][1] == {
        "number": 1,
        "settings": "max_split_size_mb:64",
        "capacity_bytes": 8 * GiB,
        "memory_limit_bytes": 4 * GiB,
    }


def test_settings_that_all_share_are_no_device_s() -> None:
    found = summarise_trace(two_devices())
    assert "settings" not in render_summaries([found], PAGE).plain
    shown = json.loads(render_json([found]))
    assert (shown["settings"], [device["settings"] for device in shown["devices"]]) == ("", ["", ""])


def test_the_page_names_the_settings_of_each_device_where_they_are_not_the_same() -> None:
    text = page_text(own_allocators())
    assert "each allocator's own, see its device" in text
    assert "140.00 GiB, settings none set and max_split_size_mb:64" in text
    assert "settings none set" not in page_text(two_devices())


def page_text(trace: Trace) -> str:
    return unescape(re.sub(r"<[^>]+>", "", render_page(find_page([trace]))))


def test_a_comparison_names_the_device_whose_settings_changed() -> None:
    trace = own_allocators()
    given = [replace(one, settings="max_split_size_mb:20") if one.number else one for one in trace.meta.allocators]
    other = replace(trace, meta=replace(trace.meta, allocators=given))
    changed = [(one.name, one.before, one.after) for one in compare_traces(trace, other).settings]
    assert changed == [
        (
            "device 1 allocator settings",
            "the default ones and max_split_size_mb:64",
            "the default ones and max_split_size_mb:20",
        )
    ]
