"""`gpumem diff` as people type it: traces, moments, exit codes, sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpumem.trace.file import write_trace
from gpumem_cli.main import run_command_line, unknown_command
from training_trace import training_trace

Golden = Callable[[str, str], None]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("traces")
    before, after = folder / "before.gpumem", folder / "after.gpumem"
    write_trace(training_trace(), before)
    write_trace(training_trace(layers=8, settings="expandable_segments:True"), after)
    return {"before": str(before), "after": str(after), "folder": str(folder)}


def gpumem(*arguments: str, capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    try:
        code = run_command_line(["diff", *arguments])
    except SystemExit as leave:
        code = int(leave.code or 0)
    out, err = capture.readouterr()
    return code, out, err


def test_two_traces_are_compared_at_their_peaks(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = gpumem(paths["before"], paths["after"], capture=capsys)
    assert (code, err) == (0, "")
    assert text.startswith("8 sites hold 1.33 times what they held: ")
    assert "allocator settings      (none) → expandable_segments:True" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) <= 30
    assert gpumem(paths["before"], paths["before"], capture=capsys)[1].startswith("Nothing changed: the same 8 stacks")


def test_two_moments_of_one_trace_are_compared(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = gpumem(paths["before"], "--at", "start", "--at", "step:0", "--json", capture=capsys)
    found = json.loads(document)
    assert code == 0
    assert [found[side]["moment"] for side in ("before", "after")] == ["start", "step:0"]
    assert found["before"]["path"] == found["after"]["path"] == paths["before"]
    assert found["devices"][0]["requested_bytes"]["before"] == 0


def test_moments_are_for_both_traces_or_one_each(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for given, moments in ((["--at", "end"], ["end", "end"]), (["--at", "step:1", "--at", "end"], ["step:1", "end"])):
        document = gpumem(paths["before"], paths["after"], *given, "--json", capture=capsys)[1]
        assert [json.loads(document)[side]["moment"] for side in ("before", "after")] == moments


def test_growth_above_a_limit_exits_with_1(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = gpumem(paths["before"], paths["after"], "--fail-above", "64MiB", capture=capsys)
    assert (code, err) == (1, "")
    assert "\nFailed: requested grew by " in text
    assert "\nFailed: peak of reserved grew by 672.00 MiB, more than 64.00 MiB.\n" in text
    code, text, _ = gpumem(paths["before"], paths["after"], "--fail-above", "2GiB", capture=capsys)
    assert code == 0
    assert text.endswith("Passed: requested and peak of reserved grew by no more than 2.00 GiB.\n")
    assert gpumem(paths["before"], paths["before"], "--fail-above", "0", "--json", capture=capsys)[0] == 0
    assert gpumem(paths["before"], paths["after"], "--fail-above", "0", "--json", capture=capsys)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["{before}"], 2, "To compare two moments of one trace, give both: --at MOMENT --at MOMENT; or name two"),
        (["{before}", "--at", "end"], 2, "To compare two moments of one trace, give both"),
        (["{before}", "{after}", "--at", "1s", "--at", "2s", "--at", "3s"], 2, "--at was given 3 times"),
        (["{before}", "{after}", "--at", "mark:x"], 2, "before.gpumem has no mark 'x'; it has: mark:model built."),
        (["{before}", "{after}", "--at", "later"], 2, "'later' is no moment"),
        (["{before}", "{after}", "--fail-above", "much"], 2, "'much' is no size"),
        (["{before}", "{after}", "--device", "4"], 2, "has no device 4; it has 0."),
        (["{before}", "{folder}"], 2, "and after.gpumem, before.gpumem have no rank in common; name"),
        (["{before}", "{folder}/none"], 3, "does not exist; check the name."),
        ([], 2, "Missing argument 'BEFORE'. See gpumem diff --help."),
    ],
)
def test_mistake_is_one_sentence(
    arguments: list[str], code: int, sentence: str, paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    left, out, err = gpumem(*(word.format(**paths) for word in arguments), capture=capsys)
    assert (left, out) == (code, "")
    assert err.startswith("gpumem: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_words_that_people_try_lead_to_diff() -> None:
    assert unknown_command("compare").endswith("try gpumem diff.")
    assert unknown_command("dif").endswith("try gpumem diff.")


def test_one_side_may_lack_the_device(
    tmp_path: Path, paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    from trace_builder import MiB, TraceBuilder

    other = tmp_path / "two.gpumem"
    write_trace(TraceBuilder().on(device=1).segment(2 * MiB).alloc("a", MiB).build(), other)
    code, text, _ = gpumem(paths["before"], str(other), "--device", "1", capture=capsys)
    assert code == 0
    assert text.startswith(
        "Memory without a Python stack is new and holds 1.00 MiB in 1 block; no other\nsite changed."
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two runs of ranks 0 to 2, in the second of which rank 1 is larger, 2 is gone and 3 is new."""
    folder = tmp_path_factory.mktemp("runs")
    for name, layers in (("before", {0: 4, 1: 4, 2: 4}), ("after", {0: 4, 1: 6, 3: 4})):
        (folder / name).mkdir()
        for rank, count in layers.items():
            write_trace(training_trace(layers=count, rank=rank), folder / name / f"train.7.rank{rank}.gpumem")
    return str(folder / "before"), str(folder / "after")


def test_folders_of_ranks_are_compared_rank_by_rank(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(runs[0]).parent)
    code, text, err = gpumem("before", "after", capture=capsys)
    assert (code, err) == (0, "")
    golden("diff_ranks_80.txt", text)
    assert max(len(line) for line in text.splitlines()) <= 80
    document = json.loads(gpumem(*runs, "--json", capture=capsys)[1])
    assert document["schema"] == "gpumem.diffs/1"
    assert [(one["rank"], one["requested_bytes"]["delta"] > 0) for one in document["ranks"]] == [(0, False), (1, True)]
    assert (document["greatest_rank"], document["greatest"]) == (1, 1)
    assert [one["schema"] for one in document["diffs"]] == ["gpumem.diff/1"] * 2
    assert [one["rank"] for one in document["before_only"] + document["after_only"]] == [2, 3]


def test_one_rank_is_compared_as_one_trace(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(gpumem(*runs, "--rank", "1", "--json", capture=capsys)[1])
    assert document["schema"] == "gpumem.diff/1"
    assert document["after"]["path"].endswith("train.7.rank1.gpumem")
    code, _, err = gpumem(*runs, "--rank", "2", capture=capsys)
    assert (code, err) == (2, f"gpumem: {runs[1]} has no trace of rank 2; it has rank 0, 1, 3.\n")


def test_two_moments_of_every_rank_are_compared(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = gpumem(runs[0], "--at", "start", "--at", "end", capture=capsys)
    assert code == 0
    assert text.startswith("3 ranks changed by the same bytes; the first of them is shown, --rank N shows\nanother.\n")


def test_growth_is_checked_on_every_rank(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = gpumem(*runs, "--fail-above", "64MiB", capture=capsys)
    assert code == 1
    failed = [line for line in text.splitlines() if line.startswith("Failed: ")]
    assert len(failed) == 2
    assert all(line.startswith("Failed: rank 1: ") for line in failed)
    code, text, _ = gpumem(*runs, "--fail-above", "8GiB", capture=capsys)
    assert (code, "\nPassed: every rank: requested and peak of reserved grew by no more than" in text) == (0, True)
