"""The page's pictures of a device: which stacks they tell, and that those are bounded."""

from __future__ import annotations

import pytest

from gpumem.analyses import page_canvases
from gpumem.analyses.page_canvases import PageCanvases, find_canvases
from gpumem.heap.scan import scan_trace
from trace_builder import MiB, TraceBuilder


def canvases(*, stacks_max: int = 100) -> PageCanvases:
    """Three blocks of 1, 2 and 3 MiB, each with a stack of two frames."""
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    for number in (1, 2, 3):
        stack = [("train.py", number, f"f{number}"), ("train.py", 100, "main")]
        builder.alloc(f"b{number}", number * MiB, stack=stack)
    trace = builder.build()
    (scan,) = scan_trace(trace)
    return find_canvases(trace, scan, bands_max=10, cells_max=1000, stacks_max=stacks_max)


def test_stacks_come_with_site_and_frames() -> None:
    found = canvases()
    sites = [None if one.site is None else one.site.function for one in found.stacks]
    assert sites == [None, "f1", "f2", "f3"]
    assert [frame.function for frame in found.stacks[3].frames] == ["f3", "main"]
    assert len(found.ledgers) == len(found.heap.moments)
    assert [one.instant for one in found.ledgers] == [one.moment.instant for one in found.heap.moments]


def test_of_many_stacks_those_of_the_largest_blocks_are_listed() -> None:
    sites = [None if one.site is None else one.site.function for one in canvases(stacks_max=2).stacks]
    assert sites == [None, "f3"]


def test_frames_are_kept_while_there_is_room_and_sites_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_canvases, "CHARACTERS_MAX", 30)
    found = canvases().stacks
    assert [len(one.frames) for one in found] == [0, 0, 2, 2]
    assert [one.frame_count for one in found] == [0, 2, 2, 2]
    assert [one.site.function for one in found if one.site] == ["f1", "f2", "f3"]
