"""The JSON contract: schemas, keys, integers, null where not known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explained_traces import unrecorded_trace
from gpumem.analyses.holdings import GroupBy
from gpumem.analyses.oom import explain_log
from gpumem.analyses.snapshot import find_snapshot
from gpumem.analyses.summary import summarise_trace
from gpumem.analyses.timeline import find_timeline
from gpumem.heap.instants import find_instant
from gpumem.importers.oom_log import read_oom_text
from gpumem.render.json import render_snapshot, render_summaries, render_timeline
from gpumem.render.json_oom import render_oom
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from oom_messages import modern
from trace_builder import KiB, MiB, TraceBuilder
from training_trace import training_trace


def summary(trace: Trace, **options: Any) -> dict[str, Any]:
    document = json.loads(render_summaries([summarise_trace(trace, **options)]))
    assert isinstance(document, dict)
    return document


def test_summary_has_the_keys_of_its_schema() -> None:
    document = summary(training_trace(oom=True))
    assert document["schema"] == "gpumem.summary/1"
    assert set(document) >= {"path", "source", "events", "duration_ns", "truncated", "ended_by", "devices"}
    assert (document["source"], document["events"], document["truncated"]) == ("native", 504, False)
    (device,) = document["devices"]
    assert set(device) >= {
        *("device", "uuid", "nvml_index", "name", "capacity_bytes", "allocated_bytes", "reserved_bytes"),
        *("active_bytes", "requested_bytes", "alloc_count", "free_count", "segment_alloc_count"),
        *("segment_free_count", "oom_count", "peak", "nvml", "torch"),
    }
    assert device["allocated_bytes"] is None
    assert device["active_bytes"] is None
    assert device["oom_count"] == 1
    assert device["reserved_bytes"] == {"end": 2112 * MiB - 96 * MiB, "peak": 2112 * MiB - 96 * MiB}
    assert device["torch"]["allocated_bytes"] == {"end": 660 * MiB, "peak": 1300 * MiB}
    assert set(device["nvml"]) == {
        *("event", "time_ns", "total_bytes", "used_bytes", "free_bytes", "reserved_bytes", "process_bytes"),
        *("other_processes_bytes", "unavailable"),
    }
    assert device["nvml"]["other_processes_bytes"] is None
    assert device["nvml"]["unavailable"] == {"other_processes_bytes": "hidden by the container"}


def test_peak_adds_up_whatever_top_says() -> None:
    (device,) = summary(training_trace())["devices"]
    peak = device["peak"]
    assert peak["basis"] == "requested"
    assert sum(one["bytes"] for one in peak["by_site"]) == device["requested_bytes"]["peak"]
    assert peak["by_category"] == {"other": device["requested_bytes"]["peak"]}
    assert peak["by_site"][0]["site"] == {
        "file": "/home/anna/projects/nanogpt/train.py",
        "line": 210,
        "function": "main",
    }
    assert [frame["function"] for frame in peak["by_site"][0]["stack"]] == ["_init_group", "main", "<module>"]
    assert [one["site"] for one in peak["by_site"]].count(None) == 1
    assert peak["unattributed_bytes"] == 40 * MiB


def test_known_blocks_fill_allocated_and_active() -> None:
    (device,) = summary(training_trace(block_bytes_known=True))["devices"]
    assert device["peak"]["basis"] == "allocated"
    assert device["allocated_bytes"]["peak"] >= device["requested_bytes"]["peak"]
    assert sum(one["bytes"] for one in device["peak"]["by_site"]) == device["allocated_bytes"]["peak"]


@pytest.mark.parametrize(("total", "shown"), [(0, None), (24 << 30, 24 << 30)])
def test_card_of_a_refused_request_is_null_where_the_recording_does_not_say_it(total: int, shown: int | None) -> None:
    (device,) = summary(TraceBuilder().segment(2 * MiB).oom(5 * MiB, free=0, total=total).build())["devices"]
    (oom,) = device["ooms"]
    assert (oom["requested_bytes"], oom["free_bytes"], oom["total_bytes"]) == (5 * MiB, 0, shown)


def test_grouping_adds_its_own_list() -> None:
    (device,) = summary(training_trace(), by=GroupBy.SCOPE)["devices"]
    groups = device["peak"]["by_scope"]
    assert {one["key"] for one in groups} == {None, "step 0/optimizer", "step 1/backward", "step 1/forward"}
    assert sum(one["bytes"] for one in groups) == device["requested_bytes"]["peak"]


def test_several_traces_are_summaries_with_ranks() -> None:
    found = [summarise_trace(training_trace(rank=rank)) for rank in (0, 1)]
    document = json.loads(render_summaries(found))
    assert document["schema"] == "gpumem.summaries/1"
    assert [one["schema"] for one in document["traces"]] == ["gpumem.summary/1"] * 2
    assert [(one["rank"], one["reserved_bytes_peak"]) for one in document["ranks"]] == [
        (0, 2016 * MiB),
        (1, 2016 * MiB),
    ]


def test_timeline_has_the_keys_of_its_schema() -> None:
    document = json.loads(render_timeline(find_timeline(training_trace())))
    assert document["schema"] == "gpumem.timeline/1"
    (device,) = document["devices"]
    assert device["points"][0] == {
        "event": -1,
        "time_ns": 0,
        "allocated_bytes": None,
        "reserved_bytes": 0,
        "requested_bytes": 0,
    }
    assert {"name": "model built", "kind": "mark", "step": None}.items() <= device["marks"][0].items()
    assert max(point["reserved_bytes"] for point in device["points"]) == 2016 * MiB


def test_snapshot_has_the_keys_of_its_schema() -> None:
    builder = TraceBuilder(block_bytes_known=True).on(stream=9, pool=(1, 0)).segment(2 * MiB, "s")
    trace = builder.alloc("a", 3 * KiB, stack=[("train.py", 4, "f")]).reading(process_bytes=7).build()
    document = json.loads(render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("end")))))
    assert (document["schema"], document["event"], document["time_ns"]) == ("gpumem.snapshot/1", 1, 2_000_000)
    (device,) = document["devices"]
    (segment,) = device["segments"]
    blocks = segment.pop("blocks")
    assert segment == {
        "address": builder.segment_address("s"),
        "bytes": 2 * MiB,
        "allocated_bytes": 3 * KiB,
        "requested_bytes": 3 * KiB,
        "stream": 9,
        "pool": [1, 0],
        "expandable": False,
        "tiled": True,
    }
    assert blocks[0] == {
        "address": builder.address_of("a"),
        "bytes": 3 * KiB,
        "requested_bytes": 3 * KiB,
        "state": "allocated",
        "stack": [{"file": "train.py", "line": 4, "function": "f"}],
    }
    assert (blocks[1]["state"], blocks[1]["requested_bytes"], blocks[1]["stack"]) == ("free", None, [])
    assert device["nvml"]["process_bytes"] == 7


def test_names_that_are_no_text_stay_valid_json() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 10, stack=[("/tmp/\udcff\x1b[1m.py", 1, "f\n")])
    text = render_summaries([summarise_trace(builder.build())])
    text.encode("utf-8")
    (site,) = json.loads(text)["devices"][0]["peak"]["by_site"]
    assert site["site"] == {"file": "/tmp/\ufffd\x1b[1m.py", "line": 1, "function": "f\n"}


def test_same_trace_gives_the_same_bytes() -> None:
    assert render_summaries([summarise_trace(training_trace())]) == render_summaries(
        [summarise_trace(training_trace())]
    )


def test_error_explained_has_the_keys_of_its_schema() -> None:
    error = modern(
        "546.00 MiB", of="15.77 GiB", free="514.19 MiB", used="14.10 GiB", idle="736.86 MiB", pools="46.00 MiB"
    )
    document = json.loads(render_oom(explain_log(read_oom_text(f"start\n[rank3]: {error}\n"))))
    assert document["schema"] == "gpumem.oom/1"
    (message,) = document["messages"]
    assert set(message) >= {
        *("line", "rank", "requested_bytes", "free_bytes", "total_bytes", "allocated_bytes"),
        *("reserved_unallocated_bytes", "process_bytes", "limit_bytes", "verdict", "findings"),
    }
    assert (message["line"], message["rank"], message["device"]) == (2, 3, 0)
    assert message["requested_bytes"] == 546 * MiB
    assert message["reserved_unallocated_bytes"] == round(736.86 * MiB)
    assert (message["process_bytes"], message["limit_bytes"]) == (None, None)
    assert message["verdict"] == "fragmentation"
    first = message["findings"][0]
    assert (first["code"], first["bytes"]) == ("set_expandable", 546 * MiB - round(514.19 * MiB))
    assert first["command"] == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert all(set(finding) >= {"code", "text", "bytes"} for finding in message["findings"])


def test_error_without_figures_has_nulls() -> None:
    (message,) = json.loads(render_oom(explain_log(read_oom_text("CUDA error: out of memory"))))["messages"]
    assert message["verdict"] == "unknown"
    assert message["wording"] == "CUDA error: out of memory"
    nulls = ("rank", "requested_bytes", "free_bytes", "total_bytes", "allocated_bytes", "reserved_unallocated_bytes")
    assert all(message[key] is None for key in nulls)


def test_recording_that_ran_out_has_the_same_verdict_in_summary_and_snapshot() -> None:
    trace = training_trace(oom=True)
    (device,) = summary(trace)["devices"]
    heap = json.loads(render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("oom")))))["devices"][0]
    assert device["oom_verdict"] == heap["oom_verdict"]
    assert device["oom_verdict"]["verdict"] == "capacity"
    assert summary(training_trace())["devices"][0]["oom_verdict"] is None
    later = json.loads(render_snapshot(find_snapshot(trace, find_instant(trace, parse_moment("peak")))))
    assert later["devices"][0]["oom_verdict"] is None


def test_summary_without_a_recorded_allocator_has_nulls_where_nothing_is_known() -> None:
    (device,) = summary(unrecorded_trace())["devices"]
    assert device["requested_bytes"] == device["reserved_bytes"] == {"end": None, "peak": None}
    nulls = ("allocated_bytes", "active_bytes", "headroom_bytes", "peak", "reserved_peak", "alloc_count", "oom_count")
    assert {key: device[key] for key in nulls} == dict.fromkeys(nulls)
    assert device["nvml_process_bytes_peak"] == 9000 * MiB
