"""The heap at a moment."""

from __future__ import annotations

import pytest

from gpumem.analyses.snapshot import DeviceSnapshot, find_snapshot
from gpumem.errors import TraceTruncated
from gpumem.heap.instants import find_instant
from gpumem.trace.model import Trace
from gpumem.trace.moments import parse_moment
from gpumem.vocabulary import BlockState
from trace_builder import KiB, MiB, TraceBuilder

A = [("/home/a/train.py", 1, "first")]


def snapshot(trace: Trace, moment: str = "end") -> DeviceSnapshot:
    (device,) = find_snapshot(trace, find_instant(trace, parse_moment(moment))).devices
    return device


def test_native_trace_shows_blocks_without_their_bytes() -> None:
    builder = TraceBuilder().segment(2 * MiB, "s").alloc("a", 700, stack=A).alloc("b", 5000).free("a")
    device = snapshot(builder.build())
    (segment,) = device.segments
    assert (segment.address, segment.segment_bytes, segment.tiled) == (builder.segment_address("s"), 2 * MiB, False)
    assert segment.allocated_bytes is None
    assert [(one.block.address, one.block.block_bytes, one.block.requested_bytes) for one in segment.blocks] == [
        (builder.address_of("b"), None, 5000)
    ]
    before = snapshot(builder.build(), "event:2")
    assert [one.site.line if one.site else None for one in before.segments[0].blocks] == [1, None]


def test_known_blocks_tile_their_segment() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 512).alloc("b", 1000).alloc("c", 10)
    (segment,) = snapshot(builder.free("a").free_requested("c").build()).segments
    tiles = [(one.block.block_bytes, one.block.state, one.block.requested_bytes) for one in segment.blocks]
    assert tiles == [
        (512, BlockState.FREE, None),
        (1024, BlockState.ALLOCATED, 1000),
        (512, BlockState.PENDING, 10),
        (2 * MiB - 2048, BlockState.FREE, None),
    ]
    assert segment.tiled
    assert sum(one.block.block_bytes or 0 for one in segment.blocks) == segment.segment_bytes
    assert segment.allocated_bytes == 1024


def test_overlapping_blocks_name_the_event() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 512, block_bytes=4096)
    builder.blocks["a"].block_bytes = 512
    with pytest.raises(TraceTruncated, match="after event 2 the block at"):
        snapshot(builder.alloc("b", 512).build())


def test_expandable_ranges_grow_merge_and_split() -> None:
    builder = TraceBuilder().map(20 * MiB, "first").map(20 * MiB, "second").map(20 * MiB, "third")
    grown = snapshot(builder.build())
    assert [(one.segment_bytes, one.expandable) for one in grown.segments] == [(60 * MiB, True)]
    split = snapshot(builder.unmap("second").build())
    assert [(one.address, one.segment_bytes) for one in split.segments] == [
        (builder.segment_address("first"), 20 * MiB),
        (builder.segment_address("third"), 20 * MiB),
    ]


def test_adjacent_ranges_of_two_streams_stay_two_segments() -> None:
    builder = TraceBuilder().map(2 * MiB).on(stream=5).map(2 * MiB)
    assert [(one.segment_bytes, one.stream) for one in snapshot(builder.build()).segments] == [
        (2 * MiB, 0),
        (2 * MiB, 5),
    ]


def test_initial_segments_are_there_until_released() -> None:
    builder = TraceBuilder().initial("old", 9000, segment="early", segment_bytes=4 * MiB)
    builder.initial("range", 9000, segment="mapped", segment_bytes=8 * MiB, expandable=True).segment(2 * MiB)
    assert sorted(one.segment_bytes for one in snapshot(builder.build()).segments) == [2 * MiB, 4 * MiB, 8 * MiB]
    builder.free("old").release("early")
    assert sorted(one.segment_bytes for one in snapshot(builder.build()).segments) == [2 * MiB, 8 * MiB]
    builder.free("range").unmap("mapped")
    assert [one.segment_bytes for one in snapshot(builder.build()).segments] == [2 * MiB]
    assert len(snapshot(builder.build(), "start").segments) == 2


def test_private_pool_and_nearest_reading_are_shown() -> None:
    builder = TraceBuilder().on(pool=(1, 0)).segment(2 * MiB).reading(process_bytes=5 * MiB).alloc("a", 4 * KiB)
    device = snapshot(builder.build())
    assert device.segments[0].pool == (1, 0)
    assert device.nvml is not None
    assert device.nvml.process_bytes == 5 * MiB


def test_block_outside_every_known_segment_is_kept_apart() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100)
    builder.rows[0]["kind"] = 5  # the segment's own event is missing
    device = snapshot(builder.build())
    assert device.segments == []
    assert [one.block.requested_bytes for one in device.unplaced_blocks] == [100]
    assert device.requested_bytes == 100
