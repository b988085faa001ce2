"""What a command says of a file that is not well: an answer, or one sentence and exit code 3 or 2.

Owns: running commands in this process on the file that a seed names, and judging what they said. Must not know: how the
file was spoilt.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from gpumem_cli.main import run_command_line
from hostile_journals import make_hostile_journal
from hostile_snapshots import hostile_file
from hostile_traces import SAMPLES, hostile_trace

_MOMENTS = ("peak", "end", "start", "oom", "event:5", "10ms", "-1s", "mark:half", "step:0", "peak:reserved")
_GROUPS = ("stack", "scope", "stream", "pool", "thread", "file")


class HostileKind(Enum):
    """What a hostile file would be if it were well."""

    TRACE = "trace"
    JOURNAL = "journal"
    SNAPSHOT = "snapshot"


def make_hostile_file(kind: HostileKind, seed: int, folder: Path) -> Path:
    """Writes the file that `seed` names into `folder`, which is empty."""
    names = {HostileKind.TRACE: "x.gpumem", HostileKind.JOURNAL: "x.gpumem.journal", HostileKind.SNAPSHOT: "x.pickle"}
    path = folder / names[kind]
    if kind is HostileKind.JOURNAL:
        make_hostile_journal(seed, path)
    else:
        path.write_bytes(hostile_trace(seed) if kind is HostileKind.TRACE else hostile_file(seed))
    return path


def commands_on(path: Path, seed: int, count: int) -> Iterator[list[str]]:
    """A summary and `count` other commands on the file, by chance."""
    dice = random.Random(~seed)
    file, sample = str(path), str(SAMPLES / "nine_steps.gpumem")
    moment, page, made = dice.choice(_MOMENTS), str(path.with_name("r.html")), str(path.with_name("i.gpumem"))
    others = [
        ["timeline", file],
        ["timeline", file, "--from", "start", "--to", moment],
        ["snapshot", file, "--at", moment],
        ["explain", file, "--at", moment],
        ["diff", file, sample],
        ["diff", sample, file],
        ["diff", file, file, "--at", moment],
        ["replay", file],
        ["replay", file, "--set", "expandable_segments=True"],
        ["replay", file, "--memory-limit", "1GiB"],
        ["summary", file, sample],
        ["summary", file, "--by", dice.choice(_GROUPS)],
        ["summary", file, "--from", "event:2", "--to", moment],
        ["oom", file],
        ["report", file, "-o", page, "-f"],
        ["import", file, "-o", made, "-f"],
    ]
    for words in [["summary", file], *dice.sample(others, count)]:
        can_be_json = words[0] not in ("report", "import")
        yield [*words, "--json"] if can_be_json and dice.random() < 0.4 else words


def find_fault(words: Sequence[str]) -> str | None:
    """Runs a command; what is wrong with how it ended, None where nothing is. Any exception is wrong, too."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command_line(words)
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if code == 1 and words[0] == "replay":
        return None  # the replay parts from what the file says was recorded
    if code not in (0, 2, 3):
        return f"exit code {code}"
    if "Warning" in said or "Traceback" in said:
        return said
    is_sentence = said.startswith("gpumem: ") and said.count("\n") == 1
    return None if code == 0 or is_sentence else f"not one sentence: {said!r}"
