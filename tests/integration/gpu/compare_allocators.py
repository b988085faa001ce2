"""On a real GPU: programs under gpumem's allocator and under PyTorch's own do the same, decision by decision.

Each workload runs twice, recorded by `gpumem run --allocator native` and `--allocator gpumem`. Compared are what the
program printed (losses, errors' texts), every figure of torch.cuda.memory_stats(), and the recorded sequence of (kind,
requested bytes, block bytes, stream in the order of first use).

Of equal free blocks the lowest is taken, so some counts depend on the order of the segments' addresses, which the
driver chooses. Where it chose differently and something differs, the two run again.

    python tests/integration/gpu/compare_allocators.py [--folder DIR] [WORKLOAD…]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[2] / "sample_traces" / "scripts"
GIB = 1 << 30
Event = tuple[str, int, int, int]

NINE_STEPS_MIB = [
    (0, 0),
    (0, 2),
    (1024, 1026),
    (2048, 2050),
    (1024, 2050),
    (2048, 2050),
    (2048, 3074),
    (3072, 3074),
    (2048, 3074),
    (2048, 3074),
    (3072, 3074),
]
"""Allocated and reserved after each mark of nine_steps.py, as PyTorch said."""


def load(path: Path) -> Any:
    """The script at `path` as a module, its main not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_gpt2() -> dict[str, Any]:
    return {"loss": load(SAMPLES / "gpt2_train.py").train(steps=4, depth=4, batch_rows=4, device="cuda")}


def train_resnet50() -> dict[str, Any]:
    import torch

    torch.backends.cudnn.deterministic = True
    return {"loss": load(SAMPLES / "resnet50_train.py").train(steps=3, batch_rows=8, pixels=128, device="cuda")}


def train_resnet50_benchmark() -> dict[str, Any]:
    """cudnn.benchmark chooses by time: that it runs is all that can be compared."""
    import torch

    torch.backends.cudnn.benchmark = True
    loss = load(SAMPLES / "resnet50_train.py").train(steps=3, batch_rows=8, pixels=128, device="cuda")
    return {"is_finite": loss == loss}


def run_nine_steps() -> dict[str, Any]:
    load(SAMPLES / "nine_steps.py").main()
    return {}


def run_out_of_memory() -> dict[str, Any]:
    return {"exit": load(SAMPLES / "out_of_memory.py").main()}


def exhaust_card() -> dict[str, Any]:
    """Takes the whole card in pieces until the driver refuses, gives some back, and asks again."""
    import torch

    held: list[torch.Tensor] = []
    texts = []
    for piece_bytes in (4 * GIB, 100 << 20, 3 << 20, 1 << 20):
        try:
            while True:
                held.append(torch.empty(piece_bytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            texts.append(without_process(str(error)))
    try:
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        texts.append(f"{type(error).__name__}: {without_process(str(error))}")
    del held[2:6]
    held.append(torch.empty(5 * GIB, dtype=torch.uint8, device="cuda"))
    count = len(held)
    del held
    torch.cuda.empty_cache()
    return {"count": count, "texts": texts, "reserved": torch.cuda.memory_reserved()}


def without_process(text: str) -> str:
    """An out-of-memory text without what NVML said of processes."""
    return re.sub(
        r"(Process \d+ has|Including non-PyTorch memory, this process has) [\d.]+ \w+ memory in use\. ", "", text
    )


def fragment() -> dict[str, Any]:
    """Blocks of many sizes come and go, so that holes remain; then large ones."""
    import torch

    generator = torch.Generator().manual_seed(3)
    held: list[torch.Tensor | None] = []
    for size in torch.randint(1 << 10, 40 << 20, (400,), generator=generator).tolist():
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        if size % 3 == 0:
            held[size % len(held)] = None
    del held[::2]
    torch.cuda.empty_cache()
    large = [torch.empty(200 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    return {"large": len(large)}


def use_streams() -> dict[str, Any]:
    """Tensors used on another stream and freed while it works; the device is waited for at fixed points only."""
    import torch

    side = torch.cuda.Stream()
    total = torch.zeros((), device="cuda")
    for number in range(60):
        tensor = torch.full((1 << 20,), float(number), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total += tensor.sum()
            tensor.record_stream(side)
        del tensor
        torch.cuda.synchronize()
    return {"total": total.item()}


def capture_graph() -> dict[str, Any]:
    """A captured graph with its private pool, replayed."""
    import torch

    weight = torch.randn(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    source = torch.ones(64, 512, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            (source @ weight).relu().sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ((source @ weight).relu() @ weight).sum()
    graph.replay()
    torch.cuda.synchronize()
    value = round(result.item(), 1)
    del graph, result
    torch.cuda.empty_cache()
    return {"value": value}


WORKLOADS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "gpt2": (train_gpt2, ""),
    "gpt2-expandable": (train_gpt2, "expandable_segments:True"),
    "gpt2-split": (train_gpt2, "max_split_size_mb:20,roundup_power2_divisions:4"),
    "resnet50": (train_resnet50, ""),
    "resnet50-benchmark": (train_resnet50_benchmark, ""),
    "nine-steps": (run_nine_steps, ""),
    "out-of-memory": (run_out_of_memory, ""),
    "fragment": (fragment, ""),
    "fragment-expandable": (fragment, "expandable_segments:True"),
    "streams": (use_streams, ""),
    "graph": (capture_graph, ""),
    "exhaust": (exhaust_card, ""),
    "exhaust-expandable": (exhaust_card, "expandable_segments:True"),
}
"""Name: what runs, allocator settings."""
ALONE = ("exhaust", "exhaust-expandable")
NOT_COMPARED_BY_EVENT = ("resnet50-benchmark",)
RUNS_AT_MOST = 4


def work(name: str) -> None:
    """Runs one workload in this process; its last line says what came of it."""
    import torch

    said = WORKLOADS[name][0]()
    torch.cuda.synchronize()
    figures = {
        "stats": torch.cuda.memory_stats(),
        "max_allocated": torch.cuda.max_memory_allocated(),
        "max_reserved": torch.cuda.max_memory_reserved(),
        "segments": len(torch.cuda.memory_snapshot()),
        "summary_lines": len(torch.cuda.memory_summary().splitlines()),
    }
    print(json.dumps({"said": said, **figures}))


def start(name: str, allocator: str, trace: Path) -> subprocess.Popen[str]:
    beside = Path(sys.executable).with_name("gpumem")
    program = str(beside) if beside.exists() else shutil.which("gpumem") or "gpumem"
    settings = WORKLOADS[name][1]
    environment = {**os.environ, **({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {})}
    command = [program, "run", "-f", "-o", str(trace), "--allocator", allocator, __file__, "--work", name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_pair(name: str, folder: Path, timeout_s: float) -> dict[str, tuple[dict[str, Any] | None, str, Path]]:
    """What the workload said under each allocator, its errors, and its trace; both at a time where the card allows."""
    results = {}
    traces = {allocator: folder / f"{name}.{allocator}.gpumem" for allocator in ("native", "gpumem")}
    running = {}
    for allocator, trace in traces.items():
        running[allocator] = start(name, allocator, trace)
        if name in ALONE:
            results[allocator] = finish(running.pop(allocator), timeout_s, trace)
    for allocator, process in running.items():
        results[allocator] = finish(process, timeout_s, traces[allocator])
    return results


def finish(process: subprocess.Popen[str], timeout_s: float, trace: Path) -> tuple[dict[str, Any] | None, str, Path]:
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += "\nTIMED OUT"
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1]), errors, trace
    except (IndexError, ValueError):
        return None, f"exit {process.returncode}\n{output}\n{errors}", trace


def events_of(path: Path) -> Iterator[Event]:
    """The recorded sequence, frees in their two halves; what only one of the two allocators can say is left out."""
    import gpumem
    from gpumem.vocabulary import EventKind

    left_out = {EventKind.MARK, EventKind.STEP, EventKind.SNAPSHOT, EventKind.EMPTY_CACHE, EventKind.SEGMENT_REQUEST}
    trace = gpumem.open(path)
    ordinals: dict[int, int] = {}
    columns = ["kind", "requested_bytes", "block_bytes", "stream"]
    for batch in trace.event_batches(columns):
        for kind, requested, block, stream in zip(*(batch[name].tolist() for name in columns), strict=True):
            if EventKind(kind) in left_out:
                continue
            ordinal = ordinals.setdefault(stream, len(ordinals))
            rest = (requested, 0 if kind == EventKind.OOM else block, ordinal)
            names = ("FREE_REQUESTED", "FREE_COMPLETED") if kind == EventKind.FREE else (EventKind(kind).name,)
            yield from ((name, *rest) for name in names)


def placement_of(path: Path) -> list[int]:
    """The recorded segments, in order, by their places among all of them by address."""
    import gpumem
    from gpumem.vocabulary import EventKind

    addresses: list[int] = []
    for batch in gpumem.open(path).event_batches(["kind", "address"]):
        addresses += batch["address"][batch["kind"] == EventKind.SEGMENT_ALLOC].tolist()
    ordered = {address: place for place, address in enumerate(sorted(set(addresses)))}
    return [ordered[address] for address in addresses]


def is_placed_alike(results: dict[str, tuple[dict[str, Any] | None, str, Path]]) -> bool:
    """Whether the driver put both programs' segments in one order; true where one of them failed."""
    if any(found is None for found, _, _ in results.values()):
        return True
    return placement_of(results["native"][2]) == placement_of(results["gpumem"][2])


def compare(name: str, results: dict[str, tuple[dict[str, Any] | None, str, Path]]) -> tuple[list[str], str]:
    """What differs, a line each; and how much was compared."""
    for allocator, (found, errors, _) in results.items():
        if found is None:
            return [f"{allocator} failed: {line}" for line in errors.strip().splitlines()[-12:]], ""
    theirs, ours = (results[allocator][0] or {} for allocator in ("native", "gpumem"))
    differences = [
        f"{key}: native {theirs[key]}, gpumem {ours[key]}"
        for key in ("said", "summary_lines")
        if theirs[key] != ours[key]
    ]
    if name in NOT_COMPARED_BY_EVENT:
        return differences, "what it said"
    differences += [
        f"{key}: native {theirs[key]}, gpumem {ours[key]}"
        for key in ("max_allocated", "max_reserved", "segments")
        if theirs[key] != ours[key]
    ]
    figures = sorted(theirs["stats"].keys() | ours["stats"].keys())
    differences += [
        f"{key}: native {theirs['stats'].get(key)}, gpumem {ours['stats'].get(key)}"
        for key in figures
        if theirs["stats"].get(key) != ours["stats"].get(key)
    ]
    expected, found = (list(events_of(results[allocator][2])) for allocator in ("native", "gpumem"))
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            differences.append(f"event {position}: native {one}, gpumem {other}")
            break
    if len(expected) != len(found):
        differences.append(f"native {len(expected)} events, gpumem {len(found)}")
    return differences, f"{len(found):>7} events, {len(figures):>3} figures"


def check_nine_steps(path: Path) -> list[str]:
    """What differs from the known figures at the marks of a recording of the nine steps."""
    import gpumem
    from gpumem.analyses.snapshot import find_snapshot
    from gpumem.heap.instants import Instant

    trace = gpumem.open(path)
    found = []
    for mark in trace.marks:
        devices = find_snapshot(trace, Instant(mark.event, mark.time_ns), devices=[0]).devices
        allocated, reserved = (devices[0].allocated_bytes or 0, devices[0].reserved_bytes) if devices else (0, 0)
        found.append((allocated >> 20, reserved >> 20))
    return [] if found == NINE_STEPS_MIB else [f"nine steps: expected {NINE_STEPS_MIB}, recorded {found}"]


def run_all(names: Sequence[str], folder: Path, timeout_s: float) -> int:
    failed = 0
    for name in names:
        for number in range(RUNS_AT_MOST):
            results = run_pair(name, folder, timeout_s)
            differences, extent = compare(name, results)
            if not differences or is_placed_alike(results):
                break
            print(f"{name:<20} the driver placed segments in two orders: run {number + 1} counts for nothing")
        if name == "nine-steps" and not differences:
            differences = check_nine_steps(results["gpumem"][2])
        failed += bool(differences)
        print(f"{name:<20} {extent:<28} {'equal' if not differences else 'DIFFERENT'}", flush=True)
        for difference in differences[:40]:
            print(f"    {difference}")
    print(f"{len(names) - failed} of {len(names)} workloads equal under both allocators")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare gpumem's allocator with PyTorch's own.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}; all without any")
    parser.add_argument("--folder", type=Path, help="keep the traces here")
    parser.add_argument("--timeout", type=float, default=90, help="seconds each")
    parser.add_argument("--work", choices=WORKLOADS, help="run the one workload in this process")
    parser.add_argument("--check-nine-steps", type=Path, metavar="TRACE", help="only hold a recording to the figures")
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    if options.check_nine_steps:
        differences = check_nine_steps(options.check_nine_steps)
        print("\n".join(differences) or "nine steps: every figure as PyTorch's")
        return 1 if differences else 0
    with tempfile.TemporaryDirectory() as temporary:
        return run_all(options.names or list(WORKLOADS), options.folder or Path(temporary), options.timeout)


if __name__ == "__main__":
    sys.exit(main())
