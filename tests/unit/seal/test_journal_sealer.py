"""A journal becomes a trace: window by window while it grows, whole at the end, after any interruption."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gpumem import abi
from gpumem.errors import OutputUnwritable, TraceNotFound, TraceTruncated
from gpumem.importers.journal import read_journal
from gpumem.seal.journal_sealer import JournalBusy, JournalSealer
from gpumem.trace.file import read_trace
from gpumem.trace.journal import part_of, target_of
from gpumem.trace.journal_layout import RECORD_WINDOW_BYTES, WindowState
from gpumem.trace.model import Trace
from gpumem.trace.zip_parts import Member, ZipWriter
from gpumem.vocabulary import EventKind
from journal_maker import JournalMaker, pair_records
from waits import wait_until


def numbers_of(trace: Trace) -> list[int]:
    """requested_bytes of every alloc and free: their numbers, as JournalMaker.pairs gives them."""
    found = []
    for batch in trace.event_batches(["kind", "requested_bytes"]):
        found += batch["requested_bytes"][batch["kind"] <= EventKind.FREE].tolist()
    return found


def test_full_windows_are_sealed_and_punched_while_the_process_writes(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal", window_records=1024)
    maker.pairs(2 * 1024 + 10)
    sealer = JournalSealer(maker.path)
    blocks_before = maker.path.stat().st_blocks
    assert sealer.seal_full_windows() == 2
    assert (blocks_before - maker.path.stat().st_blocks) * 512 == 2 * 65536
    assert sealer.seal_full_windows() == 0
    states = [WindowState(state) for state in maker.raw.windows["state"][:3]]
    assert states == [WindowState.SEALED, WindowState.SEALED, WindowState.OPEN]
    live = read_journal(maker.path)
    assert numbers_of(live) == list(range(2058))
    maker.pairs(1024)
    assert sealer.seal_full_windows() == 1
    assert numbers_of(live) == list(range(2058)), "what was opened stays as it was"
    maker.close()
    finished = sealer.finish("exit")
    assert (finished.path, finished.event_count, finished.ended_by) == (tmp_path / "a.gpumem", 3082, "exit")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpumem"]
    assert numbers_of(read_trace(finished.path)) == list(range(3082))


def test_windows_behind_one_not_full_wait(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(192)
    maker.raw.windows["state"][0] = WindowState.OPEN
    sealer = JournalSealer(maker.path)
    assert sealer.seal_full_windows() == 0
    maker.raw.windows["state"][0] = WindowState.FULL
    assert sealer.seal_full_windows() == 3
    sealer.close()
    maker.close()


def test_window_that_turns_full_between_looks_is_read_from_its_part(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(128)
    live = read_journal(maker.path)
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    assert numbers_of(live) == list(range(128))
    maker.close()
    sealer.finish("exit")
    assert numbers_of(live) == list(range(128)), "also once part and journal have their last names"


def test_there_is_one_sealer_of_a_journal(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.close()
    first = JournalSealer(maker.path)
    with pytest.raises(JournalBusy, match="being sealed by another process"):
        JournalSealer(maker.path)
    first.close()
    JournalSealer(maker.path).finish("exit")
    with pytest.raises(TraceNotFound):
        JournalSealer(maker.path)


def test_half_written_part_of_a_killed_sealer_is_cut_off(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(64)
    maker.mark("one")
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    sealer.close()
    with part_of(target_of(maker.path)).open("ab") as file:
        file.write(b"PK\x03\x04 written when the sealer was killed")
    maker.pairs(100)
    maker.mark("two")
    maker.close()
    finished = JournalSealer(maker.path).finish("exit")
    trace = read_trace(finished.path)
    assert numbers_of(trace) == [*range(64), *range(65, 165)]
    assert [(mark.name, mark.event) for mark in trace.marks] == [("one", 64), ("two", 165)]
    addresses = np.concatenate([batch["address"] for batch in trace.event_batches(["address"])])
    assert addresses[[64, 165]].tolist() == [0, 1], "rows of the marks table"


def test_part_written_but_not_published_is_written_again_not_twice(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(128)
    sealer = JournalSealer(maker.path)
    punched: list[int] = []
    sealer._punch = lambda window: punched.append(window.number)  # type: ignore[method-assign]
    sealer.seal_full_windows()
    sealer.close()
    maker.raw.windows["state"][1] = WindowState.FULL  # as if killed right before the last store
    maker.close()
    assert punched == [0, 1]
    finished = JournalSealer(maker.path).finish("exit")
    assert numbers_of(read_trace(finished.path)) == list(range(128))


def test_trace_that_was_named_before_its_sealer_was_killed_is_not_written_again(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(100)
    maker.close()
    kept = maker.path.with_name("kept")
    os.link(maker.path, kept)
    first = JournalSealer(maker.path).finish("exit 3")
    os.rename(kept, maker.path)
    again = JournalSealer(maker.path).finish("killed")
    assert (again.path, again.ended_by, again.event_count) == (first.path, "exit 3", 100)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpumem"]


def test_target_that_exists_is_kept_and_another_name_taken(tmp_path: Path) -> None:
    (tmp_path / "a.gpumem").write_text("mine")
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(10)
    maker.close()
    finished = JournalSealer(maker.path).finish("exit")
    assert (finished.path.name, finished.wanted_path.name) == ("a.1.gpumem", "a.gpumem")
    assert (tmp_path / "a.gpumem").read_text() == "mine"


def test_what_windows_reserved_in_vain_is_free_before_the_last_parts_are_written(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal", window_records=4096)
    maker.pairs(10)
    maker.close()
    with maker.path.open("r+b") as journal:  # the room that the recorder reserves ahead
        os.posix_fallocate(journal.fileno(), 0, maker.path.stat().st_size)
    sealer = JournalSealer(maker.path)
    blocks_before = maker.path.stat().st_blocks
    sealer._give_unused_back()
    assert (blocks_before - maker.path.stat().st_blocks) * 512 == 63 * 4096
    assert sealer.finish("exit").event_count == 10


def test_sealed_part_that_is_gone_is_said(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(64)
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    sealer.close()
    part_of(target_of(maker.path)).unlink()
    maker.close()
    with pytest.raises(TraceTruncated, match=r"a\.gpumem\.part is gone"):
        JournalSealer(maker.path).finish("exit")


@pytest.mark.parametrize("told_before_sealing", [True, False])
def test_superseded_events_are_dropped_even_when_sealed_before_the_state_was_known(
    tmp_path: Path, told_before_sealing: bool
) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(150)
    maker.mark("stays")
    border = maker.record(EventKind.SNAPSHOT)
    maker.pairs(40)
    state = {"snapshot_event": border, "devices": [0], "segments": []}
    sealer = JournalSealer(maker.path)
    if told_before_sealing:
        maker.fact("initial_state", state)
    sealer.seal_full_windows()
    if not told_before_sealing:
        maker.fact("initial_state", state)
    maker.mark("end")
    maker.reading()
    maker.close()
    trace = read_trace(sealer.finish("exit").path)
    assert numbers_of(trace) == list(range(152, 192))
    assert [(mark.name, mark.event) for mark in trace.marks] == [("stays", 0), ("end", 42)]
    assert trace.readings[0].event == 42
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpumem"]


def test_journal_in_another_folder_finishes_where_its_fact_says(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.fact("target", str(tmp_path / "far" / "b.gpumem"))
    maker.pairs(100)
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    assert (tmp_path / "far" / "b.gpumem.part").exists()
    assert numbers_of(read_journal(maker.path)) == list(range(100))
    maker.close()
    assert sealer.finish("exit").path == tmp_path / "far" / "b.gpumem"


def test_finishing_elsewhere_leaves_neither_journal_nor_part(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(100)
    sealer = JournalSealer(maker.path)
    sealer.seal_full_windows()
    maker.kill()
    finished = sealer.finish("killed", target=tmp_path / "far" / "b.gpumem")
    assert numbers_of(read_trace(finished.path)) == list(range(100))
    assert [entry.name for entry in tmp_path.iterdir()] == ["far"]
    assert [entry.name for entry in (tmp_path / "far").iterdir()] == ["b.gpumem"]


def test_empty_journal_is_finished_and_a_discarded_one_gone(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.close()
    assert read_trace(JournalSealer(maker.path).finish("exit").path).event_count == 0
    other = JournalMaker(tmp_path / "b.gpumem.journal")
    other.pairs(100)
    sealer = JournalSealer(other.path)
    sealer.seal_full_windows()
    sealer.discard()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpumem"]
    other.close()


def test_journal_sealed_in_pieces_gives_the_bytes_of_one_sealed_at_once(tmp_path: Path) -> None:
    records = pair_records(500)
    contents = []
    for name, step in (("a", 500), ("b", 37)):
        (tmp_path / name).mkdir()
        maker = JournalMaker(tmp_path / name / "x.gpumem.journal")
        maker.raw.header["clock_monotonic_ns"] = records["time_ns"][0]
        sealer = JournalSealer(maker.path)
        for first in range(0, 500, step):
            maker.raw.append_rows(records[first : first + step])
            sealer.seal_full_windows()
        maker.close()
        contents.append(sealer.finish("exit").path.read_bytes())
    assert contents[0] == contents[1]


def test_device_that_is_quiet_after_a_deferred_free_keeps_no_window_unsealed(tmp_path: Path) -> None:
    window_records = RECORD_WINDOW_BYTES // 64
    path = tmp_path / "a.gpumem.journal"
    abi.start_recording(path, run_id=bytes(16), stacks=False)
    try:
        sealer = JournalSealer(path)
        abi.record_event(EventKind.ALLOC, device=1, address=512, requested_bytes=512, block_bytes=512)
        abi.record_event(EventKind.FREE_REQUESTED, device=1, address=512, requested_bytes=512, block_bytes=512)
        for number in range(window_records):
            for kind in (EventKind.ALLOC, EventKind.FREE):
                abi.record_event(kind, device=0, address=512, requested_bytes=number % 512 + 1, block_bytes=512)
        sealed_counts: list[int] = []

        def seal_two() -> bool:
            sealed_counts.append(sealer.seal_full_windows())
            return sum(sealed_counts) >= 2

        wait_until(seal_two, "the second sealed window")
        abi.record_event(EventKind.FREE_COMPLETED, device=1, address=512, requested_bytes=512, block_bytes=512)
    finally:
        abi.stop_recording("exit")
    sealer.finish("exit")
    trace = read_trace(tmp_path / "a.gpumem")
    batches = list(trace.event_batches(["kind", "device"]))
    kinds = np.concatenate([batch["kind"][batch["device"] == 1] for batch in batches])
    assert kinds.tolist() == [EventKind.ALLOC, EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED]
    assert trace.event_count == 2 * window_records + 3


def test_journal_that_counts_more_windows_than_it_has_is_damage(tmp_path: Path) -> None:
    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(70)
    maker.raw.header["window_count"] = 65
    maker.close()
    with pytest.raises(TraceTruncated, match="it counts 65 windows"):
        JournalSealer(maker.path).finish("exit")


def test_part_that_got_nothing_for_want_of_room_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(writer: ZipWriter, name: str, content: bytes) -> Member:
        raise OutputUnwritable("no room")

    maker = JournalMaker(tmp_path / "a.gpumem.journal")
    maker.pairs(70)
    maker.close()
    with monkeypatch.context() as patched:
        patched.setattr(ZipWriter, "append", refuse)
        sealer = JournalSealer(maker.path)
        with pytest.raises(OutputUnwritable):
            sealer.seal_full_windows()
        sealer.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpumem.journal"]
    finished = JournalSealer(maker.path).finish("exit")
    assert (finished.event_count, [entry.name for entry in tmp_path.iterdir()]) == (70, ["a.gpumem"])
