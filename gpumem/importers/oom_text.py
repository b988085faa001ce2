"""The text of one out-of-memory error -> its figures.

    PyTorch to 2.0    Tried to allocate A (GPU n; T total capacity; U already allocated; F free; [L allowed;] R reserved
                      in total by PyTorch)            to 1.3: "I cached)" at the end, which is what lies idle
    PyTorch from 2.1  Tried to allocate A. GPU n has a total capac[i]ty of T of which F is free. [Process p has B memory
                      in use.]* [Including non-PyTorch memory, this process has P memory in use.] [L allowed;] Of the
                      allocated memory U is allocated by PyTorch, [with X allocated in private pools …,] and I is
                      reserved by PyTorch but unallocated.
    cudaMallocAsync   Allocation on device n would exceed allowed memory … and a figure a line
    CuPy              Out of memory allocating A bytes (allocated so far: R bytes[, limit set to: L bytes]).
    gpumem            Out of memory on device n (NAME): A were asked for, F of T are free. …
    XLA               RESOURCE_EXHAUSTED: Out of memory while trying to allocate A bytes.   (JAX, TensorFlow)
                      RESOURCE_EXHAUSTED: Failed to allocate request for A (A bytes) on device ordinal n
                      failed to allocate A (A bytes) from device: CUDA_ERROR_OUT_OF_MEMORY
                      OOM when allocating tensor with shape[…] and type … on …GPU:n by allocator GPU_n_bfc
    first words only  CUDA out of memory.             PyTorch's, as something passed it on without its figures
    libraries         CUDA error: out of memory, CUBLAS_STATUS_ALLOC_FAILED, Cuda failure 'out of memory', …

Owns: where a message starts, when it is whole, and what each number in it is. Must not know: lines, ranks, files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomMessage, OomOrigin, ProcessShare
from gpumem.units import GIB, KIB, MIB, TIB

MESSAGE_CHARACTERS_MAX = 16384
"""More than any message with all its advice and hundreds of processes listed; what is beyond that is not read."""

_UNITS = {"bytes": 1, "byte": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_UNITS |= {"kb": KIB, "mb": MIB, "gb": GIB}  # of PyTorch before 1.0, which meant powers of two by them
_BYTES = r"(\d[\d,]{0,24}(?:\.\d{1,6})?)(bytes|byte|B|[KMGT]i?B)"
_STARTS = (
    (OomOrigin.TORCH, r"\b[A-Z]{2,5} out of memory\.? ?(?:Tried to allocate|Allocation was preemptively|(?=.{0,16}$))"),
    (OomOrigin.TORCH, r"Tried to allocate (?=[\d.]{1,12} (?:bytes|[KMG]i?B)\b)"),
    (OomOrigin.TORCH, r"Preemptively rejecting allocation: requested"),
    (OomOrigin.TORCH_ASYNC, r"Allocation on device \d{1,4} would exceed allowed memory"),
    (OomOrigin.CUPY, r"Out of memory allocating (?=[\d,]{1,30} bytes)|out of memory to allocate (?=\d{1,30} bytes)"),
    (
        OomOrigin.GPUMEM,
        r"Out of memory on device (?=\d{1,4} \()|\d{1,30} bytes cannot be allocated: a request is 1 EiB",
    ),
    (
        OomOrigin.XLA,
        (
            r"(?:RESOURCE_EXHAUSTED|[Rr]esource exhausted): (?:Out of memory|Failed to allocate request for)"
            r"|OOM when allocating tensor (?=[^\r\n]{1,300} by allocator GPU)"
            r"|[Ff]ailed to allocate \d[\d.]{0,12}[KMGT]?(?:i?B)? \([^)]{1,30}\) from device: CUDA_ERROR_OUT_OF_MEMORY"
        ),
    ),
    (
        OomOrigin.LIBRARY,
        (
            r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|CU[A-Z]{2,9}_STATUS_ALLOC_FAILED|[Cc]uda failure (?:\d{1,3} )?'out of memory'"
            r"|[Cc]uda runtime error \(2\) ?: out of memory|cudaMalloc\w{0,8} failed: out of memory"
            r"|std::bad_alloc: out_of_memory|\b(?:CUDA|HIP) out of memory\b"
        ),
    ),
)
START = re.compile("|".join(f"(?P<{origin.value}_{number}>{text})" for number, (origin, text) in enumerate(_STARTS)))
_ORIGIN_OF_GROUP = {f"{origin.value}_{number}": origin for number, (origin, _) in enumerate(_STARTS)}

_WHOLE = {
    OomOrigin.TORCH: r"PyTorch but unallocated|in total by PyTorch\)|cached\)|1EB memory|size: {bytes}|% of {bytes}\)",
    OomOrigin.TORCH_ASYNC: r"PyTorch limit[^:]*: {bytes}",
    OomOrigin.CUPY: r"bytes\)",
    OomOrigin.GPUMEM: r"are in use|1 EiB at most",
    OomOrigin.XLA: "",
    OomOrigin.LIBRARY: "",
}


def origin_of(start: re.Match[str]) -> OomOrigin:
    """Whose message a match of START begins."""
    assert start.lastgroup is not None, "every alternative is a group"
    return _ORIGIN_OF_GROUP[start.lastgroup]


def is_whole(origin: OomOrigin, text: str) -> bool:
    """Whether `text`, from the message's start, has all its figures."""
    return _match(_WHOLE[origin], _compact(text)) is not None


def is_continued_by(origin: OomOrigin, text: str, start: re.Match[str]) -> bool:
    """Whether what looks like a start is the second line of a message of which `text` is the first."""
    return origin is OomOrigin.TORCH and "Tried to" not in text and start[0].startswith("Tried to")


def parse_message(origin: OomOrigin, text: str) -> OomMessage | None:
    """The figures of the message that begins at `text`; None where it has the words of one and nothing more."""
    compact = _compact(text)
    match origin:
        case OomOrigin.TORCH:
            return _parse_torch(compact) or _parse_library(text, compact)
        case OomOrigin.TORCH_ASYNC:
            return _parse_torch_async(compact)
        case OomOrigin.CUPY:
            return _parse_cupy(compact)
        case OomOrigin.GPUMEM:
            return _parse_gpumem(text, compact)
        case OomOrigin.XLA:
            return _parse_xla(text, compact)
        case _:
            return _parse_library(text, compact)


def _compact(text: str) -> str:
    """The text without blanks, line breaks and frames.

    A terminal breaks lines between words or inside them, so only what no break can touch is looked at.
    """
    return re.sub(r"[\s│|]+", "", text[:MESSAGE_CHARACTERS_MAX].replace("\\n", " "))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("{bytes}", _BYTES).replace(" ", ""))


def _match(pattern: str, text: str) -> re.Match[str] | None:
    """The first place in a compact text; the pattern is written with blanks, to be read, and {bytes} for a figure."""
    return _pattern(pattern).search(text)


def _figure(match: re.Match[str] | None, first: int = 1) -> Figure | None:
    """The figure in two groups of a match: its number and its unit."""
    if match is None:
        return None
    digits, unit = match[first].replace(",", ""), _UNITS[match[first + 1].lower()]
    byte_count = round(float(digits) * unit)
    if byte_count >= IMPOSSIBLE_BYTES:
        return None
    decimals = len(digits.partition(".")[2])
    return Figure(byte_count, 0 if unit == 1 else -(-unit // (2 * 10**decimals)))


def _search(pattern: str, text: str) -> Figure | None:
    return _figure(_match(pattern, text))


def _parse_torch(text: str) -> OomMessage | None:
    if _match("(?:P|p)reemptively reject", text) is not None:
        return _parse_preemptive(text)
    if _match("Tried to allocate more than 1EB", text) is not None:
        return OomMessage(OomOrigin.TORCH, asked=Figure(IMPOSSIBLE_BYTES))
    asked = _search(r"Tried to allocate {bytes}", text)
    if asked is None:
        return None
    classic = _match(r"\(GPU (\d{1,4}); {bytes} total capacity;", text)
    return _parse_classic(text, asked, classic) if classic is not None else _parse_modern(text, asked)


def _parse_classic(text: str, asked: Figure, start: re.Match[str]) -> OomMessage:
    rest = text[start.start() :]
    idle = _search(r"{bytes} cached\)", rest)
    reserved = _search(r"{bytes} reserved in total", rest)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_exact_segment(asked),
        device=int(start[1]),
        card=_figure(start, 2),
        allocated=_search(r"{bytes} already allocated", rest),
        free=_search(r"{bytes} free;", rest),
        limit=_search(r"{bytes} allowed;", rest),
        idle=idle,
        reserved=reserved,
        versions="1.3 or older" if idle is not None else "1.4 to 2.0" if reserved is not None else None,
    )


def _parse_modern(text: str, asked: Figure) -> OomMessage:
    place = _match(r"GPU (\d{1,4}) has a total capaci?ty of {bytes}", text)
    processes = _pattern(r"Process (\d{1,10}) has {bytes} memory in use").finditer(text)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_exact_segment(asked),
        device=None if place is None else int(place[1]),
        card=_figure(place, 2),
        free=_search(r"of which {bytes} is free", text),
        process=_search(r"this process has {bytes} memory in use", text),
        other_processes=tuple(ProcessShare(int(one[1]), _figure(one, 2)) for one in processes),
        limit=_search(r"{bytes} allowed;", text),
        allocated=_search(r"{bytes} is allocated by PyTorch", text),
        private_idle=_search(r"with {bytes} allocated in private pools", text),
        idle=_search(r"{bytes} is reserved by PyTorch", text),
        versions=_versions_of(text),
    )


def _versions_of(text: str) -> str | None:
    signs = (
        ("capacty", "2.1 to 2.2"),
        ("optimizing-memory-usage", "2.11 or newer"),
        ("PYTORCH_ALLOC_CONF=", "2.10"),
        ("allocatedinprivatepools", "2.4 or newer"),
        ("totalcapacity", "2.3 or newer"),
    )
    return next((versions for sign, versions in signs if sign in text), None)


def _parse_preemptive(text: str) -> OomMessage:
    """Refused for the limit before the driver was asked; the log line says more than the error."""
    held = _search(r"total_allocated_memory \({bytes}\)", text)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_search(r"(?:Requested size: |rejecting allocation: requested ){bytes}", text),
        reserved=held,
        card=_search(r"% of {bytes}\)", text),
        versions="2.12 or newer",
        is_preemptive=True,
    )


def _parse_torch_async(text: str) -> OomMessage:
    device = _match(r"Allocation on device (\d{1,4})", text)
    assert device is not None, "START matched it"
    return OomMessage(
        OomOrigin.TORCH_ASYNC,
        device=int(device[1]),
        allocated=_search(r"Currently allocated: {bytes}", text),
        asked=_search(r"Requested: {bytes}", text),
        card=_search(r"Device limit: {bytes}", text),
        free=_search(r"Free \(according to CUDA\): {bytes}", text),
        limit=_search(r"PyTorch limit[^:]{0,60}: {bytes}", text),
    )


def _parse_cupy(text: str) -> OomMessage:
    asked = _search(r"allocat(?:ing|e) {bytes}", text)
    held = _search(r"allocated so far: {bytes}", text)
    with_request = _search(r"\(total {bytes}", text)
    if held is None and with_request is not None and asked is not None:
        held = (with_request - asked).floored()  # CuPy before 7 counted the request too
    limit = _search(r"limit set to:? {bytes}", text)
    return OomMessage(OomOrigin.CUPY, asked=asked, reserved=held, limit=limit)


def _parse_gpumem(written: str, text: str) -> OomMessage | None:
    impossible = re.match(r"(\d{1,30})bytescannotbeallocated", text)
    if impossible is not None:
        return OomMessage(OomOrigin.GPUMEM, asked=Figure(int(impossible[1])))
    start = _match(r"Out of memory on device (\d{1,4}) \(.{0,200}?\): {bytes} were asked for", text)
    if start is None:
        return None
    name = re.match(r"Out of memory on device \d+ \(([^\r\n]{1,200}?)\): ", written)
    free = _match(r"{bytes} of {bytes} are free", text)
    held = _match(r"This allocator holds {bytes}, of which {bytes} are in use", text)
    reserved, allocated = _figure(held), _figure(held, 3)
    return OomMessage(
        OomOrigin.GPUMEM,
        asked=_figure(start, 2),
        device=int(start[1]),
        device_name=None if name is None else name[1],
        free=_figure(free),
        card=_figure(free, 3) if free is not None else None,
        reserved=reserved,
        allocated=allocated,
        limit=_search(r"The limit is {bytes}", text),
    )


def _parse_xla(written: str, text: str) -> OomMessage:
    """An error of XLA's allocator: it names no more than the request."""
    start = START.match(written)
    assert start is not None, "START matched it"
    asked = (
        _search(r"(?:trying to allocate|Out of memory allocating) {bytes}", text)
        or _search(r"allocate request for [^()]{1,30}\({bytes}\)", text)
        or _search(r"^failed to allocate [^()]{1,30}\({bytes}\) from device", text[:1].lower() + text[1:])
    )
    device = _match(r"on device ordinal (\d{1,4})|GPU:(\d{1,4}) by allocator", text)
    wording = start[0].removesuffix("Failed to allocate request for").strip(" :(")
    return OomMessage(
        OomOrigin.XLA,
        asked=asked,
        device=None if device is None else int(device[1] or device[2]),
        wording=f"XLA, {wording}",
    )


def _parse_library(written: str, text: str) -> OomMessage:
    start = START.match(written)
    assert start is not None, "START matched it"
    asked = _search(r"trying to allocate {bytes}", text)
    wording = start[0].removesuffix("Tried to allocate").strip(" .")
    is_torch_s = asked is None and re.fullmatch(r"[A-Z]{2,5} out of memory", wording) is not None
    return OomMessage(OomOrigin.TORCH if is_torch_s else OomOrigin.LIBRARY, asked=asked, wording=wording)


def _exact_segment(asked: Figure) -> Figure:
    """A segment is a multiple of 2 MiB, so what is printed in MiB without decimals is exact; 1.00 GiB is not, which
    PyTorch prints for somewhat more: 1 GiB itself is 1024.00 MiB.
    """
    is_exact = asked.rounding_bytes < MIB and asked.byte_count % (2 * MIB) == 0
    return replace(asked, rounding_bytes=0) if is_exact else asked


def find_starts(text: str) -> Sequence[re.Match[str]]:
    """Where messages begin in a text: none that lies inside quotes of code (`"CUDA out of memory" in str(error)`)."""
    return [start for start in START.finditer(text) if not re.match(r"[\"'] (?:not )?in ", text[start.end() :][:10])]
