"""gpumem/abi/nvml.py says what gpumem_nvml.h says."""

from __future__ import annotations

import ctypes
import hashlib
import re
from enum import IntEnum
from pathlib import Path

import pytest

from gpumem.abi import nvml

HEADER = Path(__file__).parents[3] / "gpumem" / "native" / "include" / "gpumem_nvml.h"
SOURCE = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "gm_nvml_functions": nvml.CNvmlFunctions,
    "gm_nvml_process": nvml.CNvmlProcess,
    "gm_nvml_figures": nvml.CNvmlFigures,
    "gm_nvml_share": nvml.CNvmlShare,
    "gm_nvml_device": nvml.CNvmlDevice,
}
SCALARS: dict[str, type] = {
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "gm_status": ctypes.c_int32,
}


def as_ctype(c_type: str) -> object:
    bare = c_type.removeprefix("const ")
    if bare == "char*":
        return ctypes.c_char_p
    if bare == "void":
        return None
    if not bare.endswith("*"):
        return STRUCTS.get(bare) or SCALARS[bare]
    target = bare.removesuffix("*")
    if target == "gm_nvml":
        return ctypes.c_void_p
    if target == "gm_nvml*":
        return ctypes.POINTER(ctypes.c_void_p)
    return ctypes.POINTER(STRUCTS.get(target) or SCALARS[target])


@pytest.mark.parametrize("struct", STRUCTS)
def test_struct_has_the_fields_of_the_header(struct: str) -> None:
    match = re.search(rf"struct {struct} \{{(.*?)\n\}}", SOURCE, re.DOTALL)
    assert match
    expected = []
    for text in match[1].split(";"):
        if field := re.fullmatch(r"\s*(.*?)\s*(\w+)(\[GM_NVML_LISTS\])?\s*", text):
            kind = as_ctype(field[1])
            expected.append((field[2], kind * nvml.LISTS if field[3] else kind))  # type: ignore[operator]
    assert list(STRUCTS[struct]._fields_) == expected


def test_prototypes_are_those_of_the_header() -> None:
    declared = {}
    for result, name, arguments in re.findall(r"GM_API ([\w ]+\*?) ?(gm_\w+)\((.*?)\);", SOURCE, re.DOTALL):
        types = [re.sub(r"\s*\w+$", "", part.strip()) for part in arguments.split(",")]
        declared[name] = (result.strip(), [] if arguments == "void" else types)
    assert declared.keys() == nvml.PROTOTYPES.keys()
    for name, (result, arguments) in nvml.PROTOTYPES.items():
        assert as_ctype(declared[name][0]) == result, name
        assert [as_ctype(kind) for kind in declared[name][1]] == list(arguments), name


def test_hash_and_number_of_lists_are_those_of_the_header() -> None:
    assert hashlib.sha256(HEADER.read_bytes()).hexdigest() == nvml.NVML_ABI_HASH
    assert f"GM_NVML_LISTS {nvml.LISTS}\n" in SOURCE.replace(" \n", "\n")


@pytest.mark.parametrize(
    ("pattern", "enum"),
    [
        (r"GM_NVML_(RECORDED|YOUNG|JUDGE|JUDGE_LAST|GIVEN_UP) = (\d+)", nvml.Outcome),
        (r"GM_NVML_(\w+_PART) = (\d+)", nvml.Part),
    ],
    ids=["outcome", "part"],
)
def test_enums_have_the_values_of_the_header(pattern: str, enum: type[IntEnum]) -> None:
    declared = {name: int(value) for name, value in re.findall(pattern, SOURCE)}
    assert declared == {member.name: member.value for member in enum}
