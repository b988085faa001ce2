"""Every command on files that no recorder wrote: an answer, or one sentence and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostile_commands import HostileKind, commands_on, find_fault, make_hostile_file

SEEDS = 12
"""Files of each kind; benchmarks/fuzz_commands.py runs thousands."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", list(HostileKind))
def test_commands_answer_or_say_one_sentence(kind: HostileKind, seed: int, tmp_path: Path) -> None:
    path = make_hostile_file(kind, seed, tmp_path)
    for words in commands_on(path, seed, 3):
        assert find_fault(words) is None, words
