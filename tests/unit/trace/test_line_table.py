"""Lines of instructions: equal to the interpreter's own, on every interpreter at hand, and never beside the table."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem.trace.line_table import NO_LINE, LineTable, find_line
from interpreters import WALKED

CHECK = Path(__file__).with_name("line_table_check.py")


def entry(form: int, units: int, rest: bytes = b"") -> bytes:
    return bytes([128 | form << 3 | (units - 1)]) + rest


@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.needs(f"python{version}")) for version in WALKED],
)
def test_every_instruction_has_the_line_the_interpreter_gives_it(version: str) -> None:
    program = shutil.which(f"python{version}")
    assert program is not None
    check_found(program)


def test_every_instruction_has_the_line_this_interpreter_gives_it() -> None:
    check_found(sys.executable)


def check_found(program: str) -> None:
    done = subprocess.run([program, CHECK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["different"] == []
    assert found["codes"] > 500
    assert found["instructions"] > 50_000


def test_each_form_moves_the_line_as_described() -> None:
    table = b"".join(
        (
            entry(3, 1, b"\x12"),  # bytes 0-1: same line
            entry(12, 2, b"\x04\x05"),  # bytes 2-5: 2 lines on
            entry(13, 8, bytes([64 | 8, 3])),  # bytes 6-21: (3 << 6 | 8) >> 1 = 100 lines on
            entry(14, 1, bytes([2 << 1 | 1, 0, 1, 1])),  # bytes 22-23: 2 lines back
            entry(15, 1),  # bytes 24-25: none
            entry(10, 1, b"\x00\x00"),  # bytes 26-27: same line as before the gap
        )
    )
    lines = LineTable(table, 10)
    found = [lines.find_line(offset) for offset in (0, 1, 2, 5, 6, 21, 22, 24, 26)]
    assert found == [10, 10, 12, 12, 112, 112, 110, NO_LINE, 110]


def test_an_offset_outside_the_table_has_the_first_line() -> None:
    table = entry(11, 1, b"\x00\x00")
    assert find_line(table, 7, 0) == 8
    assert find_line(table, 7, 2) == 7
    assert find_line(table, 7, -2) == 7
    assert find_line(table, 7, 0xFFFFFFFF) == 7
    assert find_line(b"", 7, 0) == 7


def test_a_table_that_is_cut_off_keeps_its_whole_entries() -> None:
    table = entry(11, 1, b"\x00\x00") + entry(13, 1, bytes([64 | 8]))
    assert find_line(table, 7, 0) == 8
    assert find_line(table, 7, 2) == 7
