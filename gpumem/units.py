"""Bytes and durations as text, and back.

Owns: the one way a byte count or a duration is written and read. Must not know: tables, colours, commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from gpumem.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_BYTE_UNITS = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_BYTE_FACTORS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "kb": 1000,
    "m": MIB,
    "mib": MIB,
    "mb": 1000**2,
    "g": GIB,
    "gib": GIB,
    "gb": 1000**3,
    "t": TIB,
    "tib": TIB,
    "tb": 1000**4,
}
_BYTES_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")
_SIZE_MOST = 1 << 60
_DURATION_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3))


def format_bytes(byte_count: int) -> str:
    """`byte_count` in the largest binary unit that shows it as 1.00 or more: `1.50 GiB`, `512 B`, `-2.00 MiB`."""
    magnitude = abs(byte_count)
    sign = "-" if byte_count < 0 else ""
    for unit, factor in _BYTE_UNITS:
        if magnitude >= KIB and round(magnitude / factor, 2) >= 1:
            return f"{sign}{magnitude / factor:.2f} {unit}"
    return f"{sign}{magnitude} B"


def format_bytes_apart(first: int, second: int) -> tuple[str, str]:
    """Both counts as format_bytes writes them; where that makes one of two, in the largest unit that tells them apart:
    `1216.00 MiB` and `1218.00 MiB`.
    """
    texts = format_bytes(first), format_bytes(second)
    if first == second or texts[0] != texts[1]:
        return texts
    for unit, factor in _BYTE_UNITS:
        texts = f"{first / factor:.2f} {unit}", f"{second / factor:.2f} {unit}"
        if texts[0] != texts[1] and round(abs(first) / factor, 2) >= 1:
            return texts
    return f"{first} B", f"{second} B"


def format_bytes_delta(byte_count: int) -> str:
    """`byte_count` with its sign always written: `+1.50 GiB`, `-512 B`, `0 B`."""
    return f"+{format_bytes(byte_count)}" if byte_count > 0 else format_bytes(byte_count)


def parse_bytes(text: str) -> int:
    """The byte count that `text` names: `24GiB`, `1.5 g`, `4000000000`; kB, MB, GB are powers of ten.

    Raises UsageError when `text` is no size, or one of more than 1 EiB.
    """
    match = _BYTES_PATTERN.match(text)
    factor = _BYTE_FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"'{text}' is no size; write bytes or a binary unit, such as 24GiB or 512MiB.")
    byte_count = round(Decimal(match[1]) * factor)
    if byte_count > _SIZE_MOST:
        raise UsageError(f"'{text if len(text) < 40 else text[:40] + '...'}' is more than 1 EiB, which no memory is.")
    return byte_count


def parse_capacity(text: str) -> int:
    """The byte count that `text` names, of something that holds bytes; raises UsageError for no size, and for none."""
    byte_count = parse_bytes(text)
    if not byte_count:
        raise UsageError(f"'{text}' leaves no memory at all; write a size above zero, such as 24GiB.")
    return byte_count


def format_duration(duration_ns: int, *, is_round: bool = False) -> str:
    """`duration_ns` as a person reads it, always in three digits: `12.5 s`, `300 ms`, `1.20 us`, `2 min 05 s`.

    `is_round`: without the zeros at the end, as marks of an axis are written: `2.5 s`, `1 s`, `20 ms`.
    """
    magnitude = abs(duration_ns)
    sign = "-" if duration_ns < 0 else ""
    seconds = round(magnitude / 10**9)
    if seconds >= 3600:
        return f"{sign}{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    if seconds >= 60:
        return f"{sign}{seconds // 60} min {seconds % 60:02d} s"
    for unit, factor in _DURATION_UNITS:
        digits = f"{magnitude / factor:#.3g}"
        if float(digits) >= 1:
            digits = digits.rstrip("0").rstrip(".") if is_round and "." in digits else digits.removesuffix(".")
            return f"{sign}{digits} {unit}"
    return f"{sign}{magnitude} ns"


def format_ticks(times_ns: Sequence[int]) -> list[str]:
    """Times along an axis: `0 s`, `2.5 s`; where two would read the same, all in one unit, with the decimals that tell
    them apart: `89.6 ms`, `89.65 ms`.
    """
    texts = [format_duration(time_ns, is_round=True) if time_ns else "0 s" for time_ns in times_ns]
    if len(set(texts)) == len(set(times_ns)):
        return texts
    unit, factor = next(one for one in (*_DURATION_UNITS, ("ns", 1)) if max(times_ns) >= one[1])
    return [f"{Decimal(time_ns) / factor:f} {unit}" for time_ns in times_ns]


def format_share(part: int, whole: int) -> str:
    """`part` of `whole` as a percentage: `12.3 %`; `-` when `whole` is zero."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def format_count(count: int) -> str:
    """`count` with thousands separators: `1,234,567`."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """`1 block`, `1,200 blocks`."""
    return f"{format_count(count)} {noun}" + ("" if count == 1 else "s")
