"""gpumem/abi/nvml.py says what gpumem_nvml.h says."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum

import pytest

from c_headers import CHeader
from gpumem.abi import nvml

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "gm_nvml_functions": nvml.CNvmlFunctions,
    "gm_nvml_process": nvml.CNvmlProcess,
    "gm_nvml_figures": nvml.CNvmlFigures,
    "gm_nvml_share": nvml.CNvmlShare,
    "gm_nvml_device": nvml.CNvmlDevice,
}
HEADER = CHeader("gpumem_nvml.h", STRUCTS, opaque=("gm_nvml",))


@pytest.mark.parametrize("struct", STRUCTS)
def test_struct_has_the_fields_of_the_header(struct: str) -> None:
    assert HEADER.fields(struct) == list(STRUCTS[struct]._fields_)


def test_prototypes_are_those_of_the_header() -> None:
    assert HEADER.prototypes() == {
        name: (result, list(arguments)) for name, (result, arguments) in nvml.PROTOTYPES.items()
    }


def test_hash_and_number_of_lists_are_those_of_the_header() -> None:
    assert HEADER.hash == nvml.NVML_ABI_HASH
    assert f"GM_NVML_LISTS {nvml.LISTS}\n" in HEADER.source.replace(" \n", "\n")


@pytest.mark.parametrize(
    ("pattern", "enum"),
    [
        (r"GM_NVML_(RECORDED|YOUNG|JUDGE|JUDGE_LAST|GIVEN_UP) = (\d+)", nvml.Outcome),
        (r"GM_NVML_(\w+_PART) = (\d+)", nvml.Part),
    ],
    ids=["outcome", "part"],
)
def test_enums_have_the_values_of_the_header(pattern: str, enum: type[IntEnum]) -> None:
    declared = {name: int(value) for name, value in re.findall(pattern, HEADER.source)}
    assert declared == {member.name: member.value for member in enum}
