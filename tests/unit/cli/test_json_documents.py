"""--json of every command on the samples and on snapshots of PyTorch's: each key stands where docs/json.md says, and
its value has the type that its name promises.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumem.analyses.holdings import GroupBy
from gpumem_cli.main import run_command_line
from nvml_stand_in import MIB, ListedProcess, StandInDevice
from oom_messages import ERROR
from pretended_machine import pretend_machine

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "sample_traces"
RECORDED = ROOT / "tests" / "recordings"
PATHS = [
    *sorted(SAMPLES.glob("*.gpumem")),
    *(RECORDED / f"{name}.pickle.xz" for name in ("trunc", "oom_at", "mempools", "cppstacks")),
]
BEGINNING, *SECTIONS = re.split(r"^## ", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
DEVICE = {"device", "uuid", "nvml_index", "name", "capacity_bytes", "memory_limit_bytes"}
"""What a device is wherever a document says no more of it."""
ELSEWHERE = {"nvml": "gpumem.summary/1", "nvml_end": "gpumem.summary/1", "oom_verdict": "gpumem.oom/1"}
"""Keys whose content another section describes."""
FREE = {"versions", "unavailable", "by_category"}
"""Keys of whose content the keys are names."""

OF_ONE = [
    ["summary"],
    *(["summary", "--by", by.value] for by in GroupBy),
    ["summary", "--from", "event:3", "--to", "end"],
    ["timeline"],
    ["snapshot", "--at", "peak"],
    ["explain"],
    ["replay"],
    ["replay", "--gpu-memory", "600MiB", "--set", "max_split_size_mb=20"],
]
OF_SOME = [
    ["summary", "."],
    ["explain", "."],
    ["diff", ".", "."],
    ["diff", "nine_steps.gpumem", "out_of_memory.gpumem", "--fail-above", "1GiB"],
    ["diff", "gpt2_train.gpumem", "--at", "step:1", "--at", "step:3", "--by", "stack"],
    ["snapshot", "out_of_memory.gpumem", "--at", "oom"],
    ["oom", "-"],
    ["doctor"],
]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def section_of(schema: str) -> set[str]:
    """The keys that are named where the document says what a schema holds."""
    (text,) = [section for section in SECTIONS if schema in section.splitlines()[0] or f"`{schema}`" in section]
    return named(BEGINNING) | named(text)


def items_of(found: Any, schema: str) -> Iterator[tuple[str, str, Any]]:
    """(schema that describes it, key, value) of all of a document; a document inside another is its own."""
    if isinstance(found, list):
        for one in found:
            yield from items_of(one, schema)
    elif isinstance(found, dict):
        inner = found.get("schema", schema)
        for key, value in found.items():
            yield inner, key, value
            if key not in FREE:
                yield from items_of(value, ELSEWHERE.get(key, inner))


def is_integer(value: Any) -> bool:
    """Whether it is an integer, or such by what it is of."""
    if isinstance(value, dict | list):
        return all(map(is_integer, value.values() if isinstance(value, dict) else value))
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def check_document(text: str) -> None:
    document = json.loads(text)
    assert next(iter(document)) == "schema"
    for schema, key, value in items_of(document, document["schema"]):
        assert key in section_of(schema) | DEVICE | {"schema"} or key.startswith("by_"), f"{schema}: {key}"
        if re.search(r"(\A|_)(bytes|ns|count|index|pid|event|events|address)(_peak|_end|_min|_most)?\Z", key):
            assert is_integer(value), f"{schema}: {key} is {value!r}"
        if key in ("site", "before_site", "after_site", "stack"):
            for frame in value if key == "stack" else [value] if value is not None else []:
                assert list(frame) == ["file", "line", "function"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@pytest.mark.parametrize("words", OF_ONE, ids=" ".join)
def test_keys_of_a_recording_are_documented_in_their_section(
    path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line([words[0], str(path), *words[1:], "--json"]) == 0
    check_document(capsys.readouterr().out)


@pytest.mark.parametrize("words", OF_SOME, ids=" ".join)
def test_keys_of_several_samples_are_documented_in_their_section(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SAMPLES)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ERROR.encode())))
    assert run_command_line([*words, "--json"]) in (0, 1)
    check_document(capsys.readouterr().out)


def test_keys_of_the_demo_are_documented_in_their_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["demo", "--json", "-o", str(tmp_path / "demo.gpumem")]) == 0
    check_document(capsys.readouterr().out)


def test_keys_of_the_machine_now_are_documented_in_their_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = StandInDevice(compute=[ListedProcess(10, 50 * MIB), ListedProcess(11, 2 * MIB)])
    proc = pretend_machine(tmp_path, monkeypatch, device)
    proc.add(10, parent=5)
    for words in ([], ["--pid", "10"]):
        assert run_command_line(["explain", *words, "--json"]) == 0
        check_document(capsys.readouterr().out)
