"""The tests' own builder of traces makes what it says."""

from __future__ import annotations

import numpy as np

from gpumem.vocabulary import EventKind, StackId
from trace_builder import GiB, KiB, MiB, TraceBuilder


def test_builder_places_blocks_first_fit_and_uses_freed_addresses_again() -> None:
    builder = TraceBuilder().segment(2 * MiB, "s").alloc("a", 512 * KiB).alloc("b", 100).free("a").alloc("c", 512 * KiB)
    assert builder.address_of("a") == builder.address_of("c") == builder.segment_address("s")
    assert builder.address_of("b") == builder.segment_address("s") + 512 * KiB
    trace = builder.build()
    assert trace.event_count == 5
    batch = next(trace.event_batches(["kind", "requested_bytes", "block_bytes"]))
    assert [EventKind(kind).name for kind in batch["kind"]] == ["SEGMENT_ALLOC", "ALLOC", "ALLOC", "FREE", "ALLOC"]
    assert batch["requested_bytes"].tolist() == [2 * MiB, 512 * KiB, 100, 512 * KiB, 512 * KiB]
    assert not np.any(batch["block_bytes"])


def test_builder_keeps_stacks_marks_devices_and_streams() -> None:
    stack = [("train.py", 10, "main"), ("train.py", 30, "<module>")]
    builder = TraceBuilder(block_bytes_known=True).on(device=1, stream=7).segment(2 * MiB)
    trace = builder.alloc("a", 100, stack=stack).mark("x").step().step().build()
    batch = next(trace.event_batches(["stack", "device", "block_bytes"]))
    frames = trace.stack_frames(StackId(int(batch["stack"][1])))
    assert [(f.file, f.line, f.function) for f in frames] == stack
    assert batch["device"].tolist() == [1, 1, 255, 255, 255]
    assert batch["block_bytes"].tolist() == [0, 512, 0, 0, 0]
    assert [(mark.name, mark.step, mark.event) for mark in trace.marks] == [("x", None, 2), ("", 0, 3), ("", 1, 4)]
    assert [row.handle for row in trace.streams] == [0, 0, 7]
    assert trace.meta.devices[1].capacity_bytes == 140 * GiB
