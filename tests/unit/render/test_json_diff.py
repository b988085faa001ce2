"""gpumem.diff/1: every key, and sums that hold."""

from __future__ import annotations

import json
from typing import Any

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_headline import check_growth
from gpumem.render.json_diff import render_diff
from gpumem.trace.model import Trace
from gpumem.trace.moments import End, parse_moment
from trace_builder import GiB, MiB, TraceBuilder
from training_trace import training_trace

CACHE = [("/home/a/train.py", 41, "build_cache")]


def run(caches: int, *, known: bool = True, settings: str = "") -> Trace:
    builder = TraceBuilder(block_bytes_known=known, settings=settings).segment(8 * GiB)
    for number in range(caches):
        builder.alloc(f"cache {number}", 1 * GiB, stack=CACHE)
    return builder.alloc("gradient", 3 * MiB).build()


def test_document_holds_both_sides_and_every_group() -> None:
    document = json.loads(render_diff(compare_traces(run(1), run(4, settings="backend:native"))))
    assert document["schema"] == "gpumem.diff/1"
    assert document["headline"].startswith("train.py:41 build_cache holds 3.00 GiB more (1.00 → 4.00 GiB")
    assert document["before"] == {
        "path": "train.4711.gpumem", "moment": "peak", "event": 2, "time_ns": 3_000_000, "source": "native",
        "truncated": False, "records_lost": 0,
    }  # fmt: skip
    assert document["after"]["event"] == 5
    assert document["basis"] == "allocated"
    assert document["settings"] == [{"name": "allocator settings", "before": None, "after": "backend:native"}]
    assert document["fail_above"] is None
    (device,) = document["devices"]
    assert device["allocated_bytes"] == {"before": GiB + 3 * MiB, "after": 4 * GiB + 3 * MiB, "delta": 3 * GiB}
    assert device["reserved_bytes_peak"] == {"before": 8 * GiB, "after": 8 * GiB, "delta": 0}
    frame = {"file": "/home/a/train.py", "line": 41, "function": "build_cache"}
    assert device["by_site"] == device["by_stack"]
    assert device["by_site"] == [
        {
            "held": "lines", "change": "grown", "site": frame, "before_site": frame, "after_site": frame,
            "stack": [frame], "before_bytes": GiB, "after_bytes": 4 * GiB, "delta_bytes": 3 * GiB,
            "before_count": 1, "after_count": 4,
        },
        {
            "held": "without_stack", "change": "same", "site": None, "before_site": None, "after_site": None,
            "stack": [], "before_bytes": 3 * MiB, "after_bytes": 3 * MiB, "delta_bytes": 0,
            "before_count": 1, "after_count": 1,
        },
    ]  # fmt: skip


def test_figures_not_known_are_null() -> None:
    (device,) = json.loads(render_diff(compare_traces(run(1), run(1, known=False))))["devices"]
    assert device["allocated_bytes"] is device["allocated_bytes_peak"] is None
    assert device["requested_bytes_peak"]["delta"] == 0
    cut = TraceBuilder(history_truncated=True).segment(2 * MiB).alloc("a", 100).build()
    (device,) = json.loads(render_diff(compare_traces(cut, run(1, known=False))))["devices"]
    assert device["reserved_bytes_peak"] == {"before": None, "after": 8 * GiB, "delta": None}


def test_limit_on_growth_names_each_figure() -> None:
    diff = compare_traces(run(1), run(4))
    found = json.loads(render_diff(diff, check_growth(diff, 2 * GiB)))["fail_above"]
    assert found == {
        "limit_bytes": 2 * GiB,
        "passed": False,
        "figures": [
            {"device": 0, "name": "allocated_bytes", "delta_bytes": 3 * GiB, "passed": False},
            {"device": 0, "name": "reserved_bytes_peak", "delta_bytes": 0, "passed": True},
        ],
    }
    assert json.loads(render_diff(diff, check_growth(diff, 3 * GiB)))["fail_above"]["passed"]


def test_moments_of_one_trace_hold_their_reserved_bytes_to_the_limit() -> None:
    trace = training_trace()
    diff = compare_traces(trace, trace, before_moment=parse_moment("mark:model built"), after_moment=End())
    document: dict[str, Any] = json.loads(render_diff(diff, check_growth(diff, 0)))
    assert [one["name"] for one in document["fail_above"]["figures"]] == ["requested_bytes", "reserved_bytes"]
    assert (document["before"]["moment"], document["after"]["moment"]) == ("mark:model built", "end")
