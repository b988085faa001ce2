"""Whatever is opened is a trace, or one sentence that says what it is instead."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from pathlib import Path

import pytest

from gpumem.errors import GpumemError, InputError, TraceForeign, TraceNotFound, TraceTruncated, UsageError
from gpumem.seal.journal_sealer import JournalSealer
from gpumem.simulate.opening import open_trace, open_traces
from gpumem.trace.file import write_trace
from gpumem.trace.model import EVENT_COLUMNS
from journal_maker import JournalMaker
from trace_builder import MiB, TraceBuilder


def write_small_trace(path: Path) -> None:
    stack = [("train.py", 10, "forward"), ("train.py", 30, "<module>")]
    builder = TraceBuilder().segment(20 * MiB, "s").alloc("a", 512, stack=stack).mark("warm").free("a").step()
    write_trace(builder.build(), path)


def make_journal(path: Path) -> JournalMaker:
    maker = JournalMaker(path)
    maker.fact("source", "native")
    maker.fact("device:0", {"uuid": "GPU-1", "capacity_bytes": 2**37})
    stack = maker.stack([(maker.code("train.py", "main", 10, b"\x80\x01\x98\x02"), 4)])
    maker.pairs(100, stack=stack)
    maker.mark("warm")
    maker.reading(total=100)
    return maker


def test_traces_and_journals_are_told_by_content_not_by_name(tmp_path: Path) -> None:
    write_small_trace(tmp_path / "holiday.jpg")
    make_journal(tmp_path / "notes.txt").close()
    assert open_trace(tmp_path / "holiday.jpg").event_count == 5
    assert open_trace(tmp_path / "notes.txt").event_count == 101


def test_folder_with_one_trace_is_that_trace_and_with_several_names_them(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("not a trace")
    write_small_trace(tmp_path / "a.gpumem")
    assert open_trace(tmp_path).event_count == 5
    make_journal(tmp_path / "b.gpumem.journal").kill()
    assert [trace.path.name for trace in open_traces(tmp_path)] == ["a.gpumem", "b.gpumem.journal"]
    with pytest.raises(UsageError, match=r"holds 2 traces; name one of a\.gpumem, b\.gpumem\.journal"):
        open_trace(tmp_path)


def test_part_of_a_running_recording_is_not_counted_and_names_its_journal(tmp_path: Path) -> None:
    maker = make_journal(tmp_path / "a.gpumem.journal")
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    assert open_trace(tmp_path).event_count == 101
    with pytest.raises(TraceForeign, match=r"open .*a\.gpumem\.journal instead"):
        open_trace(tmp_path / "a.gpumem.part")
    maker.close()
    sealer.finish("exit")
    assert open_trace(maker.path).path.name == "a.gpumem", "finished since its name was looked up"


def write_wrong_inputs(folder: Path) -> None:
    write_small_trace(folder / "whole")
    content = (folder / "whole").read_bytes()
    (folder / "whole").unlink()
    (folder / "cut").write_bytes(content[:-30])
    (folder / "empty").touch()
    (folder / "text").write_text("hello")
    (folder / "pickle").write_bytes(pickle.dumps({"weights": []}))
    (folder / "json").write_text(json.dumps({"weights": []}))
    (folder / "folder").mkdir()
    with zipfile.ZipFile(folder / "zip", "w") as archive:
        archive.writestr("data.pkl", "x")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("missing", TraceNotFound, "does not exist"),
        ("cut", TraceTruncated, "cut off"),
        ("empty", TraceTruncated, "is empty"),
        ("text", TraceForeign, "is no trace"),
        ("pickle", TraceForeign, "no snapshot of PyTorch's memory"),
        ("json", TraceForeign, "JSON, but no memory snapshot"),
        ("folder", TraceNotFound, "holds no trace"),
        ("zip", TraceForeign, "ZIP file but no trace"),
        ("empty/inside", TraceNotFound, "cannot be read"),
    ],
)
def test_wrong_input_is_one_sentence_with_the_path(
    tmp_path: Path, name: str, kind: type[GpumemError], text: str
) -> None:
    write_wrong_inputs(tmp_path)
    with pytest.raises(kind, match=text) as caught:
        open_trace(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_device_files_are_refused_unread() -> None:
    with pytest.raises(TraceForeign, match="is no file"):
        open_trace("/dev/zero")


def damaged(content: bytes, random_source: random.Random) -> bytes:
    """`content` cut off, or with a few bytes changed, near each other or anywhere."""
    if random_source.random() < 0.3:
        return content[: random_source.randrange(len(content))]
    changed = bytearray(content)
    start = random_source.randrange(len(content))
    for _ in range(random_source.choice((1, 1, 2, 8))):
        place = (
            start + random_source.randrange(64)
            if random_source.random() < 0.5
            else random_source.randrange(len(content))
        )
        if place < len(changed):
            changed[place] = random_source.choice((0, 255, changed[place] ^ 1 << random_source.randrange(8)))
    return bytes(changed)


def read_everything(path: Path) -> None:
    trace = open_trace(path)
    for _ in trace.event_batches(list(EVENT_COLUMNS)):
        pass
    for row in range(len(trace.stacks.parents)):
        trace.stacks.frames_of(row)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["trace", "journal"])
def test_damaged_files_give_a_sentence_or_a_trace_and_nothing_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "trace":
        write_small_trace(path)
    else:
        make_journal(path).close()
    content = path.read_bytes()
    random_source = random.Random(7)
    sentences: list[str] = []
    for _ in range(1000):
        path.write_bytes(damaged(content, random_source))
        try:
            read_everything(path)
        except InputError as error:
            sentences.append(str(error))
    assert len(sentences) > 300
    assert all(str(path) in sentence for sentence in sentences)


def test_damaged_members_under_right_checksums_give_a_sentence_or_a_trace_and_nothing_else(tmp_path: Path) -> None:
    write_small_trace(tmp_path / "whole")
    with zipfile.ZipFile(tmp_path / "whole") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    random_source = random.Random(7)
    refused = 0
    for _ in range(500):
        chosen = random_source.choice(list(members))
        with zipfile.ZipFile(tmp_path / "a", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, damaged(content, random_source) if name == chosen else content)
        try:
            read_everything(tmp_path / "a")
        except InputError:
            refused += 1
    assert refused > 300


def test_checkpoints_beside_traces_are_passed_over(tmp_path: Path) -> None:
    write_small_trace(tmp_path / "run.gpumem")
    (tmp_path / "optimizer.pickle").write_bytes(pickle.dumps({"weights": []}))
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    assert [trace.path.name for trace in open_traces(tmp_path)] == ["run.gpumem"]


@pytest.mark.parametrize(
    ("left", "text"), [(0, "b.gpumem is empty"), (2000, "b.gpumem is cut off"), (2, "is no trace")]
)
def test_what_is_left_of_a_trace_in_a_folder_is_not_passed_over(tmp_path: Path, left: int, text: str) -> None:
    write_small_trace(tmp_path / "a.gpumem")
    (tmp_path / "b.gpumem").write_bytes((tmp_path / "a.gpumem").read_bytes()[:left])
    (tmp_path / "c.gpumem.part").write_bytes((tmp_path / "a.gpumem").read_bytes()[:2000])
    with pytest.raises(InputError, match=text):
        open_traces(tmp_path)
    (tmp_path / "b.gpumem").unlink()
    assert [trace.path.name for trace in open_traces(tmp_path)] == ["a.gpumem"]


def test_damaged_trace_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    write_small_trace(tmp_path / "run.gpumem")
    with zipfile.ZipFile(tmp_path / "other.gpumem", "w") as archive:
        archive.writestr("events/000000.parquet", b"")
    with pytest.raises(InputError, match=r"other\.gpumem"):
        open_traces(tmp_path)
