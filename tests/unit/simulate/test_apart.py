"""A trace by allocator: whose events and blocks are whose, and what each was given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpumem.errors import TraceForeign
from gpumem.simulate.apart import tell_apart
from gpumem.trace.allocators import code_of_own
from gpumem.trace.model import AllocatorFacts, ColumnEvents, Trace
from gpumem.vocabulary import DeviceOrdinal, EventFlag, EventIndex, TraceSource
from trace_builder import GiB, MiB, TraceBuilder

OWN = EventFlag.OWN_ALLOCATOR


def with_flags(trace: Trace, flags: list[int], *own: AllocatorFacts, **changes: Any) -> Trace:
    """The trace with these flags of its events, and these allocators of gpumem's."""
    assert isinstance(trace.events, ColumnEvents)
    columns = {**trace.events.columns, "flags": np.array(flags, np.uint16)}
    meta = replace(trace.meta, allocators=own, **changes)
    return replace(trace, events=ColumnEvents(columns), meta=meta)


def devices(trace: Trace) -> list[int]:
    return [int(device) for batch in trace.event_batches(("device",)) for device in batch["device"]]


def test_a_trace_of_one_allocator_a_device_is_read_as_it_is() -> None:
    native = TraceBuilder().segment(2 * MiB).alloc("a", 1).on(device=1).segment(2 * MiB).build()
    assert tell_apart(native).trace is native
    given = (AllocatorFacts(0, 3, ""), AllocatorFacts(1, 3, "max_split_size_mb:64"))
    ours = with_flags(native, [OWN | 3 << 8] * 3, *given, source=TraceSource.GPUMEM)
    apart = tell_apart(ours)
    assert apart.trace is ours
    found = [(ordinal, one.number, one.settings) for ordinal, one in apart.allocators.items()]
    assert found == [(0, 3, ""), (1, 3, "max_split_size_mb:64")]
    named_by_none = replace(
        native, meta=replace(native.meta, source=TraceSource.GPUMEM, settings="max_split_size_mb:20")
    )
    apart = tell_apart(named_by_none)
    assert (apart.trace is named_by_none, apart.allocator(DeviceOrdinal(0)).settings) == (True, "max_split_size_mb:20")


def test_the_first_allocator_keeps_the_device_and_the_others_get_ordinals_that_none_has() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 1).alloc("b", 1).alloc("c", 1).mark("x")
    builder.on(device=1).segment(2 * MiB).device_facts(3)
    flags = [0, OWN | 5 << 8 | EventFlag.SPLIT, OWN | EventFlag.CACHE_HIT, 0, 0, OWN | 5 << 8]
    trace = with_flags(builder.build(), flags, AllocatorFacts(0, 5, ""))
    apart = tell_apart(trace)
    assert devices(apart.trace) == [0, 4, 2, 0, 255, 1]
    assert {ordinal: (one.facts.device, one.code) for ordinal, one in apart.allocators.items()} == {
        0: (0, 0),
        2: (0, code_of_own(0)),
        4: (0, code_of_own(5)),
        1: (1, code_of_own(5)),
    }
    assert apart.find(DeviceOrdinal(0), code_of_own(5)) == (apart.trace, 4)
    (batch,) = apart.trace.event_batches(("flags",))
    assert batch["flags"].tolist() == [0, EventFlag.SPLIT, EventFlag.CACHE_HIT, 0, 0, 0]
    (part,) = apart.trace.event_batches(("device", "address"), first_event=EventIndex(1), end_event=3)
    assert (part.first_event, part.count, sorted(part.columns)) == (1, 2, ["address", "device"])
    assert part["device"].tolist() == [4, 2]
    assert apart.ordinals_of([DeviceOrdinal(0), DeviceOrdinal(3)]) == [0, 2, 3, 4]


def test_each_allocator_has_the_facts_that_it_was_given() -> None:
    builder = TraceBuilder(settings="max_split_size_mb:64").segment(2 * MiB).alloc("a", 1).alloc("b", 1)
    builder.device_facts(memory_limit_bytes=GiB, torch_allocated_bytes_peak=7)
    given = (AllocatorFacts(0, 1, "", 3 * GiB), AllocatorFacts(0, 2, "expandable_segments:True"))
    built = builder.build()
    apart = tell_apart(with_flags(built, [0, OWN | 1 << 8, OWN | 2 << 8], *given))
    facts = {one.device: one for one in apart.trace.meta.devices}
    assert [apart.allocator(ordinal).settings for ordinal in sorted(facts)] == [
        "max_split_size_mb:64",
        "",
        "expandable_segments:True",
    ]
    assert [facts[one].capacity_bytes for one in sorted(facts)] == [140 * GiB, 3 * GiB, 140 * GiB]
    assert [facts[one].memory_limit_bytes for one in sorted(facts)] == [GiB, None, GiB]
    assert [facts[one].torch_allocated_bytes_peak for one in sorted(facts)] == [7, None, None]
    assert [apart.trace.knows_blocks(one) for one in sorted(facts)] == [False, True, True]


def test_blocks_from_before_the_recording_go_to_their_allocator() -> None:
    builder = TraceBuilder().initial("a", MiB).initial("b", MiB, segment="other").free("a").free("b")
    built = builder.build()
    first, second = built.initial_blocks
    flagged = with_flags(built, [0, OWN], AllocatorFacts(0, 0, ""))
    apart = tell_apart(replace(flagged, initial_blocks=[first, replace(second, flags=OWN)]))
    assert [(block.device, block.flags) for block in apart.trace.initial_blocks] == [(0, 0), (1, 0)]
    assert devices(apart.trace) == [0, 1]


def test_more_allocators_than_can_be_are_refused() -> None:
    builder = TraceBuilder()
    for _ in range(256):
        builder.segment(2 * MiB)
    trace = with_flags(builder.build(), [OWN | number << 8 for number in range(256)], AllocatorFacts(0, 0, ""))
    with pytest.raises(TraceForeign, match="names 256 allocators, more than a recording can have"):
        tell_apart(trace)
