"""Reading journals: layout as the native header says, the window protocol, entries, damage."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpumem.errors import TraceForeign, TraceTruncated, TraceVersionUnsupported
from gpumem.importers.journal import read_journal
from gpumem.trace import journal_layout as layout
from gpumem.trace.entries import JournalEntries
from gpumem.trace.journal import Journal, part_of, process_start_ticks, target_of
from gpumem.trace.journal_layout import EntryKind, WindowKind, WindowState
from gpumem.vocabulary import EventKind, MarkKind, StackId
from journal_maker import RUN_ID, JournalMaker

NATIVE = Path(__file__).parents[3] / "gpumem" / "native"
C_TYPES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "char": 1}


def c_fields(file: Path, struct_name: str) -> list[tuple[str, int]]:
    """(name, bytes) of each member of a C struct, as its header writes it."""
    body = re.search(rf"struct {struct_name} \{{(.*?)\n\}}", file.read_text(), re.DOTALL)
    assert body is not None
    found = re.findall(r"^\s*(?:std::atomic<)?(\w+)>? (\w+)(?:\[(\d+)\])?;", body[1], re.MULTILINE)
    return [(name, C_TYPES[kind] * int(count or 1)) for kind, name, count in found]


@pytest.mark.parametrize(
    ("file", "name", "dtype"),
    [
        ("journal_format.h", "Header", layout.HEADER),
        ("journal_format.h", "WindowEntry", layout.WINDOW_ENTRY),
        ("journal_format.h", "EntryHeader", layout.ENTRY_HEADER),
        ("include/gpumem.h", "gm_record", layout.RECORD),
        ("include/gpumem.h", "gm_reading", layout.READING),
    ],
)
def test_layout_is_that_of_the_native_headers(file: str, name: str, dtype: np.dtype[np.void]) -> None:
    assert dtype.fields is not None
    offset = 0
    for field, byte_count in c_fields(NATIVE / file, name):
        assert (dtype.fields[field][0].itemsize, dtype.fields[field][1]) == (byte_count, offset), field
        offset += byte_count
    assert dtype.itemsize == offset


@pytest.mark.parametrize(
    ("name", "enum"),
    [
        ("JournalState", layout.JournalState),
        ("WindowState", layout.WindowState),
        ("WindowKind", layout.WindowKind),
        ("EntryKind", layout.EntryKind),
    ],
)
def test_states_and_kinds_are_those_of_the_native_header(name: str, enum: type[layout.EntryKind]) -> None:
    text = (NATIVE / "journal_format.h").read_text()
    body = re.search(rf"enum class {name} : \w+ \{{(.*?)\}}", text, re.DOTALL)
    assert body is not None
    found = re.findall(r"(\w+) = (\d+)", body[1])
    spelled = {re.sub(r"(?<!^)(?=[A-Z])", "_", native).upper(): int(value) for native, value in found}
    assert spelled == {member.name: member.value for member in enum}


def test_constants_are_those_of_the_native_header() -> None:
    text = (NATIVE / "journal_format.h").read_text()
    assert f"kJournalVersion = {layout.JOURNAL_VERSION};" in text
    assert f"kByteOrderMark = {layout.BYTE_ORDER_MARK:#010x};" in text
    assert f"kHeaderBytes = {layout.HEADER_BYTES};" in text
    assert ", ".join(f"'{letter}'" for letter in layout.JOURNAL_MAGIC.decode()) in text


def test_records_entries_and_marks_of_a_running_process_are_read(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.fact("source", "native")
    maker.fact("program", {"program": "train.py", "command_line": ["train.py", "-x"], "rank": 3})
    maker.fact("device:0", {"uuid": "GPU-1", "capacity_bytes": 2**37})
    maker.fact("nvml_index:0", 3)
    maker.fact("versions", {"python": "3.12.1"})
    maker.fact("driver_version", "580.159.04")
    maker.fact("torch_end:0", {"allocated_bytes_end": 5})
    maker.fact("note:2", "second")
    maker.fact("note:1", "first")
    forward, main = maker.code("train.py", "forward", 50), maker.code("train.py", "main", 10)
    stack = maker.stack([(forward, 4), (main, 2)])
    maker.pairs(100, stack=stack)
    maker.mark("warm")
    maker.step(0)
    maker.reading(total=100, used=60, free=40, unavailable=0b111000)
    trace = read_journal(maker.path)
    assert trace.event_count == 102
    assert (trace.meta.running, trace.meta.ended_by, trace.meta.pid) == (True, "running", os.getpid())
    assert (trace.meta.program, trace.meta.rank, trace.meta.run_id) == ("train.py", 3, RUN_ID.hex())
    assert trace.meta.notes == ("first", "second")
    assert trace.meta.versions == {"python": "3.12.1", "nvidia_driver": "580.159.04"}
    assert trace.meta.devices[0].nvml_index == 3
    assert (trace.meta.devices[0].capacity_bytes, trace.meta.devices[0].torch_allocated_bytes_end) == (2**37, 5)
    numbers = np.concatenate([batch["requested_bytes"] for batch in trace.event_batches(["requested_bytes"])])
    assert numbers[:100].tolist() == list(range(100))
    assert [frame.function for frame in trace.stack_frames(StackId(stack))] == ["forward", "main"]
    assert [(mark.kind, mark.name, mark.step, mark.event) for mark in trace.marks] == [
        (MarkKind.MARK, "warm", None, 100),
        (MarkKind.STEP, "", 0, 101),
    ]
    assert [(r.event, r.total_bytes, r.process_bytes) for r in trace.readings] == [(101, 100, None)]
    assert trace.readings[0].unavailable["process_bytes"] == "not available"
    maker.close()


def test_uncommitted_slots_are_skipped_counted_and_have_no_row(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(10)
    maker.raw.leave_uncommitted(3)
    maker.pairs(10)
    maker.mark("behind the hole")
    maker.reading()
    maker.kill()
    trace = read_journal(maker.path)
    assert (trace.event_count, trace.meta.records_lost, trace.meta.ended_by) == (21, 3, "killed")
    assert trace.marks[0].event == 20
    assert trace.readings[0].event == 20


def test_events_before_a_found_state_are_replaced_by_its_blocks(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(70)
    maker.record(EventKind.ALLOC, device=1)
    position = maker.record(EventKind.SNAPSHOT)
    block = {"size": 512, "requested_size": 400, "state": "active_allocated"}
    block["frames"] = [{"filename": "old.py", "line": 7, "name": "load"}]  # type: ignore[assignment]
    free = {"size": 1536, "requested_size": 9, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": 4096, "total_size": 2048, "stream": 77, "segment_pool_id": [1, 0]}
    maker.fact("initial_state", {"snapshot_event": position, "segments": [segment | {"blocks": [block, free]}]})
    maker.pairs(4)
    maker.close()
    trace = read_journal(maker.path)
    batch = next(trace.event_batches(["kind", "device"]))
    assert trace.event_count == 6
    assert batch["device"].tolist() == [1, 0, 0, 0, 0, 0]
    allocated, idle = trace.initial_blocks
    assert (allocated.address, allocated.block_bytes, allocated.requested_bytes) == (4096, 512, 400)
    assert (idle.address, idle.block_bytes, idle.requested_bytes) == (4608, 1536, 0)
    assert trace.streams[allocated.stream].handle == 77
    assert (trace.pools[allocated.pool].first, trace.pools[allocated.pool].second) == (1, 0)
    assert [frame.line for frame in trace.stack_frames(allocated.stack)] == [7]


@pytest.mark.parametrize(
    "odd",
    [{"address": 1 << 64}, {"address": 1.5}, {"total_size": -1}, {"total_size": float("inf")}, {"device": 255}],
)
def test_found_state_with_impossible_numbers_is_damage(tmp_path: Path, odd: dict[str, object]) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    block = {"size": 512, "requested_size": 400, "state": "active_allocated"}
    segment = {"device": 0, "address": 4096, "total_size": 512, "blocks": [block]}
    maker.fact("initial_state", {"snapshot_event": 0, "segments": [segment | odd]})
    maker.close()
    with pytest.raises(TraceTruncated, match=r"its fact initial_state cannot be read: .* is no such number"):
        read_journal(maker.path)


def test_line_that_pytorch_did_not_know_is_none(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    frame = {"filename": "old.py", "line": (1 << 64) - 1, "name": "load"}
    block = {"size": 512, "state": "active_allocated", "frames": [frame]}
    segment = {"device": 0, "address": 4096, "total_size": 512, "blocks": [block]}
    maker.fact("initial_state", {"snapshot_event": 0, "segments": [segment]})
    maker.close()
    trace = read_journal(maker.path)
    assert [frame.line for frame in trace.stack_frames(trace.initial_blocks[0].stack)] == [0]


def test_figure_of_a_reading_that_no_device_has_is_not_available(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.reading(total=1 << 36, used=(1 << 63) - 1, free=1 << 63, process=(1 << 64) - 1)
    maker.close()
    (reading,) = read_journal(maker.path).readings
    assert (reading.total_bytes, reading.used_bytes) == (1 << 36, (1 << 63) - 1)
    assert (reading.free_bytes, reading.process_bytes) == (None, None)
    assert reading.unavailable == {"free_bytes": "not available", "process_bytes": "not available"}


def test_reading_at_an_impossible_time_is_damage(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.reading(time_ns=1 << 62)
    maker.close()
    with pytest.raises(TraceTruncated, match="a reading was taken at an impossible time"):
        read_journal(maker.path)


def test_sealed_window_is_not_copied_and_one_sealed_meanwhile_is_thrown_away(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(64)
    journal = Journal(maker.path)
    window = next(journal.windows(WindowKind.RECORDS))
    assert window.state is WindowState.FULL
    read_at = journal.file.read_at

    def sealed_while_reading(offset: int, byte_count: int) -> bytes:
        content = read_at(offset, byte_count)
        maker.raw.windows["state"][window.number] = WindowState.SEALED
        return content

    journal.file.read_at = sealed_while_reading  # type: ignore[method-assign]
    assert journal.read_records(window) is None
    journal.file.read_at = read_at  # type: ignore[method-assign]
    assert journal.read_records(window) is None
    maker.close()


def test_entries_are_taken_in_as_they_come(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    entries = JournalEntries(Journal(maker.path))
    maker.string("first")
    entries.update()
    assert entries.strings == {1: "first"}
    maker.string("x" * 5000)
    maker.entry(EntryKind.THREAD, struct.pack("<Q", 11) + b"main", 1)
    maker.entry(EntryKind.THREAD, struct.pack("<Q", 11) + b"renamed", 1)
    maker.entry(EntryKind.STREAM, struct.pack("<IIQ", 2, 0, 99))
    maker.entry(EntryKind.POOL, struct.pack("<QQ", 0, 3))
    entries.update()
    assert entries.strings[2] == "x" * 5000
    assert [row.name for row in entries.thread_rows()] == ["", "renamed"]
    assert [(row.device, row.handle) for row in entries.stream_rows()] == [(0, 0), (2, 99)]
    assert [(row.first, row.second) for row in entries.pool_rows()] == [(0, 0), (0, 3)]
    maker.close()


def test_damaged_entry_is_said_with_its_offset(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.string("aaaaaaaa")
    maker.string("bbbbbbbb")
    maker.close()
    content = bytearray(maker.path.read_bytes())
    place = content.index(b"bbbbbbbb")
    content[place] ^= 1
    maker.path.write_bytes(content)
    with pytest.raises(TraceTruncated, match="checksum does not fit") as caught:
        read_journal(maker.path)
    assert caught.value.offset == place - 16


def test_cut_off_journals_and_other_versions_are_said(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(100)
    maker.close()
    content = maker.path.read_bytes()
    for byte_count, kind in ((4, TraceForeign), (100, TraceTruncated), (5000, TraceTruncated), (12345, TraceTruncated)):
        maker.path.write_bytes(content[:byte_count])
        with pytest.raises(kind, match=r"a\.gpumem\.journal"):
            read_journal(maker.path)
    maker.path.write_bytes(content[:8] + b"\2\0\0\0" + content[12:])
    with pytest.raises(TraceVersionUnsupported, match="journal version 2"):
        read_journal(maker.path)


def test_process_is_alive_only_under_its_own_start_time(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process_start_ticks(child.pid) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_ticks(child.pid) is None, "what is left of a dead process is not alive"
    child.communicate()
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    assert Journal(maker.path).is_process_alive()
    maker.kill()
    assert not Journal(maker.path).is_process_alive()


def test_names_of_target_and_part_follow_from_the_journals() -> None:
    assert target_of(Path("d/train.7.gpumem.journal")) == Path("d/train.7.gpumem")
    assert target_of(Path("d/odd")) == Path("d/odd.gpumem")
    assert part_of(Path("d/a.gpumem")) == Path("d/a.gpumem.part")
