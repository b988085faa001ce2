"""Why memory ran out: the verdict on errors in every shape, and its arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.analyses.oom import explain_log, find_oom_verdict
from gpumem.analyses.oom_facts import OomCode, OomFacts, OomVerdict, Verdict
from gpumem.analyses.oom_rule import segment_bytes_of
from gpumem.importers.oom_log import read_oom_text
from gpumem.render.oom_advice import finding_text
from gpumem.render.oom_words import verdict_text
from gpumem.trace.oom_message import Figure, OomOrigin
from oom_messages import classic, cupy, gpumem, modern, on_driver_pools
from trace_builder import GiB, KiB, MiB

CAPACITY, FRAGMENTATION, LIMIT = Verdict.CAPACITY, Verdict.FRAGMENTATION, Verdict.LIMIT
OUTSIDE, POOLS, SPILL, UNKNOWN = Verdict.OUTSIDE, Verdict.PRIVATE_POOLS, Verdict.SPILL, Verdict.UNKNOWN
G = 1024
"""MiB in a GiB: the figures here are in MiB."""


def verdict_on(text: str) -> OomVerdict:
    (message,) = explain_log(read_oom_text(text)).messages
    return message.verdict


def codes_of(found: OomVerdict) -> list[OomCode]:
    return [finding.code for finding in found.findings]


PREEMPTIVE = (
    "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
    "per_process_memory_fraction limit. Requested size: 4.00 GiB"
)

# name: (error, verdict, MiB free and idle together or None, MiB missing or None)
CASES: dict[str, tuple[str, Verdict, float | None, float | None]] = {
    # Reported in public, with their figures
    "vllm 7721": (
        modern(
            "16.00 GiB", of="44.53 GiB", free="187.94 MiB", process="44.34 GiB", used="43.67 GiB", idle="335.07 MiB"
        ),
        CAPACITY, 187.94 + 335.07, 16 * G - 187.94 - 335.07,
    ),
    "kaito 976": (
        modern("546.00 MiB", of="15.77 GiB", free="514.19 MiB", used="14.10 GiB", idle="736.86 MiB", pools="46.00 MiB"),
        FRAGMENTATION, 514.19 + 736.86, None,
    ),
    "pytorch 111363": (
        modern(
            "64.00 MiB", of="79.15 GiB", free="38.09 GiB", process="41.06 GiB", used="39.10 GiB", idle="427.46 MiB",
            release="2.1",
        ),
        LIMIT, 38.09 * G + 427.46, None,
    ),
    "iPASSR 9": (
        classic("20.00 MiB", of="8.00 GiB", used="17.20 GiB", free="0 bytes", reserved="17.53 GiB"),
        SPILL, None, None,
    ),
    "meshgen 7": (
        modern("1.50 GiB", of="8.00 GiB", free="0 bytes", used="13.98 GiB", idle="190.00 MiB"),
        SPILL, None, None,
    ),
    "EasyR1 9": (
        modern(
            "2.00 GiB", of="79.19 GiB", free="2.23 GiB", process="76.96 GiB", used="83.48 GiB", idle="30.59 GiB"
        ),
        UNKNOWN, 2.23 * G + 30.59 * G, None,
    ),
    "stable diffusion 630": (
        classic("20.00 MiB", of="6.00 GiB", used="5.28 GiB", free="0 bytes", reserved="5.34 GiB"),
        FRAGMENTATION, 5.34 * G - 5.28 * G, None,
    ),
    # PyTorch to 1.3: the last figure is what lies idle
    "1.0, full": (
        classic("9.80 GiB", of="14.76 GiB", used="9.94 GiB", free="3.89 GiB", cached="160.79 MiB"),
        CAPACITY, 3.89 * G + 160.79, 9.80 * G - 3.89 * G - 160.79,
    ),
    "1.0, in pieces": (
        classic("512.00 MiB", of="10.76 GiB", used="8.50 GiB", free="100.56 MiB", cached="1.40 GiB"),
        FRAGMENTATION, 100.56 + 1.40 * G, None,
    ),
    # PyTorch 1.4 to 2.0: reserved is allocated and idle
    "1.4, full": (
        classic("2.26 GiB", of="10.92 GiB", used="9.81 GiB", free="103.56 MiB", reserved="10.17 GiB"),
        CAPACITY, 103.56 + (10.17 - 9.81) * G, 2.26 * G - 103.56 - (10.17 - 9.81) * G,
    ),
    "1.4, in pieces": (
        classic("2.87 GiB", of="14.76 GiB", used="8.77 GiB", free="19.75 MiB", reserved="13.71 GiB"),
        FRAGMENTATION, 19.75 + (13.71 - 8.77) * G, None,
    ),
    "1.4, refused with room": (
        classic("2.26 GiB", of="6.00 GiB", used="781.59 MiB", free="3.03 GiB", reserved="1.24 GiB"),
        LIMIT, 3.03 * G + 1.24 * G - 781.59, None,
    ),
    "1.4, the whole batch too large": (
        classic("222.41 GiB", of="23.56 GiB", used="583.94 MiB", free="22.66 GiB", reserved="612.00 MiB"),
        CAPACITY, 22.66 * G + 612 - 583.94, 222.41 * G - 22.66 * G - 612 + 583.94,
    ),
    "1.8, a limit": (
        classic(
            "1.00 GiB", of="23.69 GiB", used="11.00 GiB", free="11.44 GiB", reserved="11.25 GiB", allowed="11.85 GiB"
        ),
        LIMIT, 11.44 * G + 0.25 * G, None,
    ),
    "1.13, others on the card": (
        classic("1.69 GiB", of="14.56 GiB", used="649.97 MiB", free="1.31 GiB", reserved="692.00 MiB"),
        OUTSIDE, 1.31 * G + 692 - 649.97, 1.69 * G - 1.31 * G - 692 + 649.97,
    ),
    # PyTorch 2.1 and 2.2
    "2.1, full": (
        modern(
            "1.70 GiB", of="23.69 GiB", free="1.02 GiB", process="22.66 GiB", used="21.90 GiB", idle="310.00 MiB",
            release="2.1",
        ),
        CAPACITY, 1.02 * G + 310, 1.70 * G - 1.02 * G - 310,
    ),
    "2.1, in pieces": (
        modern("1.70 GiB", of="6.00 GiB", free="0 bytes", used="2.93 GiB", idle="2.30 GiB", release="2.1"),
        FRAGMENTATION, 2.30 * G, None,
    ),
    "2.1, another process": (
        modern(
            "4.50 GiB", of="23.69 GiB", free="3.19 GiB", others=[(2006998, "9.25 GiB")], process="11.23 GiB",
            used="10.90 GiB", idle="32.75 MiB", release="2.1",
        ),
        OUTSIDE, 3.19 * G + 32.75, 4.50 * G - 3.19 * G - 32.75,
    ),
    "2.1, refused with 42 MiB free": (
        modern(
            "32.00 MiB", of="4.00 GiB", free="41.56 MiB", process="3.44 GiB", used="2.58 GiB", idle="1.90 MiB",
            release="2.1",
        ),
        LIMIT, 41.56 + 1.90, None,
    ),
    "2.1, own libraries": (
        modern(
            "2.00 GiB", of="79.15 GiB", free="512.00 MiB", process="78.50 GiB", used="70.00 GiB", idle="300.00 MiB",
            release="2.1",
        ),
        OUTSIDE, 812, 2 * G - 812,
    ),
    # PyTorch 2.3
    "2.3, full": (
        modern(
            "19.68 GiB", of="23.68 GiB", free="11.88 GiB", process="11.79 GiB", used="11.44 GiB", idle="43.59 MiB"
        ),
        CAPACITY, 11.88 * G + 43.59, 19.68 * G - 11.88 * G - 43.59,
    ),
    "2.3, in a container": (
        modern(
            "7.28 GiB", of="47.53 GiB", free="3.93 GiB", others=[(3121620, "43.59 GiB")], used="38.33 GiB",
            idle="4.95 GiB",
        ),
        FRAGMENTATION, 3.93 * G + 4.95 * G, None,
    ),
    "2.3, in a container, full": (
        modern(
            "972.00 MiB", of="21.95 GiB", free="154.12 MiB", others=[(82739, "21.79 GiB")], used="21.04 GiB",
            idle="118.33 MiB", gpu=3,
        ),
        CAPACITY, 154.12 + 118.33, 972 - 154.12 - 118.33,
    ),
    "2.3, a small request": (
        modern(
            "20.00 MiB", of="31.36 GiB", free="18.12 MiB", process="31.33 GiB", used="27.89 GiB", idle="2.84 GiB"
        ),
        FRAGMENTATION, 18.12 + 2.84 * G, None,
    ),
    "2.3, Windows: the process is not known": (
        modern(
            "768.00 MiB", of="31.84 GiB", free="0 bytes", process="17179869184.00 GiB", used="52.93 GiB",
            idle="32.88 MiB",
        ),
        SPILL, None, None,
    ),
    "2.3, larger than the card": (
        modern("30.29 GiB", of="10.74 GiB", free="3.69 GiB", process="6.68 GiB", used="6.10 GiB", idle="396.58 MiB"),
        CAPACITY, 3.69 * G + 396.58, 30.29 * G - 3.69 * G - 396.58,
    ),
    "2.3, two other processes": (
        modern(
            "5.00 GiB", of="39.39 GiB", free="1.20 GiB", others=[(7, "12.00 GiB"), (8, "9.50 GiB")],
            process="16.69 GiB", used="15.80 GiB", idle="210.00 MiB",
        ),
        OUTSIDE, 1.20 * G + 210, 5 * G - 1.20 * G - 210,
    ),
    "2.3, others would not be enough": (
        modern(
            "16.00 GiB", of="23.65 GiB", free="1.00 GiB", others=[(7, "10.00 GiB")], process="12.65 GiB",
            used="12.00 GiB", idle="120.00 MiB",
        ),
        CAPACITY, 1 * G + 120, 15 * G - 120,
    ),
    "2.3, processes that are not listed": (
        modern("6.00 GiB", of="79.15 GiB", free="4.10 GiB", process="30.00 GiB", used="28.90 GiB", idle="500.00 MiB"),
        OUTSIDE, 4.10 * G + 500, 6 * G - 4.10 * G - 500,
    ),
    "2.3, AMD": (
        modern(
            "80.00 MiB", of="15.98 GiB", free="64.00 MiB", used="15.44 GiB", idle="267.59 MiB", platform="HIP"
        ),
        FRAGMENTATION, 64 + 267.59, None,
    ),
    "2.3, AMD, most of the card free": (
        modern("2.00 MiB", of="287.98 GiB", free="203.49 GiB", used="68.63 GiB", idle="14.93 GiB", platform="HIP"),
        LIMIT, 203.49 * G + 14.93 * G, None,
    ),
    "2.3, AMD, more free than the card has": (
        modern("16.00 GiB", of="15.49 GiB", free="84.98 GiB", used="1.67 GiB", idle="8.08 GiB", platform="HIP"),
        UNKNOWN, 84.98 * G + 8.08 * G, None,
    ),
    # PyTorch 2.4 to 2.9: private pools are told apart, and their idle bytes are counted as allocated
    "2.4, private pools": (
        modern(
            "1.00 GiB", of="39.39 GiB", free="300.00 MiB", process="39.09 GiB", used="38.10 GiB", pools="6.20 GiB",
            idle="412.00 MiB",
        ),
        POOLS, 300 + 412 + 6.20 * G, None,
    ),
    "2.4, private pools would not do": (
        modern(
            "8.00 GiB", of="39.39 GiB", free="300.00 MiB", process="39.09 GiB", used="38.10 GiB", pools="2.00 GiB",
            idle="412.00 MiB",
        ),
        CAPACITY, 712 + 2 * G, 6 * G - 712,
    ),
    "2.9, a limit": (
        modern(
            "2.00 GiB", of="79.15 GiB", free="60.20 GiB", allowed="19.79 GiB", process="18.95 GiB", used="18.10 GiB",
            idle="200.00 MiB",
        ),
        LIMIT, 60.20 * G + 200, None,
    ),
    "2.9, a limit and a full card": (
        modern(
            "4.00 GiB", of="23.65 GiB", free="500.00 MiB", allowed="22.47 GiB", process="23.10 GiB", used="22.00 GiB",
            idle="300.00 MiB",
        ),
        CAPACITY, 800, 4 * G - 800,
    ),
    "2.9, a limit that joined idle blocks would break too": (
        modern(
            "2.00 GiB", of="15.89 GiB", free="1.60 GiB", allowed="8.00 GiB", process="8.29 GiB", used="7.00 GiB",
            idle="512.00 MiB",
        ),
        LIMIT, 1.60 * G + 512, None,
    ),
    "2.9, a limit above what joined idle blocks take": (
        modern(
            "2.00 GiB", of="15.89 GiB", free="1.60 GiB", allowed="9.30 GiB", process="8.29 GiB", used="7.00 GiB",
            idle="512.00 MiB",
        ),
        FRAGMENTATION, 1.60 * G + 512, None,
    ),
    "2.9, AMD, a limit": (
        modern(
            "2.00 MiB", of="287.98 GiB", free="275.86 GiB", allowed="1.05 GiB", used="1017.01 MiB", pools="17.00 MiB",
            idle="54.99 MiB", platform="HIP",
        ),
        LIMIT, 275.86 * G + 54.99 + 17, None,
    ),
    # PyTorch 2.10 and from 2.11 on
    "2.10, in pieces": (
        modern(
            "3.00 GiB", of="79.11 GiB", free="1.87 GiB", process="77.20 GiB", used="70.02 GiB", idle="6.21 GiB",
            release="2.10",
        ),
        FRAGMENTATION, 1.87 * G + 6.21 * G, None,
    ),
    "2.11, full": (
        modern(
            "1.21 GiB", of="139.80 GiB", free="180.00 MiB", process="139.62 GiB", used="138.70 GiB", idle="144.00 MiB",
            release="2.11",
        ),
        CAPACITY, 324, 1.21 * G - 324,
    ),
    "2.11, private pools": (
        modern(
            "2.00 MiB", of="139.80 GiB", free="0 bytes", process="139.80 GiB", used="139.00 GiB", pools="30.00 MiB",
            idle="0 bytes", release="2.11",
        ),
        POOLS, 30, None,
    ),
    "2.12, refused before the driver was asked": (
        PREEMPTIVE,
        LIMIT, None, None,
    ),
    # The driver's own pools: it gives what lies idle in them up before it refuses
    "cudaMallocAsync, full": (
        on_driver_pools("640.00 MiB", used="10.60 GiB", of="11.59 GiB", free="7.12 MiB"),
        CAPACITY, 7.12, 632.88,
    ),
    "cudaMallocAsync, others on the card": (
        on_driver_pools("640.00 MiB", used="6.43 GiB", of="11.59 GiB", free="7.12 MiB"),
        OUTSIDE, 7.12, 632.88,
    ),
    "cudaMallocAsync, a limit": (
        on_driver_pools("640.00 MiB", used="5.43 GiB", of="11.59 GiB", free="5.50 GiB", allowed="5.79 GiB"),
        LIMIT, 5.50 * G, None,
    ),
    # CuPy says nothing of the card
    "CuPy, a limit": (cupy(8 * GiB, 12 * GiB, 16 * GiB), LIMIT, None, None),
    "CuPy, no limit": (cupy(8 * GiB, 12 * GiB), UNKNOWN, None, None),
    "CuPy, below its limit": (cupy(1 * GiB, 12 * GiB, 16 * GiB), UNKNOWN, None, None),
    "CuPy 6": (
        "cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 1073741824 bytes (total 12373894656 bytes)",
        UNKNOWN, None, None,
    ),
    # gpumem's allocator
    "gpumem, full": (
        gpumem("8.00 GiB", of="139.80 GiB", free="1.00 GiB", held="138.00 GiB", used="136.50 GiB"),
        CAPACITY, 2.5 * G, 5.5 * G,
    ),
    "gpumem, in pieces": (
        gpumem("512.00 MiB", of="8.00 GiB", free="100.00 MiB", held="7.50 GiB", used="6.00 GiB"),
        FRAGMENTATION, 100 + 1.5 * G, None,
    ),
    "gpumem, a limit": (
        gpumem("512.00 MiB", of="8.00 GiB", free="4.00 GiB", held="3.75 GiB", used="3.75 GiB", limit="4.00 GiB"),
        LIMIT, 4 * G, None,
    ),
    # Requests that no memory could serve
    "PyTorch, absurd": (
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", CAPACITY, None, None,
    ),
    "gpumem, absurd": (
        "1152921504606846977 bytes cannot be allocated: a request is 1 EiB at most.", CAPACITY, None, None,
    ),
    # Errors that have no figures of the card
    "CUDA": ("RuntimeError: CUDA error: out of memory", UNKNOWN, None, None),
    "CUDA, PyTorch 0.4": (
        "RuntimeError: cuda runtime error (2) : out of memory at /build/THCStorage.cu:58", UNKNOWN, None, None,
    ),
    "RMM": ("MemoryError: std::bad_alloc: out_of_memory: CUDA error at: memory_resource.hpp", UNKNOWN, None, None),
    "llama.cpp": ("allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory", UNKNOWN, None, None),
    "CUDA, bare": ("RuntimeError: CUDA out of memory.", UNKNOWN, None, None),
    "runtime": ("CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", UNKNOWN, None, None),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", UNKNOWN, None, None,
    ),
    "cuDNN": ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", UNKNOWN, None, None),
    "NCCL": ("node1:77:99 [2] misc/alloc.h:55 NCCL WARN Cuda failure 2 'out of memory'", UNKNOWN, None, None),
    "NCCL, no number": ("ncclUnhandledCudaError: Last error: Cuda failure 'out of memory'", UNKNOWN, None, None),
    "JAX": ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 800 bytes.", UNKNOWN, None, None),
    "cut off": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", UNKNOWN, None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_verdict_and_its_arithmetic_are_right(name: str) -> None:
    text, verdict, together_mib, missing_mib = CASES[name]
    found = verdict_on(text)
    assert found.verdict is verdict
    assert found.also_possible == ()
    for figure, mib in ((found.within_reach, together_mib), (found.short, missing_mib)):
        if mib is None:
            assert figure is None or (figure is found.within_reach and verdict in (SPILL, UNKNOWN))
        else:
            assert figure is not None
            assert figure.byte_count / MiB == pytest.approx(mib, abs=0.01)


def test_figures_are_intervals_of_what_two_decimals_leave_open() -> None:
    facts = verdict_on(CASES["vllm 7721"][0]).facts
    assert facts.free == Figure(round(187.94 * MiB), 5243)
    assert facts.card == Figure(round(44.53 * GiB), 5368710)
    assert facts.asked == Figure(16 * GiB, 5368710)
    assert verdict_on(CASES["kaito 976"][0]).facts.asked == Figure(546 * MiB, 0)


def test_blocks_idle_in_private_pools_are_not_in_use() -> None:
    facts = verdict_on(CASES["2.4, private pools"][0]).facts
    assert facts.allocated is not None
    assert facts.reserved is not None
    assert facts.allocated.byte_count / MiB == pytest.approx((38.10 - 6.20) * G, abs=0.01)
    assert facts.reserved.byte_count / MiB == pytest.approx(38.10 * G + 412, abs=0.01)


def test_verdict_that_rounding_leaves_open_says_so() -> None:
    found = verdict_on(modern("3.00 GiB", of="23.65 GiB", free="1.00 GiB", used="18.00 GiB", idle="2.00 GiB"))
    assert found.verdict is FRAGMENTATION
    assert found.also_possible == (OUTSIDE,)
    assert OomCode.WITHIN_ROUNDING in codes_of(found)
    less = verdict_on(modern("3.00 GiB", of="23.65 GiB", free="1.02 GiB", used="18.00 GiB", idle="2.00 GiB"))
    assert less.also_possible == ()


def test_open_comparison_that_changes_nothing_leaves_the_verdict_decided() -> None:
    found = verdict_on(CASES["2.9, AMD, a limit"][0])
    assert found.facts.limit is not None
    assert found.facts.reserved is not None
    assert (
        abs(found.facts.reserved.byte_count + 2 * MiB - found.facts.limit.byte_count) < found.facts.limit.rounding_bytes
    )
    assert (found.verdict, found.also_possible) == (LIMIT, ())


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("2.00 MiB", 1, 1 * MiB),
        ("20.00 MiB", 1 * MiB + 1, 10 * MiB - 1),
        ("10.00 MiB", 8 * MiB + 1, 10 * MiB),
        ("22.00 MiB", 20 * MiB + 1, 22 * MiB),
        ("546.00 MiB", 544 * MiB + 1, 546 * MiB),
        ("1024.00 MiB", 1022 * MiB + 1, 1024 * MiB),
        ("16.00 GiB", 16 * GiB - 5368710 - 2 * MiB + 1, 16 * GiB + 5368710),
    ],
)
def test_what_was_asked_for_is_a_segment_not_the_tensor(asked: str, least: int, most: int) -> None:
    found = verdict_on(modern(asked, of="23.65 GiB", free="0 bytes", used="23.00 GiB", idle="1.00 MiB"))
    assert found.request_range == (least, most)


@pytest.mark.parametrize("request_bytes", [1, 512, MiB, MiB + 512, 10 * MiB - 512, 10 * MiB, 10 * MiB + 512, 3 * GiB])
def test_segment_that_a_request_needs_lies_in_the_range_told_from_it(request_bytes: int) -> None:
    asked = Figure(segment_bytes_of(request_bytes))
    span = find_oom_verdict(OomFacts(OomOrigin.TORCH, asked=asked, free=Figure(0), idle=Figure(0))).request_range
    assert span is not None
    assert span[0] <= request_bytes <= span[1]


def test_request_that_was_printed_exactly_is_no_segment() -> None:
    assert verdict_on(CASES["cudaMallocAsync, full"][0]).request_range is None
    odd = modern("721.15 MiB", of="23.65 GiB", free="0 bytes", used="23.00 GiB", idle="0 bytes")
    assert verdict_on(odd).request_range is None


def test_fraction_that_is_not_named_is_told_from_where_it_refused() -> None:
    found = verdict_on(CASES["pytorch 111363"][0])
    assert found.implied_fraction == 0.5
    assert OomCode.LIMIT_NOT_NAMED in codes_of(found)
    assert verdict_on(CASES["2.3, AMD, most of the card free"][0]).implied_fraction is None


def test_limit_on_a_full_card_is_no_matter_of_the_limit_alone() -> None:
    found = verdict_on(CASES["2.9, a limit that joined idle blocks would break too"][0])
    first, *others = found.findings
    assert first.code is OomCode.NEED_LESS
    assert first.byte_count == pytest.approx((7.00 + 0.5 + 2.00 - 8.00) * GiB, abs=MiB)
    (raising,) = (one for one in others if one.code is OomCode.RAISE_LIMIT)
    assert finding_text(first, found).startswith("Need 1.50 GiB less: ")
    assert finding_text(raising, found).endswith(" That alone does not help: the card has only 1.60 GiB free.")
    ordinary = verdict_on(CASES["2.9, a limit"][0])
    assert ordinary.findings[0].code is OomCode.RAISE_LIMIT
    assert "alone" not in finding_text(ordinary.findings[0], ordinary)


def test_process_of_a_container_is_known_by_what_it_holds() -> None:
    found = verdict_on(CASES["2.3, in a container"][0])
    assert found.own_outside is not None
    assert found.own_outside.byte_count / MiB == pytest.approx((43.59 - 38.33 - 4.95) * G, abs=0.01)
    assert OomCode.PROCESS_IS_THIS_ONE in codes_of(found)
    assert OomCode.LOOK_AT_PROCESS not in codes_of(found)


def test_other_processes_come_first_and_the_largest_of_them() -> None:
    found = verdict_on(CASES["2.3, two other processes"][0])
    first, second, *_ = found.findings
    assert (first.code, first.pid, first.byte_count) == (OomCode.LOOK_AT_PROCESS, 7, 12 * GiB)
    assert (second.code, second.pid) == (OomCode.LOOK_AT_PROCESS, 8)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("vllm 7721", OomCode.NEED_LESS),
        ("kaito 976", OomCode.SET_EXPANDABLE),
        ("pytorch 111363", OomCode.FIND_LIMIT),
        ("iPASSR 9", OomCode.NEED_LESS),
        ("EasyR1 9", OomCode.HELD_ELSEWHERE),
        ("1.4, in pieces", OomCode.SET_MAX_SPLIT),
        ("2.9, a limit", OomCode.RAISE_LIMIT),
        ("2.1, own libraries", OomCode.CUT_OWN_OUTSIDE),
        ("2.3, processes that are not listed", OomCode.FIND_HIDDEN_PROCESSES),
        ("2.4, private pools", OomCode.FREE_GRAPHS),
        ("2.1, refused with 42 MiB free", OomCode.LEAVE_ROOM),
        ("cuBLAS", OomCode.LEAVE_ROOM),
        ("CuPy, a limit", OomCode.RAISE_LIMIT),
        ("PyTorch, absurd", OomCode.IMPOSSIBLE_REQUEST),
        ("gpumem, absurd", OomCode.IMPOSSIBLE_REQUEST),
    ],
)
def test_most_useful_advice_comes_first(name: str, first: OomCode) -> None:
    assert codes_of(verdict_on(CASES[name][0]))[0] is first


def test_advice_names_the_bytes_it_turns_on() -> None:
    by_code = {finding.code: finding.byte_count for finding in verdict_on(CASES["kaito 976"][0]).findings}
    assert by_code[OomCode.SET_EXPANDABLE] == 546 * MiB - round(514.19 * MiB)
    spill = {finding.code: finding.byte_count for finding in verdict_on(CASES["iPASSR 9"][0]).findings}
    assert spill[OomCode.NEED_LESS] == round(17.53 * GiB) - 8 * GiB


def test_hint_of_the_error_is_contradicted_where_it_cannot_help() -> None:
    assert OomCode.SETTING_CANNOT_HELP in codes_of(verdict_on(CASES["vllm 7721"][0]))
    assert OomCode.SET_EXPANDABLE not in codes_of(verdict_on(CASES["vllm 7721"][0]))


@pytest.mark.parametrize(
    "line",
    [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        "export PYTORCH_ALLOC_CONF='garbage_collection_threshold:0.8,expandable_segments:True'",
        '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}',
        "INFO: setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "os.environ['PYTORCH_HIP_ALLOC_CONF'] = 'expandable_segments:True'",
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_setting_that_is_on_already_is_not_advised(line: str, is_before: bool) -> None:
    text = CASES["kaito 976"][0]
    found = verdict_on(f"{line}\n{text}\n" if is_before else f"{text}\n{line}\n")
    assert found.verdict is FRAGMENTATION
    assert codes_of(found)[0] is OomCode.EXPANDABLE_IS_ON
    assert OomCode.SET_EXPANDABLE not in codes_of(found)


@pytest.mark.parametrize(
    "line",
    [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
        "hint: try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "You may consider setting `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
        "is large try setting\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    ],
)
def test_setting_that_is_only_spoken_of_is_advised(line: str) -> None:
    assert codes_of(verdict_on(f"{line}\n{CASES['kaito 976'][0]}"))[0] is OomCode.SET_EXPANDABLE


def test_platform_without_expandable_segments_is_not_advised_to_use_them() -> None:
    warning = "UserWarning: expandable_segments not supported on this platform (Triggered internally at …)"
    found = verdict_on(f"{warning}\n{CASES['kaito 976'][0]}")
    assert codes_of(found)[:2] == [OomCode.EXPANDABLE_REFUSED, OomCode.SET_MAX_SPLIT]


def test_block_that_came_back_too_late_asks_for_another_try() -> None:
    facts = OomFacts(
        OomOrigin.TRACE, asked=Figure(20 * MiB), request=Figure(4 * MiB), free=Figure(0), idle=Figure(30 * MiB),
        allocated=Figure(GiB), largest_gap_bytes=4 * MiB,
    )  # fmt: skip
    assert codes_of(find_oom_verdict(facts))[0] is OomCode.RETRY


def test_smallest_of_units_are_read() -> None:
    found = verdict_on(classic("2.00 MiB", of="1.96 GiB", used="1.24 GiB", free="576.00 KiB", reserved="1.25 GiB"))
    assert found.facts.free == Figure(576 * KiB, 6)


def test_document_names_every_verdict() -> None:
    text = (Path(__file__).parents[3] / "docs" / "out_of_memory.md").read_text(encoding="utf-8")
    assert all(f"| `{verdict.value}` |" in text for verdict in Verdict)


@pytest.mark.parametrize("text", ["CUDA out of memory.", "HIP out of memory", "ray: CUDA out of memory in generate()"])
def test_first_words_of_pytorch_s_error_are_not_a_library_s_and_lead_to_the_whole_of_it(text: str) -> None:
    found = explain_log(read_oom_text(text)).worst
    assert (found.found.message.origin, found.verdict.verdict) == (OomOrigin.TORCH, Verdict.UNKNOWN)
    assert [one.code for one in found.verdict.findings] == [
        OomCode.FIND_FIGURES,
        OomCode.WATCH_DRIVER,
        OomCode.RECORD,
    ]
    assert "PyTorch's error begins like this" in verdict_text(found.verdict)


def test_error_of_the_driver_is_not_said_to_be_a_library_s() -> None:
    found = explain_log(read_oom_text("RuntimeError: CUDA error: out of memory")).worst
    said = "Unknown: memory was refused, and this error gives no figures of the card."
    assert (found.found.message.origin, verdict_text(found.verdict)) == (OomOrigin.LIBRARY, said)


@pytest.mark.parametrize(
    "text",
    [
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "ResourceExhaustedError: OOM when allocating tensor with shape[9] on device:GPU:0 by allocator GPU_0_bfc",
    ],
)
def test_error_of_xla_gets_advice_on_xla_s_reserve_and_none_on_pytorch_s_settings(text: str) -> None:
    found = verdict_on(text)
    assert codes_of(found) == [
        OomCode.XLA_SHARE_CARD, OomCode.XLA_RAISE_SHARE, OomCode.NEED_LESS, OomCode.WATCH_DRIVER, OomCode.XLA_RESERVES,
    ]  # fmt: skip
