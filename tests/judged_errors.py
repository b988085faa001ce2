"""Out-of-memory errors with the verdict that is right for each, and its arithmetic.

Owns: their texts and what is true of them. Must not know: how a verdict is found.
"""

from __future__ import annotations

from gpumem.analyses.oom import explain_log
from gpumem.analyses.oom_facts import OomCode, OomVerdict, Verdict
from gpumem.importers.oom_log import read_oom_text
from oom_messages import classic, cupy, gpumem, modern, on_driver_pools
from trace_builder import GiB

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
