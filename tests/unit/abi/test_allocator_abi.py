"""allocator_layout.py says what gpumem_allocator.h says."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum

import pytest

from c_headers import CHeader
from gpumem.abi import allocator, allocator_layout, policy_layout

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "gm_allocator_options": allocator_layout.CAllocatorOptions,
    "gm_counter": allocator_layout.CCounter,
    "gm_private_pool": allocator_layout.CPrivatePool,
    "gm_pool_counters": allocator_layout.CPoolCounters,
    "gm_allocator_statistics": allocator_layout.CAllocatorStatistics,
    "gm_allocator_device": allocator_layout.CAllocatorDevice,
    "gm_allocator_gpu": allocator_layout.CAllocatorGpu,
    "gm_heap_segments": policy_layout.CHeapSegments,
    "gm_heap_blocks": policy_layout.CHeapBlocks,
}
HEADER = CHeader(
    "gpumem_allocator.h",
    {**STRUCTS, "gm_allocator_heap_taker": allocator_layout.HeapTaker},
    opaque=("gm_allocator", "gm_cupy"),
)
POLICY = CHeader("gpumem_policy.h", {})


@pytest.mark.parametrize("struct", [name for name in STRUCTS if not name.startswith("gm_heap")])
def test_struct_has_the_fields_of_the_header(struct: str) -> None:
    assert HEADER.fields(struct) == list(STRUCTS[struct]._fields_)


def test_prototypes_are_those_of_the_header() -> None:
    assert HEADER.prototypes() == {
        name: (result, list(arguments)) for name, (result, arguments) in allocator_layout.PROTOTYPES.items()
    }


def test_hash_is_that_of_the_header() -> None:
    assert HEADER.hash == allocator_layout.ALLOCATOR_ABI_HASH


@pytest.mark.parametrize(
    ("pattern", "enum"),
    [
        (r"GM_POLICY_(\w+) = (\d+)|GM_ALLOCATOR_(NO_DEVICE) = (\d+)", allocator.Status),
        (r"GM_DEVICE_(\w+) = (\d+)", allocator.DeviceKind),
    ],
    ids=["status", "kind"],
)
def test_enums_have_the_values_of_the_headers(pattern: str, enum: type[IntEnum]) -> None:
    found = re.findall(pattern, POLICY.source + HEADER.source)
    declared = {"".join(row[::2]): int("".join(row[1::2])) for row in found}
    shared = {"OK": 0, "BAD_ARGUMENT": 5, "NO_MEMORY": 7} if enum is allocator.Status else {}
    assert declared | shared == {member.name: member.value for member in enum}
