"""The sealer as a process: it seals while others write, and nothing is lost or doubled whoever is killed."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpumem import abi
from gpumem.errors import TraceNotFound
from gpumem.importers.open import open_trace
from gpumem.trace.file import read_trace
from gpumem.trace.journal_layout import RECORD_WINDOW_BYTES
from gpumem.trace.model import Trace
from journal_maker import RUN_ID, JournalMaker, pair_records
from native_journal import NativeJournal
from waits import SECONDS_AT_MOST, wait_until

WRITER = Path(__file__).with_name("sealed_writer.py")
WINDOW_RECORDS = RECORD_WINDOW_BYTES // 64


class Sealer:
    """`python -m gpumem.seal` on a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "gpumem.seal", "--folder", str(folder), "--run-id", RUN_ID.hex()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def say(self, **word: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word).encode() + b"\n")
        self.process.stdin.flush()

    def finish(self) -> list[dict[str, Any]]:
        """Ends the run; the lines it printed."""
        out, _ = self.process.communicate(timeout=SECONDS_AT_MOST)
        assert self.process.returncode == 0
        return [json.loads(line) for line in out.splitlines()]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Writer:
    """A process that records numbers until it is killed."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "w.gpumem.journal"
        self.count_file = folder / "count"
        self.count_file.write_bytes(bytes(8))
        environment = os.environ | {"PYTHONPATH": str(WRITER.parents[1])}
        command = [sys.executable, str(WRITER), str(self.journal), str(self.count_file)]
        self.process = subprocess.Popen(command, env=environment)
        wait_until(lambda: self.count or self.process.poll() is not None, "the first record")
        assert self.process.poll() is None

    @property
    def count(self) -> int:
        """How many records were surely written."""
        return int(struct.unpack("<Q", self.count_file.read_bytes())[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def check_complete(trace: Trace, count_least: int) -> int:
    """Checks that the trace holds the numbers 0, 1, 2 … once each, at least `count_least`; how many."""
    numbers = [batch["requested_bytes"] for batch in trace.event_batches(["requested_bytes"])]
    found = np.concatenate(numbers) if numbers else np.zeros(0)
    assert np.array_equal(found, np.arange(len(found)))
    assert len(found) >= count_least
    return len(found)


def wait_until_longer(path: Path) -> None:
    """Waits until the sealer at work has added to the file."""
    before = path.stat().st_size if path.exists() else 0
    wait_until(lambda: path.exists() and path.stat().st_size > before, f"a longer {path.name}")


@pytest.fixture
def sealer(tmp_path: Path) -> Iterator[Sealer]:
    started = Sealer(tmp_path)
    yield started
    started.kill()


def test_journal_closed_by_its_process_is_finished_with_what_was_said(tmp_path: Path, sealer: Sealer) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(1000)
    JournalMaker(tmp_path / "other.gpumem.journal", run_id=bytes(16)).close()
    sealer.say(ended={"pid": os.getpid(), "ended_by": "exit 3"})
    maker.close()
    finished, idle = sealer.finish()
    assert finished["finished"] == {
        "journal": str(maker.path),
        "path": str(tmp_path / "a.gpumem"),
        "pid": os.getpid(),
        "events": 1000,
        "ended_by": "exit 3",
        "torch_note": None,
    }
    assert idle == {"idle": True}
    assert read_trace(tmp_path / "a.gpumem").meta.ended_by == "exit 3"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.gpumem", "other.gpumem.journal"]


def test_journal_that_stopped_for_a_reason_of_its_own_keeps_it(tmp_path: Path, sealer: Sealer) -> None:
    JournalMaker(tmp_path / "a.gpumem.journal").close("disk_full")
    sealer.say(ended={"pid": os.getpid(), "ended_by": "exit"})
    assert sealer.finish()[0]["finished"]["ended_by"] == "disk_full"


def test_discarded_journal_leaves_nothing(tmp_path: Path, sealer: Sealer) -> None:
    JournalMaker(tmp_path / "a.gpumem.journal").close()
    sealer.say(discard={"pid": os.getpid()})
    assert sealer.finish() == [{"idle": True}]
    assert list(tmp_path.iterdir()) == []


def test_journal_in_another_folder_is_told_on_stdin(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "run").mkdir()
    sealer = Sealer(tmp_path / "run")
    maker = JournalMaker(tmp_path / "far" / "a.gpumem.journal")
    maker.fact("target", str(tmp_path / "run" / "a.gpumem"))
    maker.close()
    sealer.say(journal=str(maker.path))
    assert sealer.finish()[0]["finished"]["path"] == str(tmp_path / "run" / "a.gpumem")


def test_damaged_journal_fails_alone(tmp_path: Path, sealer: Sealer) -> None:
    maker = JournalMaker(tmp_path / "bad.gpumem.journal")
    maker.string("damaged")
    maker.close()
    content = maker.path.read_bytes().replace(b"damaged", b"demaged")
    maker.path.write_bytes(content)
    good = JournalMaker(tmp_path / "good.gpumem.journal")
    good.close()
    lines = sealer.finish()
    assert sorted(next(iter(line)) for line in lines) == ["failed", "finished", "idle"]
    failed = next(line["failed"] for line in lines if "failed" in line)
    assert failed["journal"] == str(maker.path)
    assert "checksum does not fit" in failed["error"]
    assert maker.path.exists()


def test_older_trace_is_replaced_by_the_complete_one_only_where_that_was_said(tmp_path: Path, sealer: Sealer) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gpumem").write_text("old")
        maker = JournalMaker(tmp_path / f"{name}.gpumem.journal")
        maker.pairs(5)
        maker.close()
    sealer.say(replace=str(tmp_path / "a.gpumem"))
    sealer.finish()
    assert read_trace(tmp_path / "a.gpumem").event_count == 5
    assert (tmp_path / "b.gpumem").read_text() == "old"
    assert read_trace(tmp_path / "b.1.gpumem").event_count == 5


def test_run_is_idle_while_a_living_process_records_and_its_journal_is_finished_later(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    sealer = Sealer(tmp_path)
    assert sealer.process.stdin is not None
    assert sealer.process.stdout is not None
    sealer.process.stdin.close()
    sealer.process.stdin = None
    assert json.loads(sealer.process.stdout.readline()) == {"idle": True}
    assert sealer.process.poll() is None
    count = writer.count
    writer.kill()
    (finished,) = sealer.finish()
    assert finished["finished"]["ended_by"] == "killed"
    assert check_complete(read_trace(tmp_path / "w.gpumem"), count) == finished["finished"]["events"]


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_lost_or_doubled_whoever_is_killed_and_whenever_one_reads(tmp_path: Path, seed: int) -> None:
    random_source = random.Random(seed)
    writer = Writer(tmp_path)
    for _ in range(4):
        sealer = Sealer(tmp_path)
        wait_until_longer(tmp_path / "w.gpumem.part")
        reads_of_sealer = 0
        end = time.monotonic() + random_source.random() * 0.5
        while reads_of_sealer < 2 or time.monotonic() < end:
            count = writer.count
            check_complete(open_trace(writer.journal), count)
            reads_of_sealer += 1
            time.sleep(0.02)
        sealer.kill()
    count = writer.count
    if seed:  # else the recorder outlives its sealers
        writer.kill()
    if seed == 2:  # nobody is left: the journal is read as it lies
        assert open_trace(writer.journal).meta.ended_by == "killed"
        check_complete(open_trace(writer.journal), count)
    last = Sealer(tmp_path)
    if not seed:
        time.sleep(1)
        count = writer.count
        writer.kill()
    last.say(ended={"pid": writer.process.pid, "ended_by": "signal 9"})
    (finished, _) = last.finish()
    trace = read_trace(tmp_path / "w.gpumem")
    assert check_complete(trace, count) == finished["finished"]["events"]
    assert trace.meta.ended_by == "signal 9"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["count", "w.gpumem"]


def test_native_journal_is_sealed_window_by_window_and_its_blocks_given_back(tmp_path: Path, sealer: Sealer) -> None:
    path = tmp_path / "n.gpumem.journal"
    writer = NativeJournal(path, RUN_ID)
    records = pair_records(WINDOW_RECORDS + 10)
    for row in records:
        writer.append(abi.CRecord.from_buffer_copy(row.tobytes()))
    part = tmp_path / "n.gpumem.part"
    bytes_most = 2 * RECORD_WINDOW_BYTES + 2**23
    wait_until(lambda: part.exists() and path.stat().st_blocks * 512 <= bytes_most, "the first window's end")
    live = open_trace(path)
    assert check_complete(live, len(records)) == len(records)
    writer.close()
    sealer.finish()
    assert check_complete(open_trace(tmp_path), len(records)) == len(records)
    with pytest.raises(TraceNotFound):
        open_trace(tmp_path / "missing.gpumem.journal")
