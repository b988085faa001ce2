"""Files that look like snapshots and are not well: crafted, mutated, cut off, made of impossible values.

Everything comes of a random.Random, so a seed names a file.
"""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

from recorded_snapshots import recorded_bytes, recorded_values

BASES = ("pending", "mempools", "split_edges64", "graph", "toggle", "oom")
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 255, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70), 1.5, float("inf"), float("nan"), "",
    "inactive", "x" * 3000, "\ud800", b"bytes", [], {}, (), [[]], [None] * 9, {"address": -5}, (1, 2), ((((1,),),),),
)  # fmt: skip
PROTOCOLS = range(6)


def code_pickles() -> list[bytes]:
    """Pickles that name, make or call something, one for each opcode that can."""
    return [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x02}}b.",
        b"\x80\x02}X\x01\x00\x00\x00a}\x86b.",
        b"\x80\x02N)\x81.",
        b"\x80\x04N)}\x92.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"Pname\n.",
        b"\x80\x02NQ.",
        b"\x80\x05\x97.",
        b"\x80\x05C\x01a\x98.",
        b"\x80\x02NNR.",
        b"\x80\x04}\x8c\x08segmentscbuiltins\nprint\nN\x85Rs.",
    ]


def absurd_pickles() -> list[bytes]:
    """Small pickles that would take a great deal of memory, time or stack."""
    huge, deep = struct.pack("<Q", 2**60), 200_000
    modulus = (1 << 61) - 1
    colliding = b"".join(b"\x8a\x0a" + (k * modulus + 1).to_bytes(10, "little") + b"N" for k in range(1, 5000))
    doubling = b"\x80\x04)\x94" + b"".join(b"h" + bytes([k]) + b"h" + bytes([k]) + b"\x86\x94" for k in range(100))
    return [
        b"\x80\x04Nr\xff\xff\xff\x7f.",
        b"N" + b"p4000000000\n.",
        b"\x80\x04\x8d" + huge + b"abc.",
        b"\x80\x04\x8e" + huge + b"abc.",
        b"\x80\x05\x96" + huge + b"abc.",
        b"\x80\x04\x95" + huge + b"}.",
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02T\xff\xff\xff\xff.",
        b"\x80\x04}N" + b"\x85" * deep + b"Ns.",
        b"\x80\x04N" + b"\x85" * deep + b".",
        b"\x80\x04" + b"]" * deep + b"a" * (deep - 1) + b".",
        b"\x80\x04}\x8c\x08segments" + b"]" * deep + b"a" * (deep - 1) + b"s.",
        b"\x80\x04}\x8c\x08segments]}\x8c\x06device" + b"N" + b"\x85" * deep + b"sas.",
        b"\x80\x04}\x8c\x0ddevice_traces]]}\x8c\x06action" + b"N" + b"\x85" * deep + b"saas.",
        b"(" * deep + b".",
        b"\x80\x04}(" + colliding + b"u.",
        doubling + b"\x8c\x01kN.",
        b"\x80\x04}\x8c\x0ddevice_traces]]}\x8c\x06action" + doubling[3:] + b"saas.",
        b"\x80\x04}\x8c\x0ddevice_traces](]\x94" + b"h\x00" * 100_000 + b"es.",
        b"I" + b"9" * 5000 + b"\n.",
        b"\x80\x04}" * 3 + b".",
        b"\x80\x04" + b"}" * 100_000 + b".",
        b"[" * deep,
        b'{"segments":' * 50_000,
        b'{"segments": [' + b"9" * 5000 + b"]}",
    ]


def bombs() -> list[bytes]:
    """Small compressed files with a great deal inside."""
    zeros = bytes(4 << 20)
    text = b'{"segments": ["' + b"a" * (8 << 20)
    string = b"\x80\x04}\x8c\x08segments\x8d" + struct.pack("<Q", 300 << 20) + bytes(300 << 20) + b"s."
    return [
        gzip.compress(zeros),
        lzma.compress(zeros),
        bz2.compress(zeros),
        gzip.compress(text),
        lzma.compress(text, preset=1),
        gzip.compress(string, compresslevel=1),
        gzip.compress(gzip.compress(zeros)),
        lzma.compress(b"}")[:-9],
        b"\x28\xb5\x2f\xfd" + bytes(64),
        b"\x1f\x8b" + bytes(20),
        b"\xfd7zXZ\x00" + bytes(20),
        b"BZh9" + bytes(20),
        bz2.compress(text)[:-9],
    ]


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """`content` cut off, with bits flipped, bytes changed, doubled, removed or moved."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(made) + 1), rng.randrange(1, 64)
        match rng.randrange(6):
            case 0:
                del made[at:]
            case 1 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(made):
                made[at] = rng.randrange(256)
            case 3:
                made[at:at] = made[at : at + length]
            case 4:
                del made[at : at + length]
            case _:
                made[at:at] = rng.choice(code_pickles())[2:-1]
    return bytes(made)


def impossible_values(rng: random.Random, values: dict[str, Any]) -> dict[str, Any]:
    """`values` with some of its parts replaced, removed, doubled or put elsewhere."""
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        holder: Any = values
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = rng.choice(keys)
            inner = holder[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
                holder = inner
                continue
            _spoil(rng, holder, key)
            break
    return values


def _spoil(rng: random.Random, holder: Any, key: Any) -> None:
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 2 if isinstance(holder[key], int):
            holder[key] += rng.choice((-(2**40), -512, -1, 1, 512, 2**21, 2**47))
        case 3 if isinstance(holder, dict):
            holder[rng.choice(("unknown", "frames", "action", "blocks", "addr", "size"))] = copy.deepcopy(
                rng.choice(ODD_VALUES)
            )
        case _:
            holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def _encoded(rng: random.Random, values: dict[str, Any]) -> bytes:
    if rng.random() < 0.3:
        return json.dumps(values, default=repr).encode()
    return pickle.dumps(values, rng.choice(PROTOCOLS))


def _compressed(rng: random.Random, content: bytes) -> bytes:
    return rng.choice((gzip.compress, lambda plain: lzma.compress(plain, preset=0)))(content)


def hostile_file(seed: int) -> bytes:
    """The file of a seed: one time in fifty a crafted one, otherwise a recording that was spoilt."""
    rng = random.Random(seed)
    if rng.random() < 0.02:
        crafted: list[Callable[[], list[bytes]]] = [code_pickles, absurd_pickles]
        return rng.choice(rng.choice(crafted)())
    name = rng.choice(BASES)
    choice = rng.random()
    if choice < 0.35:
        return damaged_bytes(rng, recorded_bytes(name))
    content = _encoded(rng, impossible_values(rng, recorded_values(name)))
    if choice > 0.85:
        content = damaged_bytes(rng, content)
    if choice > 0.95:
        content = _compressed(rng, content)
        content = damaged_bytes(rng, content) if rng.random() < 0.7 else content
    return content
