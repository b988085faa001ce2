"""docs/where_the_memory_goes.md: what it quotes is what the commands print, and its tables are the recordings' figures.

A block that begins with `$ gpumem …` is run from the checkout's root at 80 columns; `| head -N`, `| tail -N` and
`| grep [-A N] PATTERN` choose lines, and `echo "…" |` feeds it. `--update-golden` writes what is printed into the
guide. Blocks with `>>>` are run as they stand, one after the other.
"""

from __future__ import annotations

import doctest
import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumem_cli.main import COMMANDS, run_command_line

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "where_the_memory_goes.md"
_QUOTE = re.compile(r"^```\n\$ (?P<command>.*(?:gpumem) .*)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)
_ROW = re.compile(r"^\| (?P<mark>[\w ]+?) \| (?P<figures>[\d,]+ \| [\d,]+ \| [\d,]+) \|", re.MULTILINE)
_MIB = 1 << 20


def quotes() -> list[str]:
    return [match["command"] for match in _QUOTE.finditer(GUIDE.read_text(encoding="utf-8"))]


def printed(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command line prints, all of a pipeline taken into account."""
    *before, words, chosen = ("", *_stages(command))[-3:]
    if before[0]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(shlex.split(before[0])[1].encode())))
    code = run_command_line(shlex.split(words)[1:])
    out, err = capsys.readouterr()
    assert code == 0, err
    return _choose(out, shlex.split(chosen))


def _stages(command: str) -> list[str]:
    """`echo` that feeds it or "", the command, what chooses lines or ""."""
    stages = [stage.strip() for stage in re.split(r" \| (?=gpumem|head|tail|grep)", command)]
    if not stages[0].startswith("echo "):
        stages.insert(0, "")
    return stages if len(stages) == 3 else [*stages, ""]


def _choose(text: str, words: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    match words:
        case []:
            return text
        case ["head", count]:
            return "".join(lines[: -int(count)])
        case ["tail", count]:
            return "".join(lines[int(count) :])
        case ["grep", *after, pattern]:
            following = int(after[1]) if after else 0
            found = [number for number, line in enumerate(lines) if re.search(pattern, line)]
            kept = {near for number in found for near in range(number, number + following + 1)}
            return "".join(line for number, line in enumerate(lines) if number in kept)
    raise AssertionError(f"{words} is not understood")


@pytest.mark.parametrize("command", quotes())
def test_quoted_output_is_what_the_command_prints(
    command: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    text = GUIDE.read_text(encoding="utf-8")
    output = printed(command, capsys, monkeypatch)
    if request.config.getoption("--update-golden"):
        GUIDE.write_text(text.replace(_quote_of(text, command), f"$ {command}\n{output}"), encoding="utf-8")
        return
    assert _quote_of(text, command) == f"$ {command}\n{output}", "pytest --update-golden writes it into the guide"


def _quote_of(text: str, command: str) -> str:
    (match,) = [match for match in _QUOTE.finditer(text) if match["command"] == command]
    return f"$ {command}\n{match['output']}"


def test_guide_quotes_every_report() -> None:
    commands = {word for quote in quotes() for word in quote.split() if word in COMMANDS}
    assert commands >= {"summary", "snapshot", "explain", "diff", "replay", "oom"}


def test_table_of_the_nine_steps_holds_the_recorded_figures(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {match["mark"]: match["figures"] for match in _ROW.finditer(GUIDE.read_text(encoding="utf-8"))}
    assert len(rows) == 11
    for mark, figures in rows.items():
        path = str(ROOT / "sample_traces" / "nine_steps.gpumem")
        assert run_command_line(["snapshot", path, "--at", f"mark:{mark}", "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        (device,) = document["devices"]
        recorded = (device["allocated_bytes"], device["reserved_bytes"], device["nvml"]["process_bytes"])
        assert figures == " | ".join(f"{byte_count // _MIB:,}" for byte_count in recorded), mark


def test_examples_in_python_do_what_they_show() -> None:
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 10


def test_every_file_and_command_named_is_there() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([\w./]+)\)", text):
        assert (GUIDE.parent / name).exists(), name
    for name in re.findall(r"sample_traces/[\w/]+\.\w+", text):
        assert (ROOT / name).exists(), name
    for command in re.findall(r"`gpumem (\w+)", text):
        assert command in COMMANDS, command
