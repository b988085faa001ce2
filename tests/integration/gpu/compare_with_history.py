"""Records workloads with gpumem and with PyTorch's own history at once and compares them event by event.

Run it directly: one line for each workload, exit code 1 on any difference. A workload runs in a process of its own;
all run at the same time. Compared for each device:
  events     (kind, bytes, stream, address) of every event, our folded frees unfolded
  segments   (address, bytes) of `gpumem snapshot --at end` and torch.cuda.memory_snapshot()
  blocks     (address, requested bytes) of the allocated blocks in both
  reserved   end and peak of `gpumem summary` and torch.cuda.memory_stats()
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[2] / "sample_traces" / "scripts"
HISTORY_ENTRIES_MAX = 10_000_000
KINDS = {
    "ALLOC": "alloc",
    "FREE_REQUESTED": "free_requested",
    "FREE_COMPLETED": "free_completed",
    "SEGMENT_ALLOC": "segment_alloc",
    "SEGMENT_FREE": "segment_free",
    "SEGMENT_MAP": "segment_map",
    "SEGMENT_UNMAP": "segment_unmap",
    "OOM": "oom",
}

Event = tuple[str, int, int, int]
"""Kind, bytes, raw stream handle, address (of an out of memory: the bytes free)."""


def load(path: Path) -> ModuleType:
    """The script at `path` as a module, its main not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_gpt2() -> None:
    load(SAMPLES / "gpt2_train.py").train(steps=3, depth=4, batch_rows=4, device="cuda")


def train_resnet50() -> None:
    load(SAMPLES / "resnet50_train.py").train(steps=2, batch_rows=8, pixels=128, device="cuda")


def run_nine_steps() -> None:
    load(SAMPLES / "nine_steps.py").main()


def run_out_of_memory() -> None:
    load(SAMPLES / "out_of_memory.py").main()


def run_compiled_graph() -> None:
    load(HERE / "compiled_graph.py").main()


def churn_in_threads() -> None:
    """Small and large tensors allocated and freed by several threads at once, some on streams of their own."""
    import torch

    def churn(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        kept: list[torch.Tensor] = []
        with torch.cuda.stream(torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()):
            for size in torch.randint(1, 1 << 22, (400,), generator=generator).tolist():
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                if len(kept) > 16:
                    del kept[size % 16]

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.empty_cache()


WORKLOADS: dict[str, tuple[Callable[[], None], str, bool]] = {
    "gpt2": (train_gpt2, "", False),
    "gpt2-expandable": (train_gpt2, "expandable_segments:True", False),
    "gpt2-mid-run": (train_gpt2, "", True),
    "resnet50": (train_resnet50, "", False),
    "nine-steps": (run_nine_steps, "", False),
    "out-of-memory": (run_out_of_memory, "", False),
    "compiled-graph": (run_compiled_graph, "", False),
    "threads": (churn_in_threads, "max_split_size_mb:64", False),
    "threads-mid-run": (churn_in_threads, "", True),
}
"""Name: what runs, allocator settings, whether gpumem begins once the allocator is in use."""


def record_workload(name: str, trace_path: Path) -> dict[str, Any]:
    """Runs the workload under both recorders; PyTorch's side of the comparison."""
    import gpumem

    work, _, is_mid_run = WORKLOADS[name]
    recording = gpumem.record(trace_path, force=True)
    if not is_mid_run:
        recording.start()
    import torch

    torch.cuda.init()
    held: list[torch.Tensor] = []
    if is_mid_run:
        work()
        held = [torch.ones(size, dtype=torch.uint8, device="cuda") for size in (5, 3 << 20, 30 << 20)]
        del held[1]
        recording.start()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=HISTORY_ENTRIES_MAX)
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    recording.stop()
    torch.cuda.memory._record_memory_history(None)
    assert len(held) == 2 * is_mid_run
    return {
        "traces": snapshot["device_traces"],
        "segments": snapshot["segments"],
        "reserved_end": stats["reserved_bytes.all.current"],
        "reserved_peak": stats["reserved_bytes.all.peak"],
    }


def history_events(trace: Sequence[dict[str, Any]]) -> list[Event]:
    """A device's trace entries of PyTorch as events; snapshots, which change nothing, are left out."""
    events = []
    for entry in trace:
        if entry["action"] != "snapshot":
            address = entry["device_free"] if entry["action"] == "oom" else entry["addr"]
            events.append((entry["action"], entry["size"], entry["stream"], address))
    return events


def recorded_events(trace_path: Path, device: int) -> list[Event]:
    """A device's events in gpumem's trace, frees unfolded into what PyTorch said."""
    import gpumem
    from gpumem.vocabulary import EventKind

    trace = gpumem.open(trace_path)
    handles = {row.stream: row.handle for row in trace.streams}
    events: list[Event] = []
    for batch in trace.event_batches(["kind", "device", "requested_bytes", "stream", "address"]):
        rows = zip(*(batch[name].tolist() for name in batch.columns), strict=True)
        for values in rows:
            row = dict(zip(batch.columns, values, strict=True))
            kind = EventKind(row["kind"])
            if row["device"] != device or kind in (EventKind.SNAPSHOT, EventKind.MARK, EventKind.STEP):
                continue
            rest = (row["requested_bytes"], handles.get(row["stream"], 0), row["address"])
            if kind is EventKind.FREE:
                events += [("free_requested", *rest), ("free_completed", *rest)]
            else:
                events.append((KINDS[kind.name], *rest))
    return events


def run_gpumem(*arguments: str) -> dict[str, Any]:
    """What a gpumem command says as JSON."""
    beside = Path(sys.executable).with_name("gpumem")
    program = str(beside) if beside.exists() else shutil.which("gpumem") or "gpumem"
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"gpumem {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def find_differences(theirs: dict[str, Any], trace_path: Path, *, is_mid_run: bool) -> tuple[list[str], int]:
    """What differs, a line each, and how many events were compared."""
    differences: list[str] = []
    event_count = 0
    for device, entries in enumerate(theirs["traces"]):
        expected, found = history_events(entries), recorded_events(trace_path, device)
        event_count += len(expected)
        differences += compare_events(device, expected, found)
    said = run_gpumem("snapshot", str(trace_path), "--at", "end")
    segments = {
        (entry["device"], segment["address"]): segment for entry in said["devices"] for segment in entry["segments"]
    }
    wanted = {(segment["device"], segment["address"]): segment for segment in theirs["segments"]}
    differences += compare_sets(
        "segments",
        {(*key, segment["total_size"]) for key, segment in wanted.items()},
        {(*key, segment["bytes"]) for key, segment in segments.items()},
    )
    differences += compare_sets(
        "blocks",
        {
            (block["address"], block["requested_size"])
            for segment in wanted.values()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        },
        {
            (block["address"], block["requested_bytes"])
            for segment in segments.values()
            for block in segment["blocks"]
            if block["state"] == "allocated"
        },
    )
    device = next(entry for entry in run_gpumem("summary", str(trace_path))["devices"] if entry["device"] == 0)
    reserved = device["reserved_bytes"]
    figures = {"end": theirs["reserved_end"], "peak": theirs["reserved_peak"]}
    for name, value in figures.items():
        if reserved[name] != value:
            differences.append(f"reserved {name}: PyTorch {value}, gpumem {reserved[name]}")
    return differences, event_count


def compare_events(device: int, expected: list[Event], found: list[Event]) -> list[str]:
    """The first event that differs, and the counts if they do."""
    differences = []
    for position, (theirs, ours) in enumerate(zip(expected, found, strict=False)):
        if theirs != ours:
            differences.append(f"device {device}, event {position}: PyTorch {theirs}, gpumem {ours}")
            break
    if len(expected) != len(found):
        differences.append(f"device {device}: PyTorch {len(expected)} events, gpumem {len(found)}")
    return differences


def compare_sets(name: str, expected: set[Any], found: set[Any]) -> list[str]:
    """One line when the sets differ, with an example from either side."""
    if expected == found:
        return []
    missing, extra = sorted(expected - found), sorted(found - expected)
    counts = f"{name}: PyTorch {len(expected)}, gpumem {len(found)}"
    return [f"{counts}; {len(missing)} missing {missing[:2]}, {len(extra)} more {extra[:2]}"]


def run_one(name: str, folder: Path) -> int:
    """Compares one workload in this process; prints its line."""
    trace_path = folder / f"{name}.gpumem"
    theirs = record_workload(name, trace_path)
    differences, event_count = find_differences(theirs, trace_path, is_mid_run=WORKLOADS[name][2])
    print(f"{name:<18} {event_count:>8} events  {'equal' if not differences else 'DIFFERENT'}")
    for difference in differences:
        print(f"    {difference}")
    return 1 if differences else 0


def run_all(names: Sequence[str], folder: Path, timeout_s: float) -> int:
    """Compares workloads at the same time, a process each; prints a table."""
    running = {}
    for name in names:
        settings = WORKLOADS[name][1]
        environment = {**os.environ, **({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {})}
        running[name] = subprocess.Popen(
            [sys.executable, __file__, "--here", "--folder", str(folder), name],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    failed = 0
    for name, process in running.items():
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        lines = output.splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith(f"{name:<18} ")), None)
        failed += process.returncode != 0
        print("\n".join(lines[first:] if first is not None else [f"{name:<18} FAILED", *lines[-15:]]))
    print(f"{len(names) - failed} of {len(names)} workloads equal")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare gpumem's recording with PyTorch's own history.")
    parser.add_argument("names", nargs="*", choices=[*WORKLOADS, []], help="workloads; all without any")
    parser.add_argument("--folder", type=Path, help="keep the traces here")
    parser.add_argument("--timeout", type=float, default=180, help="seconds")
    parser.add_argument("--here", action="store_true", help="run the one workload in this process")
    options = parser.parse_args()
    names = options.names or list(WORKLOADS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        return run_one(names[0], folder) if options.here else run_all(names, folder, options.timeout)


if __name__ == "__main__":
    sys.exit(main())
