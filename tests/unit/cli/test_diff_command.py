"""`gpumem diff` as people type it: traces, moments, exit codes, sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.trace.file import write_trace
from gpumem_cli.main import run_command_line, unknown_command
from training_trace import training_trace


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
        (["{before}", "{folder}"], 2, "holds 2 traces; name one of after.gpumem, before.gpumem."),
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
