"""Measures builds of the native core against each other in one process: a recorded pair's cost, and a training step's.

Builds of libgpumem.so are loaded side by side, each with a journal of its own, and events go to one of them after the
other, or to none, in turns of about a millisecond. So what the machine does to one it does to all, and differences of
some nanoseconds show that two runs would hide. On the core alone other code and memory is run through between the
events, as in pair_cost.py; with --device cuda the events are PyTorch's. Where the builds' memory comes to lie differs
from process to process and moves each by some percent, so several processes are measured.

    python benchmarks/compare_cores.py before=/tmp/before/libgpumem.so after=/tmp/after/libgpumem.so --device cuda
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pair_cost import load_loop
from recording_overhead import STACK_DEPTH, descend, make_step, pin_threads
from step_cost import build_gate, stand_between

from gpumem.abi import CRecorderOptions

Choose = Callable[[int | None], None]
"""Has the events that follow go to the function at this address, or to nobody."""
Costs = dict[str, float]
"""Nanoseconds by build, of "nobody" all of them and of the builds what comes on top."""

NOBODY = "nobody"
PAGES = (0, 64, 128, 256)
PAIRS_A_TURN = {"none": 40, "cuda": 400}


def open_core(library: Path, journal: Path) -> int:
    """The address of a build's gm_record_event, once it records stacks into `journal`."""
    core = ctypes.PyDLL(str(library))
    options, error_number = CRecorderOptions(bytes(journal), None, bytes(16), 1, 0), ctypes.c_int32()
    reason = ctypes.create_string_buffer(256)
    if core.gm_recorder_start(ctypes.byref(options), ctypes.byref(error_number)) != 0:
        raise SystemExit(f"{library} records already, or cannot create {journal} (errno {error_number.value})")
    if core.gm_walker_start(reason, ctypes.c_size_t(len(reason))) != 0:
        raise SystemExit(f"{library}: {reason.value.decode()}")
    return ctypes.cast(core.gm_record_event, ctypes.c_void_p).value or 0


def take_turns(cores: Mapping[str, int | None], turns: int, measure: Callable[[int | None], float]) -> Costs:
    """Medians over so many turns of each; a build's are differences from nobody's of the same turn."""
    names = list(cores)
    costs: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        # Everybody comes first in turn and has both neighbours before it: what ran last is felt for some nanoseconds.
        first = turn // 2 % len(names)
        order = [*names[first:], *names[:first]]
        for name in order if turn % 2 else reversed(order):
            costs[name].append(measure(cores[name]))
    nobody = costs.pop(NOBODY)
    on_top = {name: median(one - none for one, none in zip(row, nobody, strict=True)) for name, row in costs.items()}
    return {NOBODY: median(nobody)} | on_top


def measure_alone(cores: Mapping[str, int | None], turns: int, folder: Path) -> Iterator[tuple[str, Costs]]:
    """Pairs from a loop in C++, by pages of other work."""
    ticks_per_pair, ticks_per_ns = load_loop(folder)

    def below(depth: int, measure: Callable[[], float]) -> float:
        return below(depth - 1, measure) if depth > 1 else measure()

    for pages in PAGES:

        def measure(core: int | None, pages: int = pages) -> float:
            pairs = PAIRS_A_TURN["none"]
            return below(STACK_DEPTH - 6, lambda: ticks_per_pair(core, pairs, pages)) / ticks_per_ns

        yield f"pair, ns, {pages} pages", take_turns(cores, turns, measure)


def measure_on_gpu(cores: Mapping[str, int | None], turns: int, choose: Choose) -> Iterator[tuple[str, Costs]]:
    """PyTorch's pairs, and a training step."""
    import torch

    pairs = PAIRS_A_TURN["cuda"]
    train_step = make_step(torch, "cuda")

    def time_of(work: Callable[[], None], times: int) -> Callable[[int | None], float]:
        def measure(core: int | None) -> float:
            choose(core)
            started_ns = time.perf_counter_ns()
            work()
            return (time.perf_counter_ns() - started_ns) / times

        return measure

    def step() -> None:
        train_step()
        torch.cuda.synchronize()

    allocate = time_of(lambda: descend(STACK_DEPTH - 4, torch.empty, "cuda", pairs), pairs)
    yield "pair, ns", take_turns(cores, turns, allocate)
    yield "step, us", take_turns(cores, max(turns // 10, 1), time_of(step, 1000))


def work(options: argparse.Namespace) -> dict[str, Costs]:
    """One process's figures."""
    import gpumem

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gate = build_gate(folder)
        if options.device == "cuda":
            stand_between(gate)

        def choose(core: int | None) -> None:
            gate.step_cost_drop(int(core is None))
            if core is not None:
                gate.step_cost_start(core)

        with gpumem.record(folder / "own.gpumem"):
            cores: dict[str, int | None] = {NOBODY: None}
            for label, library in options.cores:
                cores[label] = open_core(library, folder / f"{label}.gpumem.journal")
            pin_threads()
            gc.collect()
            gc.disable()
            turns = options.turns
            on_gpu = options.device == "cuda"
            found = measure_on_gpu(cores, turns, choose) if on_gpu else measure_alone(cores, turns, folder)
            costs = dict(found)
            choose(None)
    return costs


def render(processes: list[dict[str, Costs]]) -> str:
    """A table for each thing measured, a column for each process."""
    lines = []
    for what, first in processes[0].items():
        lines.append(f"{what:<24}" + "".join(f"{f'process {number + 1}':>12}" for number in range(len(processes))))
        for name in first:
            figures = "".join(f"{costs[what][name]:>12,.1f}" for costs in processes)
            lines.append(f"  {name if name == NOBODY else '+ ' + name:<22}{figures}")
    return "\n".join(lines)


def named_core(text: str) -> tuple[str, Path]:
    label, _, library = text.partition("=")
    if not library or not Path(library).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not LABEL=LIBRARY with a file")
    return label, Path(library).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cores", nargs="+", type=named_core, metavar="LABEL=LIBRARY", help="files of their own each")
    parser.add_argument("--device", choices=["none", "cuda"], default="none")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--turns", type=int, default=500, help="of each build, in each process; of steps a tenth")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options)))
        return
    processes = []
    for _ in range(options.processes):
        done = subprocess.run([sys.executable, *sys.argv, "--worker"], stdout=subprocess.PIPE, text=True, check=True)
        processes.append(json.loads(done.stdout.splitlines()[-1]))
    print(render(processes))


if __name__ == "__main__":
    main()
