"""Blocks kept in two layers are those of one live table, however small the upper layer is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses import held_by_site
from gpumem.analyses.held_by_site import HeldBySite
from gpumem.heap.levels import basis_column, split_by_device
from gpumem.heap.live import LiveTable, apply_events, initial_table
from gpumem.trace.model import Trace
from gpumem.vocabulary import DeviceOrdinal
from random_traces import CutEvents, traces
from trace_builder import MiB, TraceBuilder

COLUMNS = ("time_ns", "kind", "device", "address", "requested_bytes", "block_bytes", "stack")
CARRIED = ("requested_bytes", "block_bytes", "stack")


def rows(table: LiveTable) -> list[tuple[int, ...]]:
    columns = [table.address, table.event, *(table[name] for name in CARRIED)]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(0, 3))
def test_layers_hold_what_one_table_holds(drawn: tuple[Trace, int, bool], upper_rows: int) -> None:
    trace, length, _ = drawn
    initial = [block for block in trace.initial_blocks if block.device == 0]
    column = basis_column(trace, 0)
    table = initial_table(initial, CARRIED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_by_site, "UPPER_ROWS", upper_rows)
        held = HeldBySite(initial_table(initial, CARRIED), column, lambda stacks: stacks % 3)
        for batch in CutEvents(trace, length).batches(COLUMNS, 0, trace.event_count):
            for events in split_by_device(batch, [DeviceOrdinal(0)]):
                table = apply_events(table, events)
                held.apply(events)
                assert rows(held.blocks()) == rows(table.held())
                sums = np.zeros(3, np.int64)
                found = held.sums()
                sums[: len(found)] = found
                plain = np.bincount(table.held()["stack"] % 3, weights=table.held()[column], minlength=3)
                assert sums.tolist() == plain.tolist()


def test_a_block_in_the_lower_layer_is_left_once() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    for number in range(6):
        builder.alloc(f"b{number}", MiB, stack=[("/w/a.py", number + 1, "f")])
    builder.free_requested("b2").free_completed("b2").free("b4").alloc("again", 3 * MiB)
    trace = builder.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_by_site, "UPPER_ROWS", 2)
        held = HeldBySite(initial_table([], CARRIED), "block_bytes", np.zeros_like)
        for batch in CutEvents(trace, 1).batches(COLUMNS, 0, trace.event_count):
            for events in split_by_device(batch):
                held.apply(events)
    assert held.sums().tolist() == [7 * MiB]
    assert len(held.blocks()) == 5
