"""Source lines from a code object's location table, as CPython 3.11 to 3.15 write it (co_linetable).

Owns: decoding of the table into ranges of instructions and their lines. Must not know: where tables come from, what
code they belong to.

A table is a run of entries, one for each group of code units of 2 bytes, in the order of the instructions:

    byte 0      bit 7 set; bits 3-6 form; bits 0-2 number of code units - 1
    form 0-9    1 more byte; same line
    form 10-12  2 more bytes; the line is form - 10 further on
    form 13     signed number: the line is that much further on
    form 14     signed number: as form 13; then three unsigned numbers (end line, columns)
    form 15     no line

Numbers are groups of 6 bits, lowest first; bit 6 says that another group follows. A signed number has its sign in bit
0 and its magnitude above. "Further on" counts from the line of the entry before, at first from the code's first line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

CODE_UNIT_BYTES = 2
NO_LINE = 0
"""The line of instructions that belong to none."""

_FORM_ONE_LINE = 10
_FORM_LINE_ONLY = 13
_FORM_LONG = 14
_FORM_NO_LINE = 15


class LineTable:
    """The lines of one code object's instructions, decoded once."""

    __slots__ = ("_ends", "_first_line", "_lines")

    def __init__(self, table: bytes, first_line: int) -> None:
        self._first_line = first_line
        self._ends: list[int] = []
        self._lines: list[int] = []
        for end, line in _ranges(table, first_line):
            self._ends.append(end)
            self._lines.append(line)

    def find_line(self, offset: int) -> int:
        """Line of the instruction at byte `offset`; NO_LINE where it has none, the first line outside the table."""
        row = bisect_right(self._ends, offset)
        if offset < 0 or row == len(self._lines):
            return self._first_line
        return self._lines[row]


@lru_cache(maxsize=4096)
def _decoded(table: bytes, first_line: int) -> LineTable:
    return LineTable(table, first_line)


def find_line(table: bytes, first_line: int, offset: int) -> int:
    """Line of the instruction at byte `offset` of the code with this location table and first line."""
    return _decoded(table, first_line).find_line(offset)


def _ranges(table: bytes, first_line: int) -> Iterator[tuple[int, int]]:
    """(end offset, line) of each entry; a table that is cut off ends with its last whole entry."""
    line = first_line
    end = 0
    at = 0
    while at < len(table):
        form = table[at] >> 3 & 15
        end += ((table[at] & 7) + 1) * CODE_UNIT_BYTES
        if _FORM_ONE_LINE <= form < _FORM_LINE_ONLY:
            line += form - _FORM_ONE_LINE
        elif form in (_FORM_LINE_ONLY, _FORM_LONG):
            step = _read_signed(table, at + 1)
            if step is None:
                return
            line += step
        yield end, NO_LINE if form == _FORM_NO_LINE else line
        at = _next_entry(table, at + 1)


def _next_entry(table: bytes, at: int) -> int:
    """Where the next entry begins: the only bytes with bit 7 set are the first ones of entries."""
    while at < len(table) and table[at] < 128:
        at += 1
    return at


def _read_signed(table: bytes, at: int) -> int | None:
    """The signed number at `at`; None when the table ends in it."""
    number = 0
    shift = 0
    while at < len(table):
        number |= (table[at] & 63) << shift
        if not table[at] & 64:
            return -(number >> 1) if number & 1 else number >> 1
        shift += 6
        at += 1
    return None
