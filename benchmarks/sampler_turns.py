"""What NVML's readings cost a program that takes and gives up the interpreter lock all the time, as PyTorch does.

A pretended driver (tests/native/pretended_nvml_devices.cpp; each of its calls takes 10 us) stands for NVML. In one
process that records, the program's loop of short calls outside the lock runs with no readings, with readings by the
native core and with readings by Python's own calls, in turns, at 100 ms and at 5 ms. Prints the median ratio to no
readings within a round, readings, how many of them Python was asked for, and how often the lock changed hands in the
loop: the thread's own count of waits and of preemptions says when it had to stand aside. Needs no GPU; with --core, all
on one core.

    python benchmarks/sampler_turns.py
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from gpumem import abi  # noqa: E402
from gpumem.nvml import open_nvml  # noqa: E402
from gpumem.recorder.nvml_judgement import open_sampling  # noqa: E402
from gpumem.recorder.nvml_sampler import NvmlSampler  # noqa: E402
from gpumem.vocabulary import DeviceOrdinal  # noqa: E402
from pretended_nvml import COMPUTE, MIB, PretendedNvml, build_nvml_devices  # noqa: E402

CALL_US = 10
BUFFER = bytes(6000)
"""Zlib gives the lock up for a sum over it, which takes some microseconds."""


@dataclass
class Figures:
    """Of one way of reading, by round."""

    ratios: list[float] = field(default_factory=list)
    readings: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)


def run_loop(calls: int) -> tuple[int, int]:
    """Nanoseconds of the loop, and how often its thread waited."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    started_ns = time.perf_counter_ns()
    for _ in range(calls):
        zlib.crc32(BUFFER)
    elapsed_ns = time.perf_counter_ns() - started_ns
    return elapsed_ns, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - waits


class CountingRecorder:
    """The core's recorder; counts Python's readings."""

    def __init__(self) -> None:
        self.python_readings = 0

    def record_reading(self, **figures: int) -> None:
        self.python_readings += 1
        abi.record_reading(**figures)

    def __getattr__(self, name: str) -> object:
        return getattr(abi, name)


def measure(nvml: PretendedNvml, calls: int, interval_ms: int, in_core: bool) -> tuple[int, int, int, int]:
    """Nanoseconds, waits of the loop's thread, readings, and those that Python was asked for."""
    library = nvml.module()
    sampler = NvmlSampler(
        CountingRecorder(),
        interval_ms=interval_ms,
        open_library=lambda watch: open_nvml(library, watch=watch),
        open_sampling=open_sampling if in_core else None,
    )
    sampler.set_device_uuids({DeviceOrdinal(0): "GPU-00000000"})
    sampler.read_now()
    sampler.start()
    time.sleep(0.02)
    driver_calls, judged = nvml.count_calls(), sampler.judgement_count
    elapsed_ns, waits = run_loop(calls)
    driver_calls, judged = nvml.count_calls() - driver_calls, sampler.judgement_count - judged
    sampler.stop()
    # A list takes Python two calls where processes are in it, one to ask for room.
    return elapsed_ns, waits, driver_calls // (4 if in_core else 5), judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=150_000)
    parser.add_argument("--core", action="store_true", help="keep all threads on one core")
    arguments = parser.parse_args()
    if arguments.core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        nvml = PretendedNvml(build_nvml_devices(Path(name)))
        nvml.set_list(0, COMPUTE, [(os.getpid(), 518 * MIB), (1, MIB)])
        nvml.core.pretend_call_us(CALL_US)
        abi.start_recording(Path(name) / "turns.gpumem.journal", run_id=bytes(16), stacks=False)
        ways = {(interval, in_core): Figures() for interval in (100, 5) for in_core in (False, True)}
        bare_ns, bare_waits = [], []
        for _ in range(arguments.rounds):
            elapsed_ns, waits = run_loop(arguments.calls)
            bare_ns.append(elapsed_ns)
            bare_waits.append(waits)
            for (interval, in_core), figures in ways.items():
                way_ns, waits, readings, judged = measure(nvml, arguments.calls, interval, in_core)
                figures.ratios.append(way_ns / elapsed_ns)
                figures.readings.append(readings)
                figures.judged.append(judged)
                figures.waits.append(waits)
        abi.stop_recording("exit")
    print(f"no readings: {median(bare_ns) / arguments.calls:.0f} ns a call, {median(bare_waits):.0f} waits a loop")
    for (interval, in_core), figures in ways.items():
        print(
            f"{interval:3} ms, {'native core' if in_core else 'Python':11}: {median(figures.ratios):.3f} "
            f"(from {min(figures.ratios):.3f} to {max(figures.ratios):.3f}), {median(figures.readings):.0f} readings, "
            f"Python asked for {median(figures.judged):.0f}, the loop's thread waited {median(figures.waits):.0f} times"
        )


if __name__ == "__main__":
    main()
