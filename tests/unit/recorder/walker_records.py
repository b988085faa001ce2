"""Run by the interpreter to be checked: records events everywhere and reads their stacks back from the journal.

usage: python walker_records.py LIBRARY JOURNAL

Prints JSON: records compared, stacks and code objects in the journal, the first differences. Each record carries its
number as its address; the stack expected for it is what the interpreter's own frame objects said in the same line.
Needs nothing but the standard library.
"""

from __future__ import annotations

import gc
import json
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gpumem import abi
from gpumem.trace.line_table import find_line
from gpumem.vocabulary import EventKind

Line = tuple[bytes, int, bytes]
"""File, line, qualified name; as bytes, so that expecting a stack keeps no string of the program alive."""

expected: dict[int, list[Line]] = {}
lock = threading.Lock()


def next_number() -> int:
    with lock:
        expected[len(expected)] = []
        return len(expected) - 1


def expect(number: int) -> None:
    frames = traceback.walk_stack(sys._getframe(1))
    expected[number] = [(utf8(f.f_code.co_filename), line, utf8(f.f_code.co_qualname)) for f, line in frames]


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def record() -> None:
    number = next_number()
    abi.record_event(EventKind.ALLOC, device=0, address=number, requested_bytes=512), expect(number)


# ---- what is recorded ----


def nested(depth: int) -> None:
    if depth % 3 == 1:
        sorted([0], key=lambda _: nested(depth - 1))
    elif depth:
        [nested(inner) for inner in (depth - 1,)]
    else:
        record()


def generate(depth: int) -> Iterator[int]:
    record()
    if depth:
        yield from generate(depth - 1)
    yield depth


class Texts(str):
    """A string that is not laid out like most."""


def unusual_names() -> None:
    files = (
        "é.py",
        "über/日本語.py",
        "😀/mixed é 日.py",
        "bad-\udcff-\udc80.py",
        "",
        "nul\0inside.py",
        "x" * 70_000,
        Texts("own é.py"),
    )
    for name in ("plain", "é", "名前", "𐎀𐎁"):
        for file in files:
            names: dict[str, Callable[[], None]] = {"record": record}  # type: ignore[dict-item]
            exec(f"def {name}():\n\n\n    record()\n", names)
            function = names[name]
            function.__code__ = function.__code__.replace(co_filename=file)  # type: ignore[attr-defined]
            function()


def executed_functions() -> None:
    """Functions whose code objects, names and tables come to lie where those of dropped ones were."""
    for number in range(4000):
        names: dict[str, object] = {"record": record}
        name, file = f"made_{number % 97:04d}", f"<made {number % 89:05d}>"
        text = (
            f"def {name}():\n" + "\n" * (number % 3) + ("    record()\n" if number % 2 else "    x = 2\n    record()\n")
        )
        exec(compile(text, file, "exec"), names)
        for _ in range(2):  # what comes twice is remembered, and must not be taken for what follows it
            names[name]()  # type: ignore[operator]
        names.clear()
        if number % 400 == 0:
            gc.collect()


def one_text_again() -> None:
    for _ in range(500):
        names: dict[str, object] = {"record": record}
        exec(compile("def again():\n    record()\nagain()", "<again>", "exec"), names)


def all_of_it() -> None:
    for depth in (0, 1, 5, 60):
        nested(depth)
        sum(generate(depth))
    unusual_names()
    executed_functions()


# ---- the journal, as its format describes it ----


@dataclass
class Entries:
    """What the entry windows say, by id."""

    strings: dict[int, bytes] = field(default_factory=dict)
    codes: dict[int, tuple[int, int, int, bytes]] = field(default_factory=dict)
    stacks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    records: list[tuple[int, int]] = field(default_factory=list)  # address, stack

    def lines(self, stack: int) -> list[Line]:
        lines = []
        for code, offset in self.stacks[stack]:
            file, name, first_line, table = self.codes[code]
            lines.append((self.strings[file], find_line(table, first_line, offset), self.strings[name]))
        return lines


def read_journal(journal: bytes) -> Entries:
    entries = Entries()
    (window_count,) = struct.unpack_from("<I", journal, 76)
    for window in range(window_count):
        _, kind, offset, _, _, taken = struct.unpack_from("<IIQQQQ", journal, 4096 + 64 * window)
        content = journal[offset:]
        if kind == 1:
            for slot in range(taken):
                address, stack = struct.unpack_from("<8xQ24xI", content, 64 * slot)
                entries.records.append((address, stack))
        elif kind == 2:
            read_entries(content[:taken], entries)
    return entries


def read_entries(content: bytes, entries: Entries) -> None:
    at = 0
    while at < len(content):
        length, kind, _, entry, _ = struct.unpack_from("<IHHII", content, at)
        payload = content[at + 16 : at + 16 + length]
        if kind == 1:
            entries.strings[entry] = payload
        elif kind == 2:
            file, name, first_line, table_bytes = struct.unpack_from("<IIII", payload)
            assert len(payload) == 16 + table_bytes
            entries.codes[entry] = (file, name, first_line, payload[16:])
        elif kind == 3:
            (depth,) = struct.unpack_from("<I", payload)
            entries.stacks[entry] = list(struct.iter_unpack("<II", payload[4:]))
            assert len(entries.stacks[entry]) == depth
        at += (16 + length + 7) & ~7


def find_differences(entries: Entries) -> list[str]:
    own = utf8(code_of_record_event().co_qualname)
    different = []
    for address, stack in entries.records:
        lines = entries.lines(stack)
        want = [(file[:65536], line, name) for file, line, name in expected[address]]
        if lines[0][2] != own or lines[1:] != want:
            different.append(f"record {address}: {lines[1:4]} is not {want[:3]}"[:600])
    return different


def code_of_record_event() -> CodeType:
    return abi.record_event.__code__


def main() -> None:
    library, path = Path(sys.argv[1]), Path(sys.argv[2])
    abi.library_path = lambda: library
    reason = abi.start_walker()
    assert reason is None, reason
    abi.start_recording(path, run_id=bytes(16), stacks=True)
    threads = [threading.Thread(target=all_of_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    all_of_it()
    for thread in threads:
        thread.join()
    counts = abi.recorder_counts()
    assert counts is not None
    one_text_again()
    after = abi.recorder_counts()
    assert after is not None
    abi.stop_recording("exit")
    entries = read_journal(path.read_bytes())
    different = find_differences(entries)
    row = {"records": len(entries.records), "expected": len(expected), "stacks": len(entries.stacks)}
    row |= {"codes": len(entries.codes), "stacks_again": after.stacks - counts.stacks}
    print(json.dumps({**row, "different_count": len(different), "different": different[:3]}))


if __name__ == "__main__":
    main()
