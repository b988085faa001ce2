"""The traces and logs that reports are looked at with: several devices, hostile names, a full card, a slow start.

Owns: their numbers. Must not know: reports.
"""

from __future__ import annotations

from explained_traces import unrecorded_trace
from gpumem.trace.model import Trace
from oom_messages import classic, cupy, gpumem, modern
from trace_builder import MS, GiB, MiB, TraceBuilder
from training_trace import training_trace

HOSTILE = [("/tmp/[bold red]\x1b[31m\udcff\u202e/" + "x" * 90 + ".py", 123456, "f" * 80 + "[/]\n")]


def several_devices() -> Trace:
    """Two devices, three streams, a private pool, expandable and pending blocks, a limit, lost events."""
    builder = TraceBuilder(
        records_lost=3,
        ended_by="signal 9",
        stacks_off="Stacks are off: this is a free-threaded Python; run the program with the standard build.",
    )
    builder.device_facts(0, name="NVIDIA H200", capacity_bytes=2 * GiB, memory_limit_bytes=1 * GiB)
    builder.segment(1400 * MiB).alloc("big", 1300 * MiB).mark("a" * 100)
    builder.on(stream=0x55D0C8A1F3B0, pool=(1, 0)).segment(20 * MiB).alloc("graph", 11 * MiB).free_requested("graph")
    builder.alloc("next", 3 * MiB).on(device=1).map(20 * MiB, "first").map(20 * MiB).map(40 * MiB, "last")
    for number in range(9):
        builder.wait(7 * MS).alloc(f"b{number}", (number % 3 + 1) * MiB)
    builder.free("b1").free("b4").unmap("last")
    builder.device_facts(1, name=None, capacity_bytes=None)
    return builder.build()


def hostile() -> Trace:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 100, stack=HOSTILE).mark("[blink]x\x07\n\u202e")
    return builder.build()


def near_capacity() -> Trace:
    """A card that is nearly full, and many marks."""
    builder = TraceBuilder().device_facts(capacity_bytes=8 * GiB)
    for number in range(20):
        builder.segment(350 * MiB).alloc(f"b{number}", 300 * MiB).mark(f"block {number}")
    return builder.oom(1 * GiB, free=900 * MiB, total=8 * GiB).build()


def slow_start() -> Trace:
    """Nine seconds of imports, then three steps in 60 ms."""
    builder = TraceBuilder(block_bytes_known=True).wait(4000 * MS).segment(2 * MiB).alloc("small", MiB)
    builder.wait(5000 * MS).segment(60 * MiB).alloc("weights", 20 * MiB)
    for _ in range(3):
        builder.wait(4 * MS).alloc("a", 10 * MiB).wait(4 * MS).alloc("b", 20 * MiB).wait(4 * MS).free("a").free(
            "b"
        ).step()
    return builder.build()


TRACES = {
    "training": training_trace,
    "training_oom": lambda: training_trace(oom=True),
    "training_known": lambda: training_trace(block_bytes_known=True),
    "devices": several_devices,
    "hostile": hostile,
    "near_capacity": near_capacity,
    "not_recorded": unrecorded_trace,
    "empty": lambda: TraceBuilder().build(),
}


def ranks_of_one_log() -> str:
    """Seven ranks whose card is full, one whose card another program holds, a library's error, a worker's."""
    errors = [
        f"[rank{rank}]: "
        + modern(
            "1.96 GiB", of="79.15 GiB", free=f"{rank + 1}06.62 MiB", process="78.50 GiB", used=f"77.{rank}0 GiB",
            idle="312.00 MiB", gpu=rank,
        )
        for rank in range(7)
    ]  # fmt: skip
    errors.append(
        "[rank7]: "
        + modern(
            "9.00 GiB", of="79.15 GiB", free="1.10 GiB", others=[(90210, "41.00 GiB")], process="37.05 GiB",
            used="36.20 GiB", idle="200.00 MiB", gpu=7,
        )
    )  # fmt: skip
    errors.append(
        "(RayWorker pid=4711, ip=10.0.0.7) RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling f"
    )
    return "\n".join(errors)


OOM_LOGS = {
    "capacity": modern(
        "16.00 GiB", of="44.53 GiB", free="187.94 MiB", process="44.34 GiB", used="43.67 GiB", idle="335.07 MiB"
    ),
    "fragmentation": modern(
        "546.00 MiB", of="15.77 GiB", free="514.19 MiB", others=[(1, "15.26 GiB")], used="14.10 GiB",
        idle="736.86 MiB", pools="46.00 MiB",
    ),
    "limit": modern(
        "64.00 MiB", of="79.15 GiB", free="38.09 GiB", process="41.06 GiB", used="39.10 GiB", idle="427.46 MiB",
        release="2.1",
    ),
    "private_pools": modern(
        "1.00 GiB", of="39.39 GiB", free="300.00 MiB", process="39.09 GiB", used="38.10 GiB", pools="6.20 GiB",
        idle="412.00 MiB", release="2.11",
    ),
    "outside": modern(
        "5.00 GiB", of="39.39 GiB", free="1.20 GiB", others=[(7, "12.00 GiB"), (8, "9.50 GiB")], process="16.69 GiB",
        used="15.80 GiB", idle="210.00 MiB",
    ),
    "spill": classic("20.00 MiB", of="8.00 GiB", used="17.20 GiB", free="0 bytes", reserved="17.53 GiB"),
    "rounded": modern("3.00 GiB", of="23.65 GiB", free="1.00 GiB", used="18.00 GiB", idle="2.00 GiB"),
    "cublas": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "xla": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    "cupy": cupy(8 * GiB, 12 * GiB, 16 * GiB),
    "gpumem": gpumem("512.00 MiB", of="8.00 GiB", free="100.00 MiB", held="7.50 GiB", used="6.00 GiB").replace(
        "NVIDIA H200", "NVIDIA \x1b[31m[bold]\u202e H200"
    ),
    "ranks": ranks_of_one_log(),
}  # fmt: skip
