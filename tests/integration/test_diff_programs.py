"""A program recorded before and after real edits, on a simulated device: the first line names each change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROGRAM = '''"""Allocates as a training program does."""

import gpumem

MIB = 1 << 20
BATCH = 4
CACHED_BLOCKS = 1


class Model:
    def __init__(self, gpu):
        self.gpu = gpu
        for _ in range(8):
            gpu.alloc(16 * MIB)

    def forward(self):
        first = self.gpu.alloc(BATCH * 10 * MIB)
        second = self.gpu.alloc(BATCH * 7 * MIB)
        return [first, second, self.gpu.alloc(BATCH * 6 * MIB)]


def build_cache(gpu):
    for _ in range(CACHED_BLOCKS):
        gpu.alloc(1 << 30)


def main(gpu):
    build_cache(gpu)
    model = Model(gpu)
    for _ in range(3):
        for block in model.forward():
            gpu.free(block)


with gpumem.Allocator("simulated", memory_bytes=8 << 30) as gpu:
    main(gpu)
'''
ABOVE = [
    ("class Model", "# added\n" * 9 + "class Model"),
    ("    build_cache(gpu)\n", "    print('added')\n    build_cache(gpu)\n"),
]


def edited(edits: Sequence[tuple[str, str]]) -> str:
    text = PROGRAM
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def line_of(text: str, code: str) -> int:
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if code in line]
    return line


def recorded(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    words = [sys.executable, "-m", "gpumem", "run", "-q", "-o", "train.gpumem", "train.py"]
    environment = {name: value for name, value in os.environ.items() if name != "GPUMEM_RECORD"}
    subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder / "train.gpumem"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("diff") / "before", PROGRAM)


@pytest.mark.needs("stacks")
@pytest.mark.parametrize(
    ("edits", "code", "sentence"),
    [
        ([], 0, "Nothing changed: the same 5 stacks hold the same 1.21 GiB."),
        (ABOVE, 0, "Nothing changed but lines of code: the same 5 stacks hold the same 1.21 GiB."),
        (
            [*ABOVE, ("CACHED_BLOCKS = 1", "CACHED_BLOCKS = 4")],
            1,
            (
                "train.py:{1 << 30} build_cache holds 3.00 GiB more (1.00 → 4.00 GiB, 1 → 4 blocks); no other site "
                "changed."
            ),
        ),
        (
            [("BATCH = 4", "BATCH = 8")],
            1,
            (
                "3 sites hold 2.00 times what they held: +92.00 MiB, the whole change; the most is train.py:{first =} "
                "Model.forward with +40.00 MiB (40.00 → 80.00 MiB, 1 block)."
            ),
        ),
        (
            [("        for block in model", "        kept = gpu.alloc(50 * MIB)\n        for block in model")],
            1,
            "train.py:{kept =} main is new and holds 150.00 MiB in 3 blocks; no other site changed.",
        ),
        (
            [("    for _ in range(3):", "    for _ in range(8):\n        gpu.alloc(32 * MIB)\n    for _ in range(3):")],
            1,
            "train.py:{32 *} main is new and holds 256.00 MiB in 8 blocks; no other site changed.",
        ),
    ],
    ids=["same", "lines-above", "cache", "batch", "kept", "optimizer"],
)  # fmt: skip
def test_first_line_names_the_change(
    edits: list[tuple[str, str]], code: int, sentence: str, before: Path, tmp_path: Path
) -> None:
    text = edited(edits)
    after = recorded(tmp_path / "after", text)
    words = [sys.executable, "-m", "gpumem", "diff", str(before), str(after), "--json", "--fail-above", "0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["headline"] == with_places(sentence, text)
    (device,) = found["devices"]
    assert sum(group["delta_bytes"] for group in device["by_site"]) == device["allocated_bytes"]["delta"]
    assert sum(group["delta_bytes"] for group in device["by_stack"]) == device["allocated_bytes"]["delta"]


def with_places(sentence: str, text: str) -> str:
    """The sentence with the numbers of the lines of code in braces."""
    while "{" in sentence:
        head, _, rest = sentence.partition("{")
        code, _, tail = rest.partition("}")
        sentence = f"{head}{line_of(text, code)}{tail}"
    return sentence
