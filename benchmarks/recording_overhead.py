"""What recording costs on a GPU: alloc+free pairs under a deep stack, and a training step of a small language model.

Compared in one run: bare, under PyTorch's own history with Python stacks, under gpumem, with gpumem attached but
switched off, and (by --modes) on gpumem's own allocator, with no readings of NVML, or bare a second time, which shows
how far equal things come out apart. Each has processes of its own that stay, several, because the same program's
processes differ by some percent from start to end; they take turns, one at a time, so that whatever the machine does to
one it does to all. Prints a table of medians, the median ratio within a round of a mode's processes together to all
bare ones together, a second time's included, and the bars of docs/performance.md.

    python benchmarks/recording_overhead.py -o overhead.json

Without a GPU, on a CUDA build of torch, --pretend measures the pairs on a pretended runtime (pretended_cuda.py).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from pretended_cuda import build_pretended_cuda

ROOT = Path(__file__).resolve().parents[1]
STACK_DEPTH = 23
LOOPS = 5
BARE_MODES = ("bare", "bare_again")
MODES = (*BARE_MODES, "history", "gpumem", "off", "own", "unsampled", "off_unsampled")
MODES_BY_DEFAULT = "bare,history,gpumem,off"
BARS = {"pair": {"gpumem": 1.10, "own": 1.00}, "step": {"gpumem": 1.02, "own": 1.02}}
UNITS = {"pair": ("ns", 1), "step": ("ms", 1_000_000)}


class Worker:
    """The measuring process of one mode: turns itself on, then measures what it is asked for, line by line."""

    def __init__(self, mode: str, options: argparse.Namespace) -> None:
        device: str = options.device
        self.mode = mode
        self.device = device
        self.pairs: int = options.pairs
        self.steps: int = options.steps
        self.folder = tempfile.TemporaryDirectory()
        self.recording: Any = None
        if mode not in (*BARE_MODES, "history"):
            import gpumem

            interval = 0.0 if "unsampled" in mode else 0.1
            self.recording = gpumem.record(Path(self.folder.name) / "overhead.gpumem", nvml_interval=interval)
            self.recording.start()
        if mode == "own":
            from gpumem.recorder import torch_hook
            from gpumem.vocabulary import AllocatorChoice

            torch_hook.install(allocator=AllocatorChoice.GPUMEM)
        import torch

        self.torch = torch
        self.synchronize = torch.cuda.synchronize if device == "cuda" else torch.cpu.synchronize
        self.synchronize()
        if mode == "history" and device == "cuda":
            torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=100_000)
        self.train_step = make_step(torch, device) if "step" in list_measures(options) else None
        torch.empty(1024, device=device)
        pin_threads()

    def measure(self, what: str) -> float:
        """Nanoseconds for one pair or one step: the median of LOOPS loops."""
        gc.collect()
        gc.disable()
        loops, run = (self.pairs, self.run_pairs) if what == "pair" else (self.steps, self.run_steps)
        elapsed_ns = []
        for _ in range(LOOPS):
            self.synchronize()
            started_ns = time.perf_counter_ns()
            run()
            self.synchronize()
            elapsed_ns.append(time.perf_counter_ns() - started_ns)
        gc.enable()
        return median(elapsed_ns) / loops

    def run_pairs(self) -> None:
        descend(STACK_DEPTH - 4, self.torch.empty, self.device, self.pairs)

    def run_steps(self) -> None:
        assert self.train_step is not None
        for _ in range(self.steps):
            self.train_step()

    def serve(self) -> None:
        """Answers "pair" and "step" with nanoseconds until the input ends; then ends the recording."""
        if self.mode in ("off", "off_unsampled"):
            from gpumem import abi

            abi.set_events_enabled(False)
        judged_before = self.count_judged_readings()
        print("ready", flush=True)
        for line in sys.stdin:
            print(self.measure(line.strip()), flush=True)
        if self.recording is not None:
            judged = self.count_judged_readings() - judged_before
            sys.stderr.write(f"{self.mode}: Python was asked for {judged} readings of NVML\n")
            self.recording.stop()
        self.folder.cleanup()

    def count_judged_readings(self) -> int:
        """Readings so far for which the sampler's thread took the interpreter lock."""
        if self.recording is None:
            return 0
        from gpumem.recorder import recording

        current = recording.current()
        return current.sampler.judgement_count if current is not None and current.sampler is not None else 0


def pin_threads() -> None:
    """Keeps the measuring thread on one core and autograd's on another, the same in every process.

    Cores differ by a factor of two from moment to moment where others share the machine. The recorder's own threads run
    where they like, on other cores.
    """
    *others, autograds, own = sorted(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads come and go
            is_autograd = (thread / "comm").read_text().startswith("pt_autograd")
            cores = {autograds} if is_autograd else set(others) or {autograds}
            os.sched_setaffinity(int(thread.name), {own} if int(thread.name) == os.getpid() else cores)


def make_step(torch: Any, device: str) -> Callable[[], None]:
    """One training step of the sample's language model, warmed up."""
    sample = load(ROOT / "sample_traces" / "scripts" / "gpt2_train.py")
    torch.manual_seed(0)
    depth = 12 if device == "cuda" else 1
    model = sample.LanguageModel(vocabulary=8192, length=256, width=384, heads=6, depth=depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(8192, (4, 257), device=device)

    def train_step() -> None:
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(5):
        train_step()
    (torch.cuda if device == "cuda" else torch.cpu).synchronize()
    return train_step


def descend(depth: int, empty: Callable[..., object], device: str, pairs: int) -> None:
    """Allocates and frees at the end of `depth` nested calls."""
    if depth > 1:
        descend(depth - 1, empty, device, pairs)
        return
    for _ in range(pairs):
        empty(1024, device=device)


def load(path: Path) -> Any:
    """The script at `path` as a module, its main not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(worker: subprocess.Popen[str], what: str) -> float:
    """A worker's answer."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(what + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def measure_all(modes: Sequence[str], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds by what was measured and mode, one figure a round, the mean of the mode's processes; the order within
    a round shifts by one each.
    """
    workers = [(mode, start_worker(mode, options)) for _ in range(options.processes) for mode in modes]
    for mode, worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline().strip() != "ready":
            raise SystemExit(f"the worker {mode} did not start")
    measures = list_measures(options)
    figures: dict[str, dict[str, list[float]]] = {what: {mode: [] for mode in modes} for what in measures}
    for what, by_mode in figures.items():
        for _, worker in workers:
            ask(worker, what)  # warms up
        for number in range(options.rounds):
            sums = dict.fromkeys(modes, 0.0)
            for place in range(len(workers)):
                mode, worker = workers[(number + place) % len(workers)]
                sums[mode] += ask(worker, what)
            for mode, nanoseconds in sums.items():
                by_mode[mode].append(nanoseconds / options.processes)
    for _, worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    return figures


def list_measures(options: argparse.Namespace) -> list[str]:
    """What is measured: steps need kernels, which a pretended runtime has none of."""
    return [what for what in BARS if what == "pair" or not options.pretend]


def start_worker(mode: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process of one mode; it says "ready" when it is."""
    command = [sys.executable, __file__, "--worker", mode, "--device", options.device]
    command += ["--pairs", str(options.pairs), "--steps", str(options.steps)]
    command += ["--pretend"] if options.pretend else []
    environment = os.environ | options.variables
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def pretend_cuda(folder: Path) -> dict[str, str]:
    """The variables that put a pretended GPU under the installed torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("torch is not installed for this Python")
    return build_pretended_cuda(folder, Path(found.origin).parent)


def ratio_to_bare(by_mode: dict[str, list[float]], mode: str) -> float:
    """The median, over the rounds, of a mode's figure by the mean of the bare ones of the same round."""
    bare_of_rounds = map(mean, zip(*(by_mode[bare] for bare in BARE_MODES if bare in by_mode), strict=True))
    return median(figure / bare for figure, bare in zip(by_mode[mode], bare_of_rounds, strict=True))


def render(modes: Sequence[str], figures: dict[str, dict[str, list[float]]], rounds: int, processes: int) -> str:
    """The table: medians, ratios to bare, and whether the bar is met."""
    lines = [f"medians of {rounds} interleaved runs, {processes} processes of each mode"]
    lines += [f"{'':<10}" + "".join(f"{mode:>16}" for mode in modes)]
    for what, by_mode in figures.items():
        unit, divisor = UNITS[what]
        cells = [f"{median(by_mode[m]) / divisor:,.1f} ({ratio_to_bare(by_mode, m):.2f}×)" for m in modes]
        lines.append(f"{what + ', ' + unit:<10}" + "".join(f"{cell:>16}" for cell in cells))
    for what, by_mode in figures.items():
        for mode, bar in BARS[what].items():
            if mode in modes:
                ratio = ratio_to_bare(by_mode, mode)
                verdict = "met" if ratio <= bar else "MISSED"
                lines.append(f"{what}: {mode} {ratio:.3f} × bare, bar {bar:.2f}: {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, help="write every figure as JSON")
    parser.add_argument("--modes", default=MODES_BY_DEFAULT, help=f"of {', '.join(MODES)}; bare first")
    parser.add_argument("--device", default="cuda", help="cpu: only to try the benchmark itself")
    parser.add_argument("--pretend", action="store_true", help="no GPU: a CUDA build of torch on a pretended runtime")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processes", type=int, default=3, help="of each mode")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        Worker(options.worker, options).serve()
        return
    modes = options.modes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        options.variables = pretend_cuda(Path(folder)) if options.pretend else {}
        figures = measure_all(modes, options)
    if options.output:
        ratios = {what: {mode: ratio_to_bare(by_mode, mode) for mode in modes} for what, by_mode in figures.items()}
        document = {"unit": "ns", "rounds": options.rounds, "processes": options.processes}
        document |= {"figures": figures, "ratios": ratios, "bars": BARS}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(render(modes, figures, options.rounds, options.processes))


if __name__ == "__main__":
    main()
