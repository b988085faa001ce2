"""allocator_layout.py says what gpumem_allocator.h says."""

from __future__ import annotations

import ctypes
import hashlib
import re
from enum import IntEnum
from pathlib import Path

import pytest

from gpumem.abi import allocator, allocator_layout, policy_layout

FOLDER = Path(__file__).parents[3] / "gpumem" / "native" / "include"
HEADER = FOLDER / "gpumem_allocator.h"
SOURCE = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
POLICY_SOURCE = (FOLDER / "gpumem_policy.h").read_text(encoding="utf-8")
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "gm_allocator_options": allocator_layout.CAllocatorOptions,
    "gm_counter": allocator_layout.CCounter,
    "gm_pool_counters": allocator_layout.CPoolCounters,
    "gm_allocator_statistics": allocator_layout.CAllocatorStatistics,
    "gm_allocator_device": allocator_layout.CAllocatorDevice,
    "gm_allocator_gpu": allocator_layout.CAllocatorGpu,
    "gm_heap_segments": policy_layout.CHeapSegments,
    "gm_heap_blocks": policy_layout.CHeapBlocks,
}
SCALARS: dict[str, type] = {
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "gm_status": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "gm_allocator_heap_taker": allocator_layout.HeapTaker,
}


def as_ctype(c_type: str) -> object:
    if c_type in ("const char*", "char*"):
        return ctypes.c_char_p
    if c_type == "void":
        return None
    bare = c_type.removeprefix("const ")
    if not bare.endswith("*"):
        return STRUCTS.get(bare) or SCALARS[bare]
    target = bare.removesuffix("*")
    if target in ("gm_allocator", "gm_cupy", "void"):
        return ctypes.c_void_p
    if target in ("gm_allocator*", "gm_cupy*"):
        return ctypes.POINTER(ctypes.c_void_p)
    return ctypes.POINTER(STRUCTS.get(target) or SCALARS[target])


@pytest.mark.parametrize("struct", [name for name in STRUCTS if not name.startswith("gm_heap")])
def test_struct_has_the_fields_of_the_header(struct: str) -> None:
    match = re.search(rf"struct {struct} \{{(.*?)\n\}}", SOURCE, re.DOTALL)
    assert match
    expected = []
    for text in match[1].split(";"):
        if field := re.fullmatch(r"\s*(.*?)\s*(\w+)(?:\[(\d+)\])?\s*", text):
            kind = ctypes.c_char * int(field[3]) if field[3] else as_ctype(field[1])
            expected.append((field[2], kind))
    assert list(STRUCTS[struct]._fields_) == expected


def test_prototypes_are_those_of_the_header() -> None:
    declared = {}
    for result, name, arguments in re.findall(r"GM_API ([\w ]+\*?) ?(gm_\w+)\((.*?)\);", SOURCE, re.DOTALL):
        types = [re.sub(r"\s*\w+$", "", part.strip()) for part in arguments.split(",")]
        declared[name] = (result.strip(), [] if arguments == "void" else types)
    assert declared.keys() == allocator_layout.PROTOTYPES.keys()
    for name, (result, arguments) in allocator_layout.PROTOTYPES.items():
        assert as_ctype(declared[name][0]) == result, name
        assert [as_ctype(kind) for kind in declared[name][1]] == list(arguments), name


def test_hash_is_that_of_the_header() -> None:
    assert hashlib.sha256(HEADER.read_bytes()).hexdigest() == allocator_layout.ALLOCATOR_ABI_HASH


@pytest.mark.parametrize(
    ("pattern", "enum"),
    [
        (r"GM_POLICY_(\w+) = (\d+)|GM_ALLOCATOR_(NO_DEVICE) = (\d+)", allocator.Status),
        (r"GM_DEVICE_(\w+) = (\d+)", allocator.DeviceKind),
    ],
    ids=["status", "kind"],
)
def test_enums_have_the_values_of_the_headers(pattern: str, enum: type[IntEnum]) -> None:
    found = re.findall(pattern, POLICY_SOURCE + SOURCE)
    declared = {"".join(row[::2]): int("".join(row[1::2])) for row in found}
    shared = {"OK": 0, "BAD_ARGUMENT": 5, "NO_MEMORY": 7} if enum is allocator.Status else {}
    assert declared | shared == {member.name: member.value for member in enum}
