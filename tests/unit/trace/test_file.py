"""A trace written and read back is the same trace; what is wrong with a file is said in one sentence."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpumem.errors import TargetExists, TraceForeign, TraceNotFound, TraceTruncated, TraceVersionUnsupported
from gpumem.trace.file import PART_ROWS, read_trace, write_trace
from gpumem.trace.model import EVENT_COLUMNS, AllocatorFacts, ColumnEvents, Trace
from gpumem.units import format_duration
from gpumem.vocabulary import EventIndex, EventKind
from trace_builder import KiB, MiB, TraceBuilder


def small_trace() -> Trace:
    stack = [("train.py", 10, "forward"), ("train.py", 30, "<module>")]
    builder = TraceBuilder(block_bytes_known=True, versions={"torch": "2.11"}, notes=("said once",))
    builder.segment(20 * MiB, "s").on(stream=7, pool=(1, 0), thread="autograd").segment(2 * MiB, "p").on()
    builder.alloc("a", 512 * KiB, stack=stack).mark("warm").free("a").step().step()
    return builder.build()


def all_columns(trace: Trace) -> dict[str, list[int]]:
    names = list(EVENT_COLUMNS)
    batches = list(trace.event_batches(names))
    return {name: np.concatenate([batch[name] for batch in batches]).tolist() for name in names}


def test_a_trace_is_one_short_line_in_an_interpreter() -> None:
    trace = replace(small_trace(), path=Path("runs/a.gpumem"))
    assert repr(trace) == f"<Trace runs/a.gpumem: 7 events in {format_duration(trace.meta.duration_ns)}>"


def test_trace_read_back_equals_the_trace_written(tmp_path: Path) -> None:
    trace, path = small_trace(), tmp_path / "a.gpumem"
    write_trace(trace, path)
    back = read_trace(path)
    assert all_columns(back) == all_columns(trace)
    assert replace(back.meta, devices=()) == replace(trace.meta, devices=())
    assert list(back.meta.devices) == list(trace.meta.devices)
    for name in ("streams", "pools", "threads", "readings", "marks", "initial_blocks"):
        assert list(getattr(back, name)) == list(getattr(trace, name)), name
    assert list(back.frames.files) == list(trace.frames.files)
    assert back.frames.lines.tolist() == trace.frames.lines.tolist()
    assert back.stacks.parents.tolist() == trace.stacks.parents.tolist()
    assert list(back.scopes.names) == list(trace.scopes.names)


def test_names_that_are_no_text_are_written_with_question_marks(tmp_path: Path) -> None:
    builder = TraceBuilder(command_line=("caf\udce9.py",)).segment(2 * MiB)
    trace = builder.alloc("a", 1, stack=[("/w/caf\udce9.py", 3, "f\ud800")]).mark("m\udcff").build()
    write_trace(trace, tmp_path / "a.gpumem")
    back = read_trace(tmp_path / "a.gpumem")
    assert list(back.meta.command_line) == ["caf?.py"]
    assert list(zip(back.frames.files, back.frames.functions, strict=True))[-1] == ("/w/caf?.py", "f?")
    assert [mark.name for mark in back.marks] == ["m?"]


def test_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    write_trace(small_trace(), tmp_path / "a.gpumem")
    write_trace(small_trace(), tmp_path / "b.gpumem")
    assert (tmp_path / "a.gpumem").read_bytes() == (tmp_path / "b.gpumem").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.gpumem", "b.gpumem"]


def test_existing_target_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    path.write_text("mine")
    with pytest.raises(TargetExists):
        write_trace(small_trace(), path)
    assert path.read_text() == "mine"
    write_trace(small_trace(), path, force=True)
    assert read_trace(path).event_count == small_trace().event_count


def long_trace(event_count: int) -> Trace:
    columns = {name: np.zeros(event_count, dtype) for name, dtype in EVENT_COLUMNS.items()}
    columns["kind"] = np.full(event_count, 1, np.uint8)
    columns["requested_bytes"] = np.arange(event_count, dtype=np.uint64)
    return replace(small_trace(), events=ColumnEvents(columns), marks=())


def test_events_stream_part_by_part_and_only_the_range_asked_for(tmp_path: Path) -> None:
    event_count = 2 * PART_ROWS + 10
    write_trace(long_trace(event_count), tmp_path / "a.gpumem")
    trace = read_trace(tmp_path / "a.gpumem")
    assert trace.event_count == event_count
    batches = list(trace.event_batches(["requested_bytes"]))
    assert [batch.count for batch in batches] == [PART_ROWS, PART_ROWS, 10]
    assert [batch.first_event for batch in batches] == [0, PART_ROWS, 2 * PART_ROWS]
    first, end = PART_ROWS - 3, PART_ROWS + 2
    few = list(trace.event_batches(["requested_bytes"], first_event=first, end_event=end))
    assert [batch["requested_bytes"].tolist() for batch in few] == [[first, first + 1, first + 2], [first + 3, end - 1]]
    assert list(trace.event_batches(["kind"], first_event=5, end_event=5)) == []


def test_reading_stops_cleanly_when_the_reader_leaves_early(tmp_path: Path) -> None:
    write_trace(long_trace(3 * PART_ROWS), tmp_path / "a.gpumem")
    batches = read_trace(tmp_path / "a.gpumem").event_batches(["kind"])
    assert next(iter(batches)).count == PART_ROWS
    batches.close()  # type: ignore[attr-defined]


def repacked(path: Path, member: str, content: bytes | None) -> Path:
    """A copy of the trace with one member replaced, or left out."""
    other = path.with_name("other.gpumem")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            kept = content if name == member else source.read(name)
            if kept is not None:
                target.writestr(name, kept)
    return other


def with_meta(path: Path, **changes: object) -> Path:
    with zipfile.ZipFile(path) as source:
        meta = json.loads(source.read("meta.json"))
    return repacked(path, "meta.json", json.dumps(meta | changes).encode())


def test_newer_minor_version_is_read_and_another_major_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(small_trace(), path)
    assert read_trace(with_meta(path, format_version="1.7", news=3)).event_count == small_trace().event_count
    with pytest.raises(TraceVersionUnsupported, match=r"format version 2\.0; this gpumem reads version 1"):
        read_trace(with_meta(path, format_version="2.0"))


def test_facts_of_allocators_and_blocks_come_back(tmp_path: Path) -> None:
    builder = TraceBuilder(
        allocators=(AllocatorFacts(0, 3, "max_split_size_mb:64", MiB, KiB), AllocatorFacts(1, 3, ""))
    )
    built = builder.initial("a", KiB).free("a").build()
    trace = replace(built, initial_blocks=[replace(built.initial_blocks[0], flags=3 << 8 | 64)])
    write_trace(trace, tmp_path / "a.gpumem")
    back = read_trace(tmp_path / "a.gpumem")
    assert (back.meta.allocators, list(back.initial_blocks)) == (trace.meta.allocators, trace.initial_blocks)


def test_settings_that_are_not_in_a_recording_are_not_in_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(TraceBuilder(settings=None).segment(2 * MiB).build(), path)
    assert read_trace(path).meta.settings is None


def test_a_file_from_before_its_blocks_said_whose_they_are_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    trace = TraceBuilder().initial("a", KiB).free("a").build()
    write_trace(trace, path)
    with zipfile.ZipFile(path) as source:
        table = pq.read_table(pa.BufferReader(source.read("initial_blocks.parquet")))
    written = pa.BufferOutputStream()
    pq.write_table(table.drop_columns(["flags"]), written)
    older = repacked(path, "initial_blocks.parquet", written.getvalue().to_pybytes())
    assert list(read_trace(older).initial_blocks) == list(trace.initial_blocks)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"format": "other"}, TraceForeign),
        ({"format_version": 1}, TraceTruncated),
        ({"part_events": [-1]}, TraceTruncated),
        ({"part_events": [4, 4]}, TraceTruncated),
        ({"source": "?"}, TraceTruncated),
        ({"devices": [3]}, TraceTruncated),
        ({"allocators": 3}, TraceTruncated),
        ({"allocators": [{"device": 0, "number": 1}]}, TraceTruncated),
        ({"allocators": [{"device": 0, "number": 1, "settings": None}]}, TraceTruncated),
        ({"versions": {"a": 1}}, TraceTruncated),
        ({"duration_ns": "long"}, TraceTruncated),
        ({"duration_ns": 1 << 62}, TraceTruncated),
    ],
)
def test_wrong_meta_is_refused_with_the_path(tmp_path: Path, changes: dict[str, object], kind: type[Exception]) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(small_trace(), path)
    with pytest.raises(kind, match=r"other\.gpumem"):
        read_trace(with_meta(path, **changes))


@pytest.mark.parametrize("member", ["frames.parquet", "stacks.parquet", "marks.parquet", "events/000000.parquet"])
@pytest.mark.parametrize("content", [None, b"", b"PAR1 not at all PAR1"])
def test_missing_or_foreign_member_is_damage_that_names_it(tmp_path: Path, member: str, content: bytes | None) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(small_trace(), path)
    with pytest.raises(TraceTruncated, match=member):
        all_columns(read_trace(repacked(path, member, content)))


def test_stack_rows_that_do_not_exist_are_damage(tmp_path: Path) -> None:
    trace, path = small_trace(), tmp_path / "a.gpumem"
    columns = {name: np.array(values, EVENT_COLUMNS[name]) for name, values in all_columns(trace).items()}
    columns["stack"][0] = 1000
    write_trace(replace(trace, events=ColumnEvents(columns)), path)
    with pytest.raises(TraceTruncated, match="stack column names rows that do not exist"):
        all_columns(read_trace(path))


def changed(trace: Trace, name: str, value: int) -> Trace:
    """The trace with another value in the row of its alloc."""
    columns = {column: np.array(values, EVENT_COLUMNS[column]) for column, values in all_columns(trace).items()}
    columns[name][columns["kind"] == EventKind.ALLOC] = value
    return replace(trace, events=ColumnEvents(columns))


def test_figures_of_a_whole_64_bits_are_written_and_are_damage_to_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(changed(small_trace(), "block_bytes", (1 << 63) - 1), path)
    assert (1 << 63) - 1 in all_columns(read_trace(path))["block_bytes"]
    for name, value in {"requested_bytes": 1 << 63, "block_bytes": 1 << 63, "time_ns": 1 << 62}.items():
        write_trace(changed(small_trace(), name, value), path, force=True)
        with pytest.raises(TraceTruncated, match=f"its {name} column holds impossible figures"):
            all_columns(read_trace(path))


def test_readings_and_first_blocks_of_impossible_bytes_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    read = TraceBuilder().reading(process_bytes=1 << 63).build()
    late = replace(read, readings=[replace(read.readings[0], process_bytes=None, time_ns=1 << 62)])
    for trace, name in ((read, "process_bytes"), (late, "time_ns")):
        write_trace(trace, path, force=True)
        with pytest.raises(TraceTruncated, match=rf"readings\.parquet is damaged: its {name} column holds impossible"):
            read_trace(path)
    begun = TraceBuilder().initial("old", 512).build()
    write_trace(
        replace(begun, initial_blocks=[replace(begun.initial_blocks[0], segment_bytes=1 << 63)]), path, force=True
    )
    with pytest.raises(TraceTruncated, match=r"initial_blocks\.parquet is damaged"):
        read_trace(path)


@pytest.mark.parametrize("event", [-2, 3])
def test_mark_or_reading_of_an_event_that_does_not_exist_is_damage(tmp_path: Path, event: int) -> None:
    trace, path = TraceBuilder().reading().mark("a").mark("b").step().build(), tmp_path / "a.gpumem"
    odd = EventIndex(event)
    for member, damaged in {
        "marks": replace(trace, marks=[replace(trace.marks[0], event=odd)]),
        "readings": replace(trace, readings=[replace(trace.readings[0], event=odd)]),
    }.items():
        write_trace(damaged, path, force=True)
        with pytest.raises(TraceTruncated, match=rf"{member}\.parquet is damaged: it names events that do not exist"):
            read_trace(path)


def test_few_bytes_that_say_very_many_rows_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(small_trace(), path)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"parent": np.zeros(1 << 21, np.uint32), "frame": np.zeros(1 << 21, np.uint32)}), sink)
    with pytest.raises(TraceTruncated, match=r"stacks\.parquet is damaged: it says that it has 2097152 rows"):
        read_trace(repacked(path, "stacks.parquet", bytes(sink.getvalue())))
    with pytest.raises(TraceTruncated, match="does not hold the 7 events it should"):
        all_columns(read_trace(repacked(path, "events/000000.parquet", bytes(sink.getvalue()))))


def test_links_in_a_circle_are_damage(tmp_path: Path) -> None:
    trace, path = small_trace(), tmp_path / "a.gpumem"
    parents = trace.stacks.parents.copy()
    parents[1:3] = 2, 1
    write_trace(replace(trace, stacks=replace(trace.stacks, parents=parents)), path)
    with pytest.raises(TraceTruncated, match="circle"):
        read_trace(path)


def test_flipped_bit_in_an_event_part_is_damage_with_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    write_trace(small_trace(), path)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(TraceTruncated, match="does not give its checksum") as caught:
        all_columns(read_trace(path))
    assert caught.value.offset == 30 + len("events/000000.parquet")


def test_missing_and_cut_off_files_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.gpumem"
    with pytest.raises(TraceNotFound, match="does not exist"):
        read_trace(path)
    write_trace(small_trace(), path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(TraceTruncated, match="cut off or damaged"):
        read_trace(path)
