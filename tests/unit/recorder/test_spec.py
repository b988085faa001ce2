"""What a recorded process is told, and the names of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.errors import UsageError
from gpumem.recorder.spec import RecordSpec, find_default_stem, find_free_stem, find_rank, find_trace_path, parse_spec

RUN_ID = "00112233445566778899aabbccddeeff"


def test_spec_is_the_same_after_its_json() -> None:
    spec = RecordSpec(RUN_ID, "/tmp/ä b", "train.7", 7, "first.gpumem", False, 50, 1 << 30, "/tmp/x", False, "gpumem")
    assert parse_spec(spec.to_json()) == spec
    assert '"main_pid":7,' in spec.to_json()


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert parse_spec(f'{{"run_id":"{RUN_ID}","folder":"/","stem":"x","colour":"red"}}') == RecordSpec(RUN_ID, "/", "x")


@pytest.mark.parametrize("text", ["1", "{", "[]", '{"run_id":"xyz","folder":"/","stem":"x"}', '{"folder":"/"}'])
def test_foreign_value_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="GPUMEM_RECORD is set, but not by gpumem run"):
        parse_spec(text)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": "9", "LOCAL_RANK": "1"}, 9),
        ({"RANK": "x"}, None),
    ],
)
def test_rank_is_the_launchers(environment: dict[str, str], rank: int | None) -> None:
    assert find_rank(environment) == rank


def test_main_process_takes_the_first_name_and_others_the_stem(tmp_path: Path) -> None:
    spec = RecordSpec(RUN_ID, str(tmp_path), "run", first_name="run.gpumem")
    assert find_trace_path(spec, pid=5, rank=None, is_main=True) == tmp_path / "run.gpumem"
    assert find_trace_path(spec, pid=5, rank=2, is_main=False) == tmp_path / "run.rank2.gpumem"
    assert find_trace_path(spec, pid=5, rank=None, is_main=False) == tmp_path / "run.5.gpumem"


def test_taken_names_lead_to_further_ones(tmp_path: Path) -> None:
    spec = RecordSpec(RUN_ID, str(tmp_path), "run", first_name="run.gpumem")
    names = []
    for _ in range(4):
        path = find_trace_path(spec, pid=5, rank=2, is_main=False)
        names.append(path.name)
        path.touch()
    assert names == ["run.rank2.gpumem", "run.rank2.5.gpumem", "run.rank2.5.2.gpumem", "run.rank2.5.3.gpumem"]


def test_replaced_program_does_not_take_its_predecessors_journal(tmp_path: Path) -> None:
    spec = RecordSpec(RUN_ID, str(tmp_path), "run", main_pid=5, first_name="run.gpumem")
    (tmp_path / "run.gpumem.journal").touch()
    assert find_trace_path(spec, pid=5, rank=None, is_main=True) == tmp_path / "run.5.gpumem"


def test_name_counts_as_taken_by_a_journal_too(tmp_path: Path) -> None:
    (tmp_path / "a.gpumem.journal").touch()
    assert find_free_stem(tmp_path, "a") == "a.2"
    assert find_free_stem(tmp_path, "b") == "b"


def test_name_of_a_program_is_cut_where_a_file_s_could_not_hold_it(tmp_path: Path) -> None:
    assert find_default_stem(tmp_path, "train", 7) == "train.7"
    assert find_default_stem(tmp_path, "caf\udce9", 7) == "caf\udce9.7"
    assert find_default_stem(tmp_path, "\u00e9" * 120, 7) == "\u00e9" * 80 + ".7"
    assert find_default_stem(tmp_path, "a" + "\u00e9" * 120, 7) == "a" + "\u00e9" * 79 + ".7"
    (tmp_path / f"{'x' * 160}.7.gpumem").touch()
    assert find_default_stem(tmp_path, "x" * 251, 7) == f"{'x' * 160}.7.2"


def test_journals_may_stand_apart(tmp_path: Path) -> None:
    spec = RecordSpec(RUN_ID, "/far", "run", journal_folder=str(tmp_path))
    assert spec.journal_path(Path("/far/run.gpumem")) == tmp_path / "run.gpumem.journal"
