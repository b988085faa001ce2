"""What the core's C headers declare, as ctypes has it: structs, prototypes, the hash of the interface.

Owns: reading a header. Must not know: which names a module of gpumem.abi gives to what it declares.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "gpumem" / "native" / "include"
SCALARS: Mapping[str, type] = {
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "gm_status": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
}


class CHeader:
    """A header of the core; `types` are those that ctypes has for its structs and callbacks, `opaque` have none."""

    def __init__(self, name: str, types: Mapping[str, type], opaque: Collection[str] = ()) -> None:
        content = (FOLDER / name).read_bytes()
        self.hash = hashlib.sha256(content).hexdigest()
        self.source = re.sub(r"/\*.*?\*/", "", content.decode("utf-8"), flags=re.DOTALL)
        self._types = {**SCALARS, **types}
        self._opaque = {*opaque, "void"}

    def as_ctype(self, c_type: str) -> object:
        """`const char*` as c_char_p, `gm_x**` of an opaque gm_x as a pointer to a pointer."""
        bare = c_type.removeprefix("const ")
        if bare == "char*":
            return ctypes.c_char_p
        if bare == "void":
            return None
        if not bare.endswith("*"):
            return self._types[bare]
        target = bare.removesuffix("*")
        if target in self._opaque:
            return ctypes.c_void_p
        if target.removesuffix("*") in self._opaque:
            return ctypes.POINTER(ctypes.c_void_p)
        return ctypes.POINTER(self._types[target])

    def fields(self, struct: str) -> list[tuple[str, object]]:
        """The struct's fields as ctypes lists them; an array's length may be a number or a name that is defined."""
        match = re.search(rf"struct {struct} \{{(.*?)\n\}}", self.source, re.DOTALL)
        assert match, struct
        found: list[tuple[str, object]] = []
        for text in match[1].split(";"):
            if field := re.fullmatch(r"\s*(.*?)\s*(\w+)(?:\[(\w+)\])?\s*", text):
                kind = ctypes.c_char if field[3] and field[1] == "char" else self.as_ctype(field[1])
                found.append((field[2], kind * self._number(field[3]) if field[3] else kind))  # type: ignore[operator]
        return found

    def _number(self, text: str) -> int:
        if text.isdigit():
            return int(text)
        match = re.search(rf"#define {text} (\d+)", self.source)
        assert match, text
        return int(match[1])

    def prototypes(self, among: Collection[str] | None = None) -> dict[str, tuple[object, list[object]]]:
        """What each function, of these or of all, returns and takes."""
        declared = {}
        for result, name, arguments in re.findall(r"GM_API ([\w ]+\*?) ?(gm_\w+)\((.*?)\);", self.source, re.DOTALL):
            if among is not None and name not in among:
                continue
            parts = [] if arguments == "void" else arguments.split(",")
            kinds = [self.as_ctype(re.sub(r"\s*\w+$", "", part.strip())) for part in parts]
            declared[name] = (self.as_ctype(result.strip()), kinds)
        return declared
