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
    libraries         CUDA error: out of memory, CUBLAS_STATUS_ALLOC_FAILED, Cuda failure 'out of memory', …

Owns: where a message starts, when it is whole, and what each number in it is. Must not know: lines, ranks, files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpumem.trace.oom_message import Figure, OomMessage, OomOrigin, ProcessShare
from gpumem.units import GIB, KIB, MIB, TIB

MESSAGE_CHARACTERS_MAX = 4096
"""More than any message with all its advice; processes beyond that are not read."""

_UNITS = {"bytes": 1, "byte": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_UNITS |= {"kb": KIB, "mb": MIB, "gb": GIB}  # of PyTorch before 1.0, which meant powers of two by them
_IMPOSSIBLE_BYTES = 1 << 60
"""What is not known is printed as 2^64 - 1 bytes: 17179869184.00 GiB."""

_BYTES = r"(\d[\d,]{0,24}(?:\.\d{1,6})?) ?(bytes|byte|B|[KMGT]i?B)"
_STARTS = (
    (OomOrigin.TORCH, r"\b[A-Z]{2,5} out of memory\.? ?(?=Tried to allocate|Allocation was preemptively)"),
    (OomOrigin.TORCH, r"Preemptively rejecting allocation: requested"),
    (OomOrigin.TORCH_ASYNC, r"Allocation on device \d{1,4} would exceed allowed memory"),
    (OomOrigin.CUPY, r"Out of memory allocating (?=[\d,]{1,30} bytes)|out of memory to allocate (?=\d{1,30} bytes)"),
    (OomOrigin.GPUMEM, r"Out of memory on device (?=\d{1,4} \()"),
    (
        OomOrigin.LIBRARY,
        (
            r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|CU[A-Z]{2,9}_STATUS_ALLOC_FAILED|[Cc]uda failure (?:\d{1,3} )?'out of memory'"
            r"|RESOURCE_EXHAUSTED: Out of memory|\b(?:CUDA|HIP) out of memory\b"
        ),
    ),
)
START = re.compile("|".join(f"(?P<{origin.value}_{number}>{text})" for number, (origin, text) in enumerate(_STARTS)))
_ORIGIN_OF_GROUP = {f"{origin.value}_{number}": origin for number, (origin, _) in enumerate(_STARTS)}

_WHOLE = {
    OomOrigin.TORCH: re.compile(
        r"PyTorch but unallocated|reserved in total by PyTorch\)|cached\)|more than 1EB|per_process_memory_fraction"
        r"|throw_on_cudamalloc_oom"
    ),
    OomOrigin.TORCH_ASYNC: re.compile(rf"PyTorch limit[^:]{{0,60}}: ?{_BYTES}"),
    OomOrigin.CUPY: re.compile(r"bytes\)"),
    OomOrigin.GPUMEM: re.compile(r"are in use"),
    OomOrigin.LIBRARY: re.compile(""),
}
_WORDING = re.compile(r"[^\s,;:'\"`()\[\]{}]+")


def origin_of(start: re.Match[str]) -> OomOrigin:
    """Whose message a match of START begins."""
    assert start.lastgroup is not None, "every alternative is a group"
    return _ORIGIN_OF_GROUP[start.lastgroup]


def is_whole(origin: OomOrigin, text: str) -> bool:
    """Whether `text`, from the message's start, has all its figures."""
    return _WHOLE[origin].search(_joined(text, " ")) is not None or _WHOLE[origin].search(_joined(text, "")) is not None


def parse_message(origin: OomOrigin, text: str) -> OomMessage | None:
    """The figures of the message that begins at `text`; None where it has the words of one and nothing more.

    Line breaks may stand anywhere: a terminal's fall between words or inside them.
    """
    readers = {
        OomOrigin.TORCH: _parse_torch,
        OomOrigin.TORCH_ASYNC: _parse_torch_async,
        OomOrigin.CUPY: _parse_cupy,
        OomOrigin.GPUMEM: _parse_gpumem,
        OomOrigin.LIBRARY: _parse_library,
    }
    found = [readers[origin](_joined(text, glue)) for glue in (" ", "")]
    known = [one for one in found if one is not None]
    return max(known, key=_figure_count, default=None)


def _joined(text: str, glue: str) -> str:
    plain = text[:MESSAGE_CHARACTERS_MAX].replace("\\n", "\n").replace("│", " ")
    return re.sub(r"[ \t\u00a0]+", " ", re.sub(r"\s*[\r\n]+\s*", glue, plain))


def _figure_count(message: OomMessage) -> int:
    figures = (
        message.asked, message.free, message.card, message.allocated, message.idle, message.reserved,
        message.private_idle, message.limit, message.process,
    )  # fmt: skip
    return sum(figure is not None for figure in figures) + len(message.other_processes)


def _figure(match: re.Match[str] | None, first: int = 1) -> Figure | None:
    """The figure in two groups of a match: its number and its unit."""
    if match is None:
        return None
    digits, unit = match[first].replace(",", ""), _UNITS[match[first + 1].lower()]
    byte_count = round(float(digits) * unit)
    if byte_count >= _IMPOSSIBLE_BYTES:
        return None
    decimals = len(digits.partition(".")[2])
    return Figure(byte_count, 0 if unit == 1 else -(-unit // (2 * 10**decimals)))


def _search(pattern: str, text: str) -> Figure | None:
    return _figure(re.search(pattern, text))


def _parse_torch(text: str) -> OomMessage | None:
    if "preemptively rejected" in text or text.startswith("Preemptively"):
        return _parse_preemptive(text)
    asked = _search(rf"Tried to allocate {_BYTES}", text)
    if asked is None:
        return None
    classic = re.search(rf"\(GPU (\d{{1,4}}); {_BYTES} total capacity;", text)
    return _parse_classic(text, asked, classic) if classic is not None else _parse_modern(text, asked)


def _parse_classic(text: str, asked: Figure, start: re.Match[str]) -> OomMessage:
    rest = text[start.start() :]
    idle = _search(rf"{_BYTES} cached\)", rest)
    reserved = _search(rf"{_BYTES} reserved in total", rest)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_exact_segment(asked),
        device=int(start[1]),
        card=_figure(start, 2),
        allocated=_search(rf"{_BYTES} already allocated", rest),
        free=_search(rf"{_BYTES} free;", rest),
        limit=_search(rf"{_BYTES} allowed;", rest),
        idle=idle,
        reserved=reserved,
        versions="1.3 or older" if idle is not None else "1.4 to 2.0" if reserved is not None else None,
    )


def _parse_modern(text: str, asked: Figure) -> OomMessage:
    place = re.search(rf"GPU (\d{{1,4}}) has a total capaci?ty of {_BYTES}", text)
    processes = re.finditer(rf"Process (\d{{1,10}}) has {_BYTES} memory in use", text)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_exact_segment(asked),
        device=None if place is None else int(place[1]),
        card=_figure(place, 2),
        free=_search(rf"of which {_BYTES} is free", text),
        process=_search(rf"this process has {_BYTES} memory in use", text),
        other_processes=tuple(ProcessShare(int(one[1]), _figure(one, 2)) for one in processes),
        limit=_search(rf"{_BYTES} allowed;", text),
        allocated=_search(rf"{_BYTES} is allocated by PyTorch", text),
        private_idle=_search(rf"with {_BYTES} allocated in private pools", text),
        idle=_search(rf"{_BYTES} is reserved by PyTorch", text),
        versions=_versions_of(text),
    )


def _versions_of(text: str) -> str | None:
    signs = (
        ("capacty", "2.1 to 2.2"),
        ("optimizing-memory-usage", "2.11 or newer"),
        ("PYTORCH_ALLOC_CONF=", "2.10"),
        ("allocated in private pools", "2.4 or newer"),
        ("has a total capacity", "2.3 or newer"),
    )
    return next((versions for sign, versions in signs if sign in text), None)


def _parse_preemptive(text: str) -> OomMessage:
    """Refused for the limit before the driver was asked; the log line says more than the error."""
    held = _search(rf"total_allocated_memory \({_BYTES}\)", text)
    return OomMessage(
        OomOrigin.TORCH,
        asked=_search(rf"(?:Requested size: |rejecting allocation: requested ){_BYTES}", text),
        reserved=held,
        card=_search(rf"% of {_BYTES}\)", text),
        versions="2.12 or newer",
        is_preemptive=True,
    )


def _parse_torch_async(text: str) -> OomMessage | None:
    device = re.match(r"Allocation on device (\d{1,4})", text)
    assert device is not None, "START matched it"
    return OomMessage(
        OomOrigin.TORCH_ASYNC,
        device=int(device[1]),
        allocated=_search(rf"Currently allocated ?: ?{_BYTES}", text),
        asked=_search(rf"Requested ?: ?{_BYTES}", text),
        card=_search(rf"Device limit ?: ?{_BYTES}", text),
        free=_search(rf"Free \(according to CUDA\) ?: ?{_BYTES}", text),
        limit=_search(rf"PyTorch limit[^:]{{0,60}}: ?{_BYTES}", text),
    )


def _parse_cupy(text: str) -> OomMessage | None:
    asked = _search(rf"allocat(?:ing|e) {_BYTES}", text)
    held = _search(rf"allocated so far: {_BYTES}", text)
    with_request = _search(rf"\(total {_BYTES}", text)
    if held is None and with_request is not None and asked is not None:
        held = (with_request - asked).floored()  # CuPy before 7 counted the request too
    limit = _search(rf"limit set to:? {_BYTES}", text)
    return OomMessage(OomOrigin.CUPY, asked=asked, reserved=held, limit=limit)


def _parse_gpumem(text: str) -> OomMessage | None:
    start = re.match(rf"Out of memory on device (\d{{1,4}}) \((.{{0,200}}?)\): {_BYTES} were asked for", text)
    if start is None:
        return None
    free = re.search(rf"{_BYTES} of {_BYTES} are free", text)
    held = re.search(rf"This allocator holds {_BYTES}, of which {_BYTES} are in use", text)
    reserved, allocated = _figure(held), _figure(held, 3)
    return OomMessage(
        OomOrigin.GPUMEM,
        asked=_figure(start, 3),
        device=int(start[1]),
        device_name=start[2] or None,
        free=_figure(free),
        card=_figure(free, 3) if free is not None else None,
        reserved=reserved,
        allocated=allocated,
        limit=_search(rf"The limit is {_BYTES}", text),
    )


def _parse_library(text: str) -> OomMessage | None:
    start = START.match(text)
    assert start is not None, "START matched it"
    asked = _search(rf"(?:trying to allocate|[Ff]ailed to allocate[^(]{{0,40}}\(|malloc(?: async)?) ?{_BYTES}", text)
    return OomMessage(OomOrigin.LIBRARY, asked=asked, wording=start[0])


def _exact_segment(asked: Figure) -> Figure:
    """A segment is a multiple of 2 MiB, so what is printed in MiB without decimals is exact."""
    is_exact = asked.byte_count <= GIB and asked.byte_count % (2 * MIB) == 0
    return replace(asked, rounding_bytes=0) if is_exact else asked


def find_starts(text: str) -> Sequence[re.Match[str]]:
    """Where messages begin in a text: none that lies inside quotes of code (`"CUDA out of memory" in str(error)`)."""
    return [start for start in START.finditer(text) if not re.match(r"[\"'] (?:not )?in ", text[start.end() :][:10])]
