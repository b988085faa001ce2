"""A training run of a few steps as a trace: what the goldens show and the command tests read.

Owns: numbers that look like those of a real run. Must not know: reports.
"""

from __future__ import annotations

from typing import Any

from gpumem.trace.model import Trace
from trace_builder import MS, GiB, KiB, MiB, TraceBuilder

CAPACITY_BYTES = 150_754_820_096
PROJECT = "/home/anna/projects/nanogpt"
PACKAGES = "/opt/venv/lib/python3.11/site-packages/torch"
MAIN = [(f"{PROJECT}/train.py", 210, "main"), (f"{PROJECT}/train.py", 260, "<module>")]


def layer_stack(module: str, file: str, line: int) -> list[tuple[str, int, str]]:
    """The stack of an allocation inside a layer of the model."""
    return [
        (f"{PACKAGES}/nn/modules/{module}.py", 98, "forward"),
        (f"{PROJECT}/model/transformer/{file}.py", line, "CausalSelfAttention.forward"),
        *MAIN,
    ]


def training_trace(
    *, steps: int = 4, layers: int = 6, oom: bool = False, block_bytes_known: bool = False, **meta: Any
) -> Trace:
    """Parameters, then per step: activations, gradients that free them, an optimizer with its state, a reading."""
    meta.setdefault("versions", {"torch": "2.11.0+cu130"})
    builder = TraceBuilder(block_bytes_known=block_bytes_known, command_line=("train.py", "--epochs", "3"), **meta)
    builder.device_facts(
        0,
        nvml_index=3,
        uuid="GPU-52f3",
        capacity_bytes=CAPACITY_BYTES,
        torch_allocated_bytes_end=660 * MiB,
        torch_allocated_bytes_peak=1300 * MiB,
        torch_reserved_bytes_end=2160 * MiB,
        torch_reserved_bytes_peak=2160 * MiB,
    )
    builder.wait(1000 * MS)
    for layer in range(layers):
        builder.segment(64 * MiB)
        for name, mebibytes in (("qkv", 27), ("proj", 9), ("mlp", 18)):
            file = "mlp" if name == "mlp" else "blocks"
            stack = layer_stack("linear", file, 40 + len(name))
            builder.alloc(f"parameter {layer} {name}", mebibytes * MiB - 4096, stack=stack)
    builder.mark("model built")
    read(builder, process_bytes=900 * MiB, other_processes_bytes=0)
    for step in range(steps):
        one_step(builder, step, layers)
    if oom:
        builder.oom(200 * GiB, free=136 * GiB, total=CAPACITY_BYTES)
    return builder.wait(500 * MS).build()


def one_step(builder: TraceBuilder, step: int, layers: int) -> None:
    """Forward, backward on autograd's thread without a Python stack, optimizer."""
    builder.scope(f"step {step}", "forward")
    for layer in range(layers):
        for part in range(4):
            if step == 0:
                builder.segment(20 * MiB)
            builder.wait((3 * layer + part) % 11 * MS)
            builder.alloc(
                f"activation {layer} {part}",
                19 * MiB - layer * 70_000,
                stack=layer_stack("functional", "attention", 80 + part),
            )
            builder.alloc("temporary", 100 * KiB, stack=[("/usr/lib/python3.11/random.py", 3, "random"), *MAIN])
            builder.wait(3 * MS).free("temporary")
    builder.scope(f"step {step}", "backward").on(thread="autograd")
    for layer in range(layers):
        if step == 0:
            builder.segment(64 * MiB)
        builder.alloc(f"gradient {layer}", 40 * MiB)
        for part in range(4):
            builder.free(f"activation {layer} {part}").wait(4 * MS)
    builder.on().scope(f"step {step}", "optimizer")
    for layer in range(layers):
        if step == 0:
            builder.segment(128 * MiB)
            stack = [(f"{PACKAGES}/optim/adamw.py", 130, "_init_group"), *MAIN]
            builder.alloc(f"state {layer}", 54 * MiB, stack=stack)
        builder.free(f"gradient {layer}")
    read(builder, process_bytes=2700 * MiB, other_processes_bytes=None)
    builder.scope().step()


def read(builder: TraceBuilder, *, process_bytes: int, other_processes_bytes: int | None) -> None:
    """An NVML reading of the card."""
    builder.reading(
        total_bytes=CAPACITY_BYTES,
        used_bytes=process_bytes,
        free_bytes=CAPACITY_BYTES - 615 * MiB - process_bytes,
        reserved_bytes=615 * MiB,
        process_bytes=process_bytes,
        other_processes_bytes=other_processes_bytes,
        unavailable={} if other_processes_bytes is not None else {"other_processes_bytes": "hidden by the container"},
    )
