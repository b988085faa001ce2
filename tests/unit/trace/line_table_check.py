"""Run by the interpreter to be checked: compares find_line with what that interpreter says of its own code.

Prints JSON: code objects, instructions compared, and the first differences.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import dataclasses
import inspect
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gpumem.trace.line_table import CODE_UNIT_BYTES, NO_LINE, LineTable, find_line

MODULES = (argparse, asyncio.base_events, dataclasses, inspect, typing)
HAND_MADE = (
    "x = [\n" + "1,\n" * 3000 + "]\n" + "\n" * 5000 + "y = (\n  x\n  if x else\n  None)\n",  # long steps, backward ones
    "def f(a, *, b=1):\n    class C:\n        a = 1\n    return [c for c in (C, a) if c]\n",
    "async def g():\n    async with a() as b:\n        async for c in b:\n            yield c\n",
    "try:\n  pass\nexcept* ValueError as e:\n  raise\nfinally:\n  del a\nmatch a:\n  case [1, *_]: pass\n",
)


def code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def tops() -> Iterator[CodeType]:
    for module in MODULES:
        path = Path(str(module.__file__))
        yield compile(path.read_bytes(), str(path), "exec")
    for number, text in enumerate(HAND_MADE):
        yield compile(text, f"<hand made {number}>", "exec")


def differences(code: CodeType) -> Iterator[str]:
    lines = LineTable(code.co_linetable, code.co_firstlineno)
    for unit, position in enumerate(code.co_positions()):
        if lines.find_line(unit * CODE_UNIT_BYTES) != (position[0] or NO_LINE):
            yield f"{code!r} at {unit}: {lines.find_line(unit * CODE_UNIT_BYTES)} is not {position[0]}"
    for start, end, line in code.co_lines():
        for offset in range(start, end, CODE_UNIT_BYTES):
            if find_line(code.co_linetable, code.co_firstlineno, offset) != (line or NO_LINE):
                yield f"{code!r} at byte {offset}: not {line}"


def main() -> None:
    codes = [code for top in tops() for code in code_objects(top)]
    instructions = sum(len(code.co_code) // CODE_UNIT_BYTES for code in codes)
    different = [text for code in codes for text in differences(code)]
    print(json.dumps({"codes": len(codes), "instructions": instructions, "different": different[:5]}))


if __name__ == "__main__":
    main()
