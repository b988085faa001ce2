"""README, docs/, CHANGELOG and the samples' README name commands, flags, moments, files and headings that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from gpumem.trace.moments import parse_moment
from gpumem_cli.main import COMMANDS, gpumem

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "sample_traces").glob("*.md")])
FOLDERS = "|".join(("gpumem", "cli", "docs", "tests", "benchmarks", "sample_traces"))
GROUP_WORDS = {"--help", "--version", "help"}
FOREIGN_FLAGS = {"--epochs", "--gpus"}
"""Flags of a program that is recorded, and of docker."""
OTHER_PROGRAMS = re.compile(r"(python3?|cmake|pip|nvidia-smi|build)\b.*")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def codes(document: Path) -> list[str]:
    """Every line of code of a document: of its blocks, without what a command in them prints, and between backticks."""
    text = document.read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    blocks += [re.findall(r"^    (\S.*)$", text, re.MULTILINE)]
    lines = [line for block in blocks for line in [line for line in block if line.startswith("$ ")] or block]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return lines + re.findall(r"`([^`\n]+)`", prose)


def command_lines(document: Path) -> Iterator[tuple[str, list[str]]]:
    """Every command and its words, comments and what follows in a pipeline left out."""
    for code in codes(document):
        found = re.search(r"(?:^|[$|] |= ?1 |bin/)gpumem (.+)", code)
        if found:
            words = shlex.split(re.split(r" \| | && ", found[1])[0].replace("…", ""), comments=True)
            yield words[0], words[1:]


def flags_of(command: str) -> set[str]:
    context = click.Context(gpumem)
    found = gpumem.get_command(context, command)
    assert found is not None
    return {flag for parameter in found.get_params(context) for flag in parameter.opts if flag.startswith("-")}


def own_words(command: str, words: list[str]) -> list[str]:
    """The words that are gpumem's: those after a program that is recorded are the program's."""
    if command != "run":
        return words
    takes_value = {"-o", "--output", "--memory-limit", "--nvml-interval", "--allocator"}
    for at, word in enumerate(words):
        if not word.startswith("-") and (at == 0 or words[at - 1] not in takes_value):
            return words[:at]
    return words


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_and_their_flags_are_there(document: Path) -> None:
    for command, words in command_lines(document):
        if command in GROUP_WORDS or command.endswith((".py", "TRACE", ".gpumem")):
            continue
        assert command in COMMANDS, f"gpumem {command}"
        flags = {word.split("=")[0] for word in own_words(command, words) if re.match(r"--?[a-z]", word)}
        assert flags <= flags_of(command), f"gpumem {command} {' '.join(words)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_flags_that_stand_alone_are_some_command_s(document: Path) -> None:
    known = set().union(*map(flags_of, COMMANDS)) | GROUP_WORDS | FOREIGN_FLAGS
    for code in codes(document):
        if code.startswith("-"):
            assert set(re.findall(r"(?<![\w-])--[a-z-]+", OTHER_PROGRAMS.sub("", code))) <= known, code


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_moments_that_are_named_are_moments(document: Path) -> None:
    for code in codes(document):
        for written in re.findall(r"--(?:at|from|to) (\"[^\"]+\"|[^\s\"|`]+)", code):
            moment = written.strip('"')
            if moment not in ("MOMENT", "FIRST", "SECOND"):
                parse_moment(moment)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_are_named_are_there(document: Path) -> None:
    for code in codes(document):
        for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*-]+\w)", code):
            assert list(ROOT.glob(path)), path
        for path in re.findall(r"(?<![\w./-])((?:native|recorder|render|analyses|html)/[\w./*-]+\.\w+)", code):
            assert list((ROOT / "gpumem").rglob(path)), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_into_documents_lead_to_a_heading(document: Path) -> None:
    for path, heading in re.findall(r"\]\(([\w./]*)#([^)]+)\)", document.read_text(encoding="utf-8")):
        target = document.parent / path if path else document
        heads = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert heading in anchors, f"{path}#{heading}"


def test_every_command_is_in_the_readme() -> None:
    assert set(COMMANDS) <= {command for command, _ in command_lines(ROOT / "README.md")}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_commands_and_flags_that_are_there(command: str) -> None:
    context = click.Context(gpumem)
    found = gpumem.get_command(context, command)
    assert found is not None
    text = found.get_help(click.Context(found, parent=context, info_name=command))
    named = set(re.findall(r"(?<![.\w])gpumem (\w+)", re.sub(r"\s+", " ", text))) - {"or", "OPTIONS"}
    assert named <= set(COMMANDS)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= set().union(*map(flags_of, {command, *named}))


def test_versions_of_the_readme_are_those_that_the_product_names() -> None:
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    torch = (ROOT / "gpumem" / "recorder" / "torch_install.py").read_text(encoding="utf-8")
    layout = (ROOT / "gpumem" / "native" / "python_layout.cpp").read_text(encoding="utf-8")
    assert re.findall(r"PyTorch (2\.\d+) or newer", said) == re.findall(r'"(2\.\d+) or newer\."', torch)
    assert re.findall(r"walked in CPython ([\d.]+ to \d\.\d+)", said) == re.findall(r"walks CPython (.+?),", layout)
