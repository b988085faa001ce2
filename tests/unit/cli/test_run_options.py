"""Where `gpumem run`'s own words end and the program's begin."""

from __future__ import annotations

import pytest

from gpumem_cli.run import find_lacking, find_program


@pytest.mark.parametrize(
    ("own", "programs"),
    [
        ([], ["train.py", "-q"]),
        (["-q"], ["train.py", "-o", "x"]),
        (["-o", "out.gpumem", "-f"], ["train.py"]),
        (["-oout.gpumem"], ["train.py"]),
        (["--output", "out.gpumem"], ["train.py"]),
        (["--output=out.gpumem"], ["train.py"]),
        (["--memory-limit", "1GiB", "--no-stacks"], ["train.py", "--memory-limit", "2"]),
        (["-m", "package"], ["-m", "x"]),
        (["-qm", "package"], ["--help"]),
        (["-mpackage"], ["-q"]),
        (["-qfc", "pass"], ["-c", "y"]),
        (["-m", "package"], []),
        (["-q"], ["-", "x"]),
        (["-q"], ["--", "-strange.py"]),
        (["--nvml-interval"], []),
    ],
)
def test_programs_words_begin_at_the_script_or_after_its_name(own: list[str], programs: list[str]) -> None:
    assert find_program([*own, *programs]) == len(own)


@pytest.mark.parametrize(
    ("own", "lacking"),
    [
        ([], None),
        (["-q"], None),
        (["-o", "x"], None),
        (["-ox"], None),
        (["-o"], "-o"),
        (["-qfc"], "-c"),
        (["-m"], "-m"),
        (["-m", "x"], None),
        (["--output"], "--output"),
        (["--output=x"], None),
        (["-f", "--memory-limit"], "--memory-limit"),
    ],
)
def test_option_without_its_value_is_named(own: list[str], lacking: str | None) -> None:
    assert find_lacking(own) == lacking
