"""What NVML's readings cost a program that takes and gives up the interpreter lock all the time, as PyTorch does.

A pretended driver (tests/native/pretended_nvml_devices.cpp; each of its calls takes 10 us) stands for NVML. In one
process that records, a loop of short calls outside the lock runs with no readings, with readings by Python's own calls
and with readings by the native core, in turns, at 100 ms and at 5 ms. Prints medians over the rounds: the time against
no readings, readings, for how many of them Python was asked, how often the loop's thread had to wait, and the calls
that were held up with what they lost. On a machine shared with others the times say little, waits and calls held up
more. Needs no GPU.

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
from dataclasses import dataclass
from itertools import pairwise
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
STALL_NS_MOST = 1_000_000
"""A call that lasts longer was put aside by the machine, not by us."""


@dataclass(frozen=True)
class Loop:
    """What the program's loop saw."""

    elapsed_ns: int
    usual_ns: float
    """Of a call, the median."""
    stall_count: int
    """Calls of more than four times that, and what they took beyond it."""
    stall_ns: float
    waits: int
    """Times that the loop's thread gave its core up."""


def run_loop(calls: int) -> Loop:
    """One loop, each of its calls timed."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    instants_ns = [0] * (calls + 1)
    clock, checksum, buffer = time.perf_counter_ns, zlib.crc32, BUFFER
    instants_ns[0] = clock()
    for call in range(1, calls + 1):
        checksum(buffer)
        instants_ns[call] = clock()
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - waits
    durations_ns = [after - before for before, after in pairwise(instants_ns)]
    usual_ns = median(durations_ns)
    stalled = [one - usual_ns for one in durations_ns if 4 * usual_ns < one < STALL_NS_MOST]
    return Loop(instants_ns[-1] - instants_ns[0], usual_ns, len(stalled), sum(stalled), waits)


@dataclass(frozen=True)
class Measured:
    """A loop, and the readings beside it."""

    loop: Loop
    reading_count: int
    judged_count: int
    """Readings that Python was asked for."""


def measure(nvml: PretendedNvml, calls: int, interval_ms: int, in_core: bool) -> Measured:
    """One loop beside a sampler."""
    library = nvml.module()
    sampler = NvmlSampler(
        abi,
        interval_ms=interval_ms,
        open_library=lambda watch: open_nvml(library, watch=watch),
        open_sampling=open_sampling if in_core else None,
    )
    sampler.set_device_uuids({DeviceOrdinal(0): "GPU-00000000"})
    sampler.read_now()
    sampler.start()
    time.sleep(0.02)
    driver_calls, judged_count = nvml.count_calls(), sampler.judgement_count
    loop = run_loop(calls)
    driver_calls, judged_count = nvml.count_calls() - driver_calls, sampler.judgement_count - judged_count
    sampler.stop()
    # Memory and three lists; to Python a list with processes in it is two calls, the first to ask for room.
    return Measured(loop, driver_calls // (4 if in_core else 5), judged_count)


def describe(measured: list[Measured], bare: list[Loop]) -> str:
    """The medians of one way of reading."""
    ratio = median(one.loop.elapsed_ns / loop.elapsed_ns for one, loop in zip(measured, bare, strict=True))
    usual_ratio = median(one.loop.usual_ns / loop.usual_ns for one, loop in zip(measured, bare, strict=True))
    readings = median(one.reading_count for one in measured)
    judged = median(one.judged_count for one in measured)
    waits = median(one.loop.waits for one in measured)
    return (
        f"{ratio:.3f} of the time ({usual_ratio:.3f} a call), {readings:.0f} readings, Python asked for {judged:.0f}, "
        f"{waits:.0f} waits, {describe_stalls([one.loop for one in measured])}"
    )


def describe_stalls(loops: list[Loop]) -> str:
    """Calls that were held up."""
    count, lost_ns = median(loop.stall_count for loop in loops), median(loop.stall_ns for loop in loops)
    return f"{count:.0f} calls held up by {lost_ns / 1000:.0f} us together"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=150_000)
    arguments = parser.parse_args()
    bare: list[Loop] = []
    ways: dict[tuple[int, bool], list[Measured]] = {(ms, in_core): [] for ms in (100, 5) for in_core in (False, True)}
    with tempfile.TemporaryDirectory() as name:
        nvml = PretendedNvml(build_nvml_devices(Path(name)))
        nvml.set_list(0, COMPUTE, [(os.getpid(), 518 * MIB), (1, MIB)])
        nvml.core.pretend_call_us(CALL_US)
        abi.start_recording(Path(name) / "turns.gpumem.journal", run_id=bytes(16), stacks=False)
        for _ in range(arguments.rounds):
            bare.append(run_loop(arguments.calls))
            for (interval_ms, in_core), measured in ways.items():
                measured.append(measure(nvml, arguments.calls, interval_ms, in_core))
        abi.stop_recording("exit")
    print(f"no readings: {median(loop.usual_ns for loop in bare):.0f} ns a call, {describe_stalls(bare)}")
    for (interval_ms, in_core), measured in ways.items():
        print(f"{interval_ms:3} ms, {'native core' if in_core else 'Python':11}: {describe(measured, bare)}")


if __name__ == "__main__":
    main()
