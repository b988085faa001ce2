"""What recording costs a training step and an alloc+free pair on a GPU, beside each other in one process.

Steps, and then loops of pairs, alternate between two states of the same attached tracker: its events recorded, and its
events dropped at the recorder's door. Nothing else differs between them, neither the memory's layout nor the machine's
mood of the minute, so that their ratio holds to parts in a thousand, where processes of their own come out parts in a
hundred apart. What PyTorch itself pays for telling a tracker is in both; that is the mode "off" of
recording_overhead.py. At the end steps of their own have the recorder's single calls timed, the timing's own price
included.

    python benchmarks/step_cost.py --processes 4 -o step.json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from recording_overhead import STACK_DEPTH, descend, make_step, pin_threads

TICKS_MAX = 1 << 14
SHARES = (0.1, 0.5, 0.9, 0.99, 0.999)
WARM_STEPS = 20
PAIRS = 5_000
PAIR_LOOPS = 40


def build_gate(folder: Path) -> ctypes.CDLL:
    """The library that stands between tracker and recorder."""
    library = folder / "step_cost.so"
    source = Path(__file__).with_suffix(".cpp")
    include = Path(__file__).parents[1] / "gpumem" / "native" / "include"
    subprocess.run(["c++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    gate = ctypes.CDLL(str(library))
    gate.step_cost_start.argtypes = [ctypes.c_void_p]
    gate.step_cost_counts.restype = ctypes.POINTER(ctypes.c_uint64)
    gate.step_cost_ticks.restype = ctypes.c_uint64
    gate.step_cost_ticks_per_ns.restype = ctypes.c_double
    gate.step_cost_dropped.restype = ctypes.c_uint64
    return gate


def stand_between(gate: ctypes.CDLL) -> None:
    """Has the tracker that is to be attached call the gate, and the gate the recorder."""
    from gpumem import abi

    gate.step_cost_start(abi.function_address("gm_record_event"))
    gate_address = ctypes.cast(gate.step_cost_record, ctypes.c_void_p).value or 0
    function_address = abi.function_address
    abi.function_address = lambda name: gate_address if name == "gm_record_event" else function_address(name)


def time_both(gate: ctypes.CDLL, times: int, work: Callable[[], None]) -> tuple[list[int], list[int]]:
    """Nanoseconds of `work` recorded and with its events dropped, so many times each, in turn."""
    elapsed_ns: dict[bool, list[int]] = {False: [], True: []}
    for number in range(times):
        for is_dropped in (True, False) if number % 2 else (False, True):
            gate.step_cost_drop(int(is_dropped))
            started_ns = time.perf_counter_ns()
            work()
            elapsed_ns[is_dropped].append(time.perf_counter_ns() - started_ns)
    gate.step_cost_drop(0)
    return elapsed_ns[False], elapsed_ns[True]


def ratio_of(recorded: Sequence[int], dropped: Sequence[int]) -> float:
    """The median of the ratios of neighbours."""
    return median(one / other for one, other in zip(recorded, dropped, strict=True))


def describe_calls(gate: ctypes.CDLL, steps: int, ticks_per_ns: float) -> dict[str, dict[str, float]]:
    """By thread: calls a step, nanoseconds in the mean and at SHARES of the calls, and of a step's calls together."""
    described = {}
    for is_main, name in ((1, "main thread"), (0, "autograd's thread")):
        counts = gate.step_cost_counts(is_main)[:TICKS_MAX]
        calls = sum(counts)
        if calls == 0:
            continue
        ticks = gate.step_cost_ticks(is_main)
        row = {"calls": calls / steps, "mean": ticks / calls / ticks_per_ns}
        for share in SHARES:
            reached = at = 0
            while reached < share * calls:
                reached += counts[at]
                at += 1
            row[f"p{share * 100:g}"] = at / ticks_per_ns
        row["step"] = ticks / steps / ticks_per_ns
        described[name] = row
    return described


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One process's figures."""
    import torch

    import gpumem

    synchronize = torch.cuda.synchronize if options.device == "cuda" else torch.cpu.synchronize
    train_step = make_step(torch, options.device)

    def step() -> None:
        train_step()
        synchronize()

    pin_threads()
    gc.collect()
    gc.disable()
    with tempfile.TemporaryDirectory() as name:
        gate = build_gate(Path(name))
        stand_between(gate)
        stacks, interval = not options.no_stacks, options.nvml_interval
        with gpumem.record(Path(name) / "step.gpumem", stacks=stacks, nvml_interval=interval):
            for _ in range(WARM_STEPS):
                step()
            recorded, dropped = time_both(gate, options.steps, step)
            events = gate.step_cost_dropped() / options.steps
            pairs = time_both(gate, PAIR_LOOPS, lambda: descend(STACK_DEPTH - 4, torch.empty, options.device, PAIRS))
            gate.step_cost_time(1)
            timed_steps = max(options.steps // 4, 1)
            for _ in range(timed_steps):
                step()
            gate.step_cost_time(0)
            calls = describe_calls(gate, timed_steps, float(gate.step_cost_ticks_per_ns()))
    return {
        "dropped_ns": median(dropped),
        "recorded_ns": median(recorded),
        "ratio": ratio_of(recorded, dropped),
        "events": events,
        "pair_dropped_ns": median(pairs[1]) / PAIRS,
        "pair_ratio": ratio_of(*pairs),
        "calls": calls,
    }


def render(processes: list[dict[str, Any]]) -> str:
    """A line for each process, then its calls by thread."""
    lines = [f"{'step, ms':<12}{'dropped':>10}{'recorded':>10}{'ratio':>8}{'events':>8}{'pair, ns':>10}{'ratio':>8}"]
    for number, found in enumerate(processes, 1):
        times = f"{found['dropped_ns'] / 1e6:>10.2f}{found['recorded_ns'] / 1e6:>10.2f}"
        pair = f"{found['pair_dropped_ns']:>10.0f}{found['pair_ratio']:>8.4f}"
        lines.append(f"{f'process {number}':<12}{times}{found['ratio']:>8.4f}{found['events']:>8.0f}{pair}")
    medians = [median(found[key] for found in processes) for key in ("ratio", "pair_ratio")]
    lines.append(f"median ratios: step {medians[0]:.4f}, pair {medians[1]:.4f}")
    heads = ("mean", *(f"p{share * 100:g}" for share in SHARES), "step")
    lines.append(f"{'calls, ns':<30}{'calls':>8}" + "".join(f"{head:>8}" for head in heads))
    for number, found in enumerate(processes, 1):
        for thread, row in found["calls"].items():
            figures = "".join(f"{row[head]:>8.0f}" for head in ("calls", *heads))
            lines.append(f"{f'process {number}, {thread}':<30}{figures}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, help="write every figure as JSON")
    parser.add_argument("--device", default="cuda", help="cpu: only to try the benchmark itself")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200, help="of each kind, in each process")
    parser.add_argument("--no-stacks", action="store_true")
    parser.add_argument("--nvml-interval", type=float, default=0.1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options)))
        return
    processes = []
    for _ in range(options.processes):
        command = [sys.executable, *sys.argv, "--worker"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        processes.append(json.loads(done.stdout.splitlines()[-1]))
    if options.output:
        options.output.write_text(json.dumps(processes, indent=1) + "\n")
    print(render(processes))


if __name__ == "__main__":
    main()
