"""Whether all that gpumem says of PyTorch holds for the torch that is installed: without a kernel, so on any machine.

Each program runs under PyTorch's own allocator, recorded by gpumem and by PyTorch's history at once, and under gpumem's
allocator. Compared are the events one by one, the heap at the end, every figure of torch.cuda.memory_stats(); replay is
exact, on PyTorch's own snapshot too, which every command reads.

    python benchmarks/torch_versions.py              on a card
    python benchmarks/torch_versions.py --pretend    without: a CUDA build of torch on a pretended runtime

Prints a table last; leaves with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recording_overhead import load, pretend_cuda

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
SIZES = (1, 512, 513, 4000, 70_000, MIB, MIB + 1, 3 * MIB, 9 * MIB + 7, 10 * MIB, 24 * MIB, 31 * MIB + 5)
ENTRIES_MAX = 1_000_000
ENDS = {"end": "current", "peak": "peak"}
COMMANDS = (
    ("summary",), ("timeline",), ("snapshot", "--at", "end"), ("snapshot", "--at", "peak"), ("explain",), ("replay",),
    ("import", "-f", "-o", "{folder}/imported.gpumem"), ("diff", "{path}"),
)  # fmt: skip
REPORT = ("report", "-f", "-o", "{folder}/report.html")
"""What draws needs plotly."""
CURRENT = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
DELETE = "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator10raw_deleteEPv"


def take(torch: Any, byte_count: int, device: int = 0) -> Any:
    return torch.empty(byte_count, dtype=torch.uint8, device=f"cuda:{device}")


def run_requests(torch: Any) -> list[str]:
    """Blocks of all sizes on three streams, some used on another stream when freed; three kinds of out of memory."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    held: dict[int, Any] = {}
    for number in range(400):
        place = number * 7 % len(SIZES)
        with torch.cuda.stream(streams[number % 3]):
            held[number] = take(torch, SIZES[place] + number % 5)
        if number % 4 == 1:
            held[number].record_stream(streams[(number + 1) % 3])
        if number % 3 != 1:
            held.pop(number - number % 11, None)
        if number % 97 == 50:
            torch.cuda.empty_cache()
    said = [refuse(torch, 200 << 30), refuse(torch, 1 << 61)]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * MIB) / total_bytes(torch))
    said.append(refuse(torch, 300 * MIB))
    torch.cuda.set_per_process_memory_fraction(1.0)
    del held
    kept = take(torch, 5 * MIB)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return [*said, str(kept.numel()), *run_devices(torch)]


def run_devices(torch: Any) -> list[str]:
    """Blocks of each device freed while another one is current."""
    blocks = [take(torch, SIZES[place], device) for device in range(torch.cuda.device_count()) for place in range(4)]
    return [str(block.device) for block in blocks]


def run_threads(torch: Any) -> list[str]:
    """Threads one after the other, for equal runs, and one that frees another's blocks."""
    held: list[Any] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            held.extend(take(torch, byte_count + number) for byte_count in SIZES)
            del held[number :: 3 + number]

    for number in range(4):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
    return [str(len(held))]


def run_graph(torch: Any) -> list[str]:
    """A captured graph's private pool, which is there at the end, after one that is gone."""
    before, graph = take(torch, 3 * MIB), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gone = [take(torch, byte_count) for byte_count in (3 * MIB, 1000, 20 * MIB, 512)]
        del gone[0]
        gone.append(take(torch, 2 * MIB))
    del gone, graph
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = [take(torch, byte_count) for byte_count in SIZES]
        del first[::2]
        second = [take(torch, byte_count) for byte_count in SIZES[::3]]
    KEPT.extend([before, graph, *first, *second])
    torch.cuda.empty_cache()
    return [str(len(first) + len(second))]


def run_pool(torch: Any) -> list[str]:
    """A pool of the program's own, which a pluggable allocator cannot have."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        blocks = [take(torch, byte_count) for byte_count in SIZES]
        del blocks[::2]
    KEPT.extend([pool, *blocks])
    return [str(len(blocks))]


def run_limit(torch: Any) -> list[str]:
    """A memory limit reached with idle, pending and split memory about: what goes back, and what is refused."""
    side = torch.cuda.Stream()
    torch.cuda.set_per_process_memory_fraction(200 * MIB / total_bytes(torch))
    held = [take(torch, (number % 9 + 1) * 2 * MIB + number) for number in range(16)]
    del held[::3]
    said = [refuse(torch, 150 * MIB)]
    held.append(take(torch, 40 * MIB))
    held[-1].record_stream(side)
    held.pop()
    said += [refuse(torch, byte_count * MIB) for byte_count in (38, 60, 38, 110)]
    torch.cuda.synchronize()
    said += [refuse(torch, 38 * MIB), str(torch.cuda.memory_reserved())]
    torch.cuda.set_per_process_memory_fraction(1.0)
    return said


def run_pool_limit(torch: Any) -> list[str]:
    """The limit reached while requests go to a pool of the program's own."""
    torch.cuda.set_per_process_memory_fraction(200 * MIB / total_bytes(torch))
    idle = [take(torch, 50 * MIB) for _ in range(2)]
    del idle
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        said = [refuse(torch, byte_count * MIB) for byte_count in (90, 120, 30, 120)]
    KEPT.append(pool)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return said


KEPT: list[Any] = []
PROGRAMS: dict[str, tuple[Callable[[Any], list[str]], str]] = {
    "requests": (run_requests, ""),
    "requests, expandable": (run_requests, "expandable_segments:True"),
    "requests, settings": (run_requests, "max_split_size_mb:64,roundup_power2_divisions:4"),
    "limit": (run_limit, ""),
    "limit, expandable": (run_limit, "expandable_segments:True"),
    "limit, settings": (run_limit, "garbage_collection_threshold:0.5,max_split_size_mb:32"),
    "threads": (run_threads, ""),
    "graph": (run_graph, ""),
    "pool": (run_pool, ""),
    "pool, limit": (run_pool_limit, ""),
}
"""Name: what runs, allocator settings."""
NATIVE_ONLY = ("pool", "pool, limit")


def total_bytes(torch: Any) -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)


def refuse(torch: Any, byte_count: int) -> str:
    """The class and the first sentences of the refusal."""
    try:
        take(torch, byte_count)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition(' If reserved')[0]}"
    return "not refused"


def work(name: str, snapshot: Path | None) -> None:
    """Runs one program in this process, with PyTorch's history into `snapshot`; the last line says what came of it."""
    import torch

    if snapshot:
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES_MAX)
    said = PROGRAMS[name][0](torch)
    KEPT.append(take(torch, MIB))
    stats = torch.cuda.memory_stats()
    if snapshot:
        torch.cuda.memory._dump_snapshot(str(snapshot))
    segments = [
        [segment["total_size"], [(block["size"], block["state"]) for block in segment["blocks"]]]
        for segment in torch.cuda.memory_snapshot()
    ]
    way = "" if snapshot else find_way(KEPT[-1])
    print(json.dumps({"said": said, "stats": stats, "segments": sorted(segments), "way": way}))


def find_way(block: Any) -> str:
    """How requests reach gpumem's allocator: PyTorch's table of blocks does not know one that went directly.

    Asked in a forked child, which PyTorch's own function ends for a block that it does not know.
    """
    from gpumem.abi import allocator

    if (reason := allocator.serve_directly()) is not None:
        return f"PyTorch's, as {reason}"
    delete = getattr(ctypes.CDLL("libtorch_cuda.so", os.RTLD_NOLOAD), DELETE)
    current = ctypes.c_void_p.in_dll(ctypes.CDLL("libc10_cuda.so", os.RTLD_NOLOAD), CURRENT)
    child = os.fork()
    if child == 0:
        os.close(2)
        delete(ctypes.c_void_p(current.value), ctypes.c_void_p(block.data_ptr()))
        os._exit(0)
    return "PyTorch's" if os.waitpid(child, 0)[1] == 0 else "direct"


class Check:
    """One torch held to what is claimed; differences are gathered by program."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environment = os.environ | variables
        self.history = load(ROOT / "tests" / "integration" / "gpu" / "compare_with_history.py")
        self.allocators = load(ROOT / "tests" / "integration" / "gpu" / "compare_allocators.py")
        self.gpumem = Path(sys.executable).with_name("gpumem")
        self.commands = (*COMMANDS, *([REPORT] if importlib.util.find_spec("plotly") else []))

    def check(self, name: str) -> tuple[list[str], str]:
        """What differs in one program, a line each; and a line of the table."""
        stem = name.replace(", ", "_")
        snapshot, trace = self.folder / f"{stem}.pickle", self.folder / f"{stem}.gpumem"
        theirs, errors = self.record(name, "native", trace, snapshot)
        if theirs is None:
            return errors, ""
        written = pickle.loads(snapshot.read_bytes())
        seen = {"traces": written["device_traces"], "segments": written["segments"]}
        seen |= {f"reserved_{which}": theirs["stats"][f"reserved_bytes.all.{key}"] for which, key in ENDS.items()}
        differences, event_count = self.history.find_differences(seen, trace, is_mid_run=False)
        differences = [line for line in differences if not line.startswith("reserved peak")]
        differences += self.read(trace, (("replay",),)) + self.read(snapshot, self.commands)
        ours, way = None, ""
        if name not in NATIVE_ONLY:
            own = self.folder / f"{stem}.own.gpumem"
            ours, errors = self.record(name, "gpumem", own, None)
            if ours is None:
                return errors, ""
            way = ours.pop("way")
            theirs.pop("way")
            results = {"native": (theirs, "", trace), "gpumem": (ours, "", own)}
            differences += self.compare(results) + self.read(own, (("replay",),))
        return differences, f"{name:<22}{event_count:>6} events  {way or 'not with it'}"

    def compare(self, results: dict[str, Any]) -> list[str]:
        """What differs between the two allocators."""
        for found, _, _ in results.values():
            found |= {"summary_lines": 0, "max_allocated": 0, "max_reserved": 0}
        differences: list[str] = self.allocators.compare("", results)[0]
        return differences

    def record(self, name: str, allocator: str, trace: Path, snapshot: Path | None) -> tuple[Any, list[str]]:
        """What a recorded program said; else its errors."""
        command = [str(self.gpumem), "run", "-f", "-o", str(trace), "--allocator", allocator]
        command += [__file__, "--work", name, *(["--snapshot", str(snapshot)] if snapshot else [])]
        environment = self.environment | {"PYTORCH_CUDA_ALLOC_CONF": PROGRAMS[name][1]}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            return None, [f"{allocator}: exit {done.returncode}", *done.stderr.splitlines()[-12:]]
        return json.loads(lines[-1]), []

    def read(self, path: Path, commands: Sequence[Sequence[str]]) -> list[str]:
        """The commands that do not read a file, or find something wrong with it."""
        wrong = []
        for verb, *options in commands:
            given = [option.format(folder=self.folder, path=path) for option in options]
            done = subprocess.run([self.gpumem, verb, str(path), *given], capture_output=True, text=True)
            if done.returncode:
                wrong.append(f"gpumem {verb} {path.name}: exit {done.returncode}: {(done.stderr or done.stdout)[:500]}")
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"of: {'; '.join(PROGRAMS)}")
    parser.add_argument("--pretend", action="store_true", help="no GPU: a CUDA build of torch on a pretended runtime")
    parser.add_argument("--folder", type=Path, help="keep the traces here")
    parser.add_argument("--work", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.snapshot)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        variables = pretend_cuda(folder) if options.pretend else {}
        check = Check(folder, variables)
        found = {name: check.check(name) for name in options.names or PROGRAMS}
    for name, (differences, _) in found.items():
        for difference in differences:
            print(f"{name}: {difference}")
    from importlib.metadata import version

    print(f"torch {version('torch')}")
    for name, (differences, line) in found.items():
        print(f"{line or name:<60} {'DIFFERENT' if differences else 'equal'}")
    return any(differences for differences, _ in found.values())


if __name__ == "__main__":
    sys.exit(main())
