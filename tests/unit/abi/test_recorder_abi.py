"""gpumem/abi, vocabulary.py and journal_layout.py say what gpumem.h and journal_format.h say, read from the headers."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gpumem import abi
from gpumem.abi import library
from gpumem.abi import pickle as abi_pickle
from gpumem.errors import NativeCoreError, OutputUnwritable
from gpumem.trace import journal_layout
from gpumem.vocabulary import EventFlag, EventKind

NATIVE = Path(__file__).parents[3] / "gpumem" / "native"
INTERFACE = (NATIVE / "include" / "gpumem.h").read_text(encoding="utf-8")
JOURNAL_FORMAT = (NATIVE / "journal_format.h").read_text(encoding="utf-8")

SCALARS = {
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "gm_status": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
}
STRUCTS = {
    "gm_record": abi.CRecord,
    "gm_event": abi.CEvent,
    "gm_reading": abi.CReading,
    "gm_recorder_options": abi.CRecorderOptions,
    "gm_recorder_counts": abi.CRecorderCounts,
    "gm_pickle_report": abi_pickle.CPickleReport,
    "gm_snapshot_parts": abi_pickle.CSnapshotParts,
}
OPAQUE = {"gm_journal", "gm_snapshot_skim"}
# Bytes in or out: ctypes hands a Python bytes object over as char*.
AS_CHAR_POINTER = {"const char*", "char*", "const uint8_t*", "const void*"}
# Struct fields that point to tables.
TABLES = {"const void*", "const uint64_t*", "const gm_snapshot_entry*"}
CODES = {"uint8_t": "u1", "uint16_t": "<u2", "uint32_t": "<u4", "uint64_t": "<u8"}


def without_comments(source: str) -> str:
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL))


def test_nothing_of_the_library_is_destroyed_while_threads_may_still_use_it() -> None:
    # How the C++ compiler has an object destroyed at the process's exit.
    assert b"\0__cxa_atexit\0" not in abi.library_path().read_bytes()


def test_nothing_of_the_library_is_made_at_its_first_use() -> None:
    # How the C++ compiler locks that: a child forked meanwhile by another thread would wait for the lock for ever.
    assert b"\0__cxa_guard_acquire\0" not in abi.library_path().read_bytes()


def fields_of(source: str, struct: str) -> list[tuple[str, str, int]]:
    """(type, name, array length or 1) of a struct's fields."""
    match = re.search(rf"struct {struct} \{{(.*?)\n\}}", without_comments(source), re.DOTALL)
    assert match, struct
    fields = []
    for text in match[1].split(";"):
        if text.strip():
            field = re.fullmatch(r"\s*(.*?)\s*(\w+)(?:\[(\d+)\])?\s*", text)
            assert field, text
            fields.append((field[1], field[2], int(field[3] or 1)))
    return fields


def enum_of(source: str, name: str, prefix: str) -> dict[str, int]:
    match = re.search(rf"enum (?:class )?{name}[^{{]*\{{(.*?)\}}", without_comments(source), re.DOTALL)
    assert match, name
    return {key.removeprefix(prefix): int(value) for key, value in re.findall(r"(\w+) = (\d+)", match[1])}


def as_ctype(c_type: str) -> object:
    if c_type in AS_CHAR_POINTER:
        return ctypes.c_char_p
    target = c_type.removeprefix("const ").removesuffix("*")
    if target in OPAQUE or c_type == "void*":
        return ctypes.c_void_p
    if target.removesuffix("*") in OPAQUE:
        return ctypes.POINTER(ctypes.c_void_p)
    if c_type.endswith("*"):
        return ctypes.POINTER(STRUCTS.get(target) or SCALARS[target])
    return None if c_type == "void" else SCALARS[c_type]


def prototypes() -> dict[str, tuple[object, tuple[object, ...]]]:
    found = {}
    pattern = r"GM_API\s+([\w\s*]+?)\s*(gm_\w+)\(([^)]*)\);"
    for result, name, arguments in re.findall(pattern, without_comments(INTERFACE)):
        types = [re.sub(r"\s*\b\w+$", "", text.strip()) for text in arguments.split(",") if text.strip() != "void"]
        found[name] = (as_ctype(result), tuple(as_ctype(c_type.replace(" *", "*")) for c_type in types))
    return found


def test_hash_is_that_of_the_header() -> None:
    assert hashlib.sha256(INTERFACE.encode()).hexdigest() == abi.ABI_HASH


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_has_the_fields_of_the_header(name: str) -> None:
    expected = [
        (field, ctypes.c_void_p if c_type in TABLES else as_ctype(c_type))
        for c_type, field, _ in fields_of(INTERFACE, name)
    ]
    assert list(STRUCTS[name]._fields_) == expected


def test_every_function_has_the_prototype_of_the_header() -> None:
    assert prototypes() == abi.PROTOTYPES | abi_pickle.PROTOTYPES
    assert len(prototypes()) == len(re.findall(r"^GM_API ", INTERFACE, re.MULTILINE))


def test_enums_have_the_values_of_the_header() -> None:
    assert enum_of(INTERFACE, "gm_status_code", "GM_") == {status.name: status.value for status in abi.Status}
    assert enum_of(INTERFACE, "gm_kind", "GM_") == {kind.name: kind.value for kind in EventKind}
    assert enum_of(INTERFACE, "gm_flag", "GM_FLAG_") == {flag.name: flag.value for flag in EventFlag}


def as_dtype(source: str, struct: str) -> list[tuple[str, str, int]]:
    """(name, numpy code, offset) of a struct of the journal."""
    fields, offset = [], 0
    for c_type, name, length in fields_of(source, struct):
        scalar = re.sub(r"std::atomic<(\w+)>", r"\1", c_type)
        code = {"char": f"S{length}", "uint8_t": f"V{length}" if length > 1 else "u1"}.get(scalar) or CODES[scalar]
        fields.append((name, code, offset))
        offset += np.dtype(code).itemsize
    return fields


@pytest.mark.parametrize(
    ("source", "struct", "dtype"),
    [
        (JOURNAL_FORMAT, "Header", journal_layout.HEADER),
        (JOURNAL_FORMAT, "WindowEntry", journal_layout.WINDOW_ENTRY),
        (JOURNAL_FORMAT, "EntryHeader", journal_layout.ENTRY_HEADER),
        (INTERFACE, "gm_record", journal_layout.RECORD),
        (INTERFACE, "gm_reading", journal_layout.READING),
    ],
    ids=["Header", "WindowEntry", "EntryHeader", "gm_record", "gm_reading"],
)
def test_journal_layout_is_that_of_the_headers(source: str, struct: str, dtype: np.dtype[np.void]) -> None:
    assert dtype.fields is not None
    found = [(name, np.dtype(field[0]), field[1]) for name, field in dtype.fields.items()]
    assert found == [(name, np.dtype(code), offset) for name, code, offset in as_dtype(source, struct)]


def test_journal_constants_are_those_of_the_header() -> None:
    text = without_comments(JOURNAL_FORMAT)
    letters = re.search(r"kJournalMagic\[8\] = \{([^}]*)\}", text)
    assert letters
    assert "".join(re.findall(r"'(.)'", letters[1])).encode() == journal_layout.JOURNAL_MAGIC
    constants = dict(re.findall(r"constexpr \w+ (k\w+) = ([^;]+);", text))
    assert {name: eval(value.replace("ull", "")) for name, value in constants.items()} == {
        "kJournalVersion": journal_layout.JOURNAL_VERSION,
        "kByteOrderMark": journal_layout.BYTE_ORDER_MARK,
        "kHeaderBytes": journal_layout.HEADER_BYTES,
        "kWindowCapacity": journal_layout.WINDOW_CAPACITY,
        "kRecordWindowBytes": journal_layout.RECORD_WINDOW_BYTES,
        "kEntryWindowBytes": journal_layout.ENTRY_WINDOW_BYTES,
    }


@pytest.mark.parametrize("name", ["JournalState", "WindowState", "WindowKind", "EntryKind"])
def test_journal_enums_are_those_of_the_header(name: str) -> None:
    def flat(words: str) -> str:
        return words.replace("_", "").lower()

    expected = {flat(key): value for key, value in enum_of(JOURNAL_FORMAT, name, "").items()}
    assert {flat(member.name): member.value for member in getattr(journal_layout, name)} == expected


def test_importing_abi_loads_neither_the_library_nor_numpy(python: str) -> None:
    code = (
        "import sys; before = set(sys.modules); import gpumem.abi as abi; "
        "print(sorted(set(sys.modules) & {'numpy', 'torch', 'importlib.metadata', 'importlib.resources'} - before), "
        "abi._core.cache_info().currsize)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "0"]


def test_library_of_another_version_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "ABI_HASH", "0" * 64)
    abi._core.cache_clear()
    try:
        with pytest.raises(NativeCoreError, match=r"^\S+libgpumem.so was built from another version of gpumem"):
            abi.clock_ns()
    finally:
        abi._core.cache_clear()


def test_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_library_folders", lambda: iter([tmp_path]))
    with pytest.raises(NativeCoreError, match=r"libgpumem.so\) is not installed; install gpumem with"):
        abi.library_path()


def test_recording_through_abi(tmp_path: Path) -> None:
    journal = tmp_path / "a.gpumem.journal"
    abi.start_recording(journal, run_id=bytes(range(16)), stacks=False)
    try:
        assert abi.is_recording()
        assert abi.recorder_path() == journal
        scope = abi.push_scope("forward")
        assert scope == 1
        assert abi.record_event(EventKind.ALLOC, device=0, address=4096, requested_bytes=10) is abi.Status.OK
        abi.pop_scope()
        assert abi.record_mark(EventKind.MARK, "half way", 0) == 1
        assert abi.record_mark(EventKind.STEP, None, 3) == 2
        abi.record_fact("settings", '"expandable_segments:True"')
        assert abi.count_records() == 3
    finally:
        abi.stop_recording("exit")
    assert not abi.is_recording()
    assert abi.record_mark(EventKind.MARK, "too late", 0) is None
    counts = abi.recorder_counts()
    assert counts is not None
    assert (counts.records, counts.records_refused, counts.status) == (3, 0, abi.Status.OK)
    records = np.fromfile(journal, journal_layout.RECORD, 3, offset=journal_layout.HEADER_BYTES + 65536 * 64)
    assert list(records["kind"]) == [EventKind.ALLOC, EventKind.MARK, EventKind.STEP]
    assert (records["address"][0], records["requested_bytes"][0], records["scope"][0]) == (4096, 10, scope)
    assert records["requested_bytes"][2] == 3


def test_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputUnwritable, match=r"a.gpumem.journal cannot be created \(No such file or directory\)"):
        abi.start_recording(tmp_path / "missing" / "a.gpumem.journal", run_id=bytes(16), stacks=False)
    assert not abi.is_recording()
