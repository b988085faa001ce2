"""Traces with NVML readings, for the ledger: a process that grows outside its allocator, gaps, pools, workspaces.

Owns: their numbers. Must not know: reports.
"""

from __future__ import annotations

from typing import Any

from gpumem.trace.model import Trace
from gpumem.vocabulary import TraceSource
from trace_builder import GiB, MiB, TraceBuilder

CARD_BYTES = 143_771 * MiB
RESERVE_BYTES = 615 * MiB
CONTEXT_BYTES = 518 * MiB
DRIVER_BYTES = 9 * MiB
TRAIN = "/home/anna/train.py"
LINEAR = [("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "Linear.forward"), (TRAIN, 20, "step")]


def read(builder: TraceBuilder, process_bytes: int, *, others: int | None = 0, **figures: Any) -> TraceBuilder:
    """NVML is read: this process, the others, the driver's few bytes of no process."""
    used = process_bytes + (others or 0) + DRIVER_BYTES
    return builder.reading(
        total_bytes=CARD_BYTES,
        used_bytes=used,
        free_bytes=CARD_BYTES - RESERVE_BYTES - used,
        reserved_bytes=RESERVE_BYTES,
        process_bytes=process_bytes,
        other_processes_bytes=others,
        **figures,
    )


def lay(builder: TraceBuilder, outside_mib: int, reserved_mib: int) -> TraceBuilder:
    """A reading of a process with so many MiB outside its allocator and in it."""
    return read(builder, (outside_mib + reserved_mib) * MiB)


def explained_trace(*, block_bytes_known: bool = True, **meta: Any) -> Trace:
    """A context of 518 MiB, 92 MiB of kernels, a workspace and 66 MiB at the first product, then gaps, pending and a
    private pool.
    """
    builder = TraceBuilder(block_bytes_known=block_bytes_known, **meta)
    builder.wait(10**9).mark("cuda started")
    lay(builder, 518, 0)
    builder.segment(2 * MiB).alloc("tiny", 4, stack=[(TRAIN, 7, "main")]).mark("first kernel")
    lay(builder, 610, 2)
    builder.segment(20 * MiB).alloc("result", 3 * MiB, stack=LINEAR)
    builder.segment(32 * MiB).alloc("workspace", 32 * MiB, stack=LINEAR).mark("first product")
    lay(builder, 676, 54)
    builder.segment(1 * GiB).alloc("cache", 1 * GiB, stack=[(TRAIN, 30, "load")])
    builder.segment(64 * MiB).alloc("big", 40 * MiB, stack=LINEAR).alloc("kept", 18 * MiB, stack=[(TRAIN, 31, "load")])
    builder.free("big").free("cache").alloc("soon free", 2 * MiB).free_requested("soon free")
    builder.on(pool=(1, 0)).segment(20 * MiB).alloc("captured", 5 * MiB, stack=LINEAR).on().mark("settled")
    lay(builder, 676, 54 + 1024 + 64 + 20)
    return builder.wait(10**9).build()


def unrecorded_trace() -> Trace:
    """A process of which NVML's readings and marks are all there is; it gave back most of what it held."""
    builder = TraceBuilder(source=TraceSource.NONE, notes=("The program did not import torch.",)).mark("start")
    lay(builder, 600, 0).wait(10**9).mark("trained")
    return lay(lay(builder, 9000, 0).wait(10**9).mark("saved"), 800, 0).build()
