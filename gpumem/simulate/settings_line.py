"""The line of allocator settings with some of them set anew.

Owns: taking a line apart at its commas and colons. Must not know: which settings there are and what they mean; the
native parser does, and is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpumem.abi.policy import check_settings
from gpumem.errors import UsageError

_NUMBER = re.compile(r"\s*\d*\.?\d+")


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping; raises UsageError, in the parser's words, where PyTorch would not take one."""
    parsed: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            example = "max_split_size_mb=128" if ":" not in text else text.replace(":", "=", 1)
            raise UsageError(f"'{text}' is no setting; write KEY=VALUE, such as {example}.")
        if len(list(split_line(f"{key}:{value}"))) > 1:
            raise UsageError(f"'{text}' is more than one setting; write --set once for each.")
        check_settings(f"{key}:{value}")
        if parsed.get(key, value) != value:
            raise UsageError(f"{key} is set twice, to {parsed[key]} and to {value}; give it once.")
        parsed[key] = value
    return parsed


def set_in_line(line: str, changes: dict[str, str]) -> str:
    """`line` with the settings of `changes` in the place of its own of the same name, or behind them."""
    kept = [item for item in split_line(line) if item.partition(":")[0].strip() not in changes]
    return ",".join([*kept, *(f"{key}:{value}" for key, value in changes.items())])


def split_line(line: str) -> Iterator[str]:
    """The settings of a line, `KEY:VALUE` each; commas inside brackets part nothing."""
    depth = begin = 0
    for position, character in enumerate(line):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            yield from _given(line[begin:position])
            begin = position + 1
    yield from _given(line[begin:])


def fraction_in_line(line: str) -> float | None:
    """The share of the card that per_process_memory_fraction allows; None where the line has none."""
    for item in split_line(line):
        key, _, value = item.partition(":")
        number = _NUMBER.match(value)
        if key.strip() == "per_process_memory_fraction" and number:
            return float(number[0])
    return None


def _given(item: str) -> Iterator[str]:
    if item.strip():
        yield item.strip()
