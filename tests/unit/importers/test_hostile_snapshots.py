"""Files that are not well end in a Trace or in one sentence with exit code 3; nothing in them is run."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest

from gpumem.abi.pickle import skim_snapshot
from gpumem.errors import InputError, TraceForeign, TraceNotFound, TraceTruncated
from gpumem.importers import pytorch_snapshot_document as document
from gpumem.importers.pytorch_snapshot import is_pytorch_snapshot, read_pytorch_snapshot
from hostile_snapshots import BASES, absurd_pickles, bombs, code_pickles, hostile_file, impossible_values
from recorded_snapshots import recorded_bytes, recorded_values

FUZZ_COUNT = 2000


def outcome_of(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    is_pytorch_snapshot(content[:4096])
    try:
        return f"{read_pytorch_snapshot(path).trace.event_count >= 0}"
    except InputError as error:
        return type(error).__name__


@pytest.mark.parametrize("content", code_pickles(), ids=range(len(code_pickles())))
def test_pickle_that_names_code_is_refused_and_not_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "snapshot").write_bytes(content)
    with pytest.raises(InputError, match=r"nothing was run|damaged|cut off") as refused:
        read_pytorch_snapshot(tmp_path / "snapshot")
    assert refused.value.exit_code == 3


def test_reduce_does_not_run_its_function(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "snapshot").write_bytes(pickle.dumps({"segments": [Touch()]}))
    with pytest.raises(TraceForeign, match="nothing was run"):
        read_pytorch_snapshot(tmp_path / "snapshot")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", absurd_pickles(), ids=range(len(absurd_pickles())))
def test_absurd_sizes_and_depths_end_at_once(tmp_path: Path, content: bytes) -> None:
    assert outcome_of(tmp_path / "snapshot", content) in ("True", "TraceForeign", "TraceTruncated")


@pytest.mark.parametrize("content", bombs(), ids=range(len(bombs())))
def test_compressed_bombs_and_stumps_are_refused(tmp_path: Path, content: bytes) -> None:
    assert outcome_of(tmp_path / "snapshot", content) in ("TraceForeign", "TraceTruncated")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_cut_off_snapshot_says_where(tmp_path: Path, share: float) -> None:
    content = recorded_bytes("streams")
    (tmp_path / "snapshot").write_bytes(content[: int(len(content) * share)])
    with pytest.raises((TraceTruncated, TraceForeign), match=str(tmp_path / "snapshot")):
        read_pytorch_snapshot(tmp_path / "snapshot")


def test_missing_file_and_folder_are_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(TraceNotFound, match=str(path)):
            read_pytorch_snapshot(path)


def test_spoilt_recordings_end_in_a_trace_or_an_input_error(tmp_path: Path) -> None:
    outcomes = {outcome_of(tmp_path / "snapshot", hostile_file(seed)) for seed in range(FUZZ_COUNT)}
    assert outcomes == {"True", "TraceForeign", "TraceTruncated"}


def test_spoilt_entries_read_the_same_natively_and_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = set()
    for seed in range(300):
        rng = random.Random(seed)
        values = impossible_values(rng, recorded_values(rng.choice(BASES)))
        path = tmp_path / "snapshot"
        path.write_bytes(pickle.dumps(values, 4))
        read = []
        for skim in (skim_snapshot, lambda content: None):
            monkeypatch.setattr(document, "skim_snapshot", skim)
            try:
                trace = read_pytorch_snapshot(path).trace
            except InputError as error:
                read.append((str(error), (), ()))
            else:
                columns = next(iter(trace.event_batches(["kind", "address", "time_ns", "pool", "scope"])), None)
                rows = [] if columns is None else [columns[name].tolist() for name in columns.columns]
                read.append((str(trace.meta), tuple(trace.initial_blocks), rows))
        assert read[0] == read[1], seed
        outcomes.add(bool(read[0][2]))
    assert outcomes == {True, False}
