"""Real changes to a program, and what `gpumem diff` says of them: its first line has to name each.

    python benchmarks/diff_changes.py [--folder FOLDER] [--keep FOLDER]

Needs a GPU. benchmarks/diff_program.py is recorded as it is, twice, and after each of several edits, every edit in a
folder of its own, as another checkout would be. Prints a line for each comparison and leaves with 1 where one is wrong.
Besides the first line it checks that the differences of all sites, and of all stacks, add up to the device's to the
byte, and the exit code of `--fail-above`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("diff_program.py")
NAME = "train.py"
GIB = 1 << 30
TIMEOUT_S = 60

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """An edit of the program, and what has to be said of it."""

    name: str
    edits: Sequence[tuple[str, str]]
    is_right: Callable[[Found, str], bool]
    """Of the comparison with the program as it was, and the edited text."""
    grows: bool


def line_of(text: str, code: str) -> int:
    """The number of the only line with this code."""
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if code in line]
    return line


def says(*parts: str) -> Callable[[Found, str], bool]:
    """The first line has all of these; `{code}` in one is the place of that line of code."""

    def is_right(found: Found, text: str) -> bool:
        return all(_place(part, text) in found["headline"] for part in parts)

    return is_right


def _place(part: str, text: str) -> str:
    before, brace, rest = part.partition("{")
    code, _, after = rest.partition("}")
    return f"{before}{NAME}:{line_of(text, code)}{after}" if brace else part


COMMENTS = "# A line that was added.\n" * 7
ABOVE = [
    ("class Model", f"{COMMENTS}class Model"),
    ("    history = []\n", "    history = []\n    # another\n\n"),
    ("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n    torch.set_num_threads(1)\n"),
]
CHANGES = [
    Change("the same again", [], says("Nothing changed: the same "), grows=False),
    Change("lines above the sites", ABOVE, says("Nothing changed but lines of code: the same "), grows=False),
    Change(
        "cache of 1 to 4 GiB",
        [("CACHED_BLOCKS = 1", "CACHED_BLOCKS = 4")],
        says("{1 << 30} build_cache", " holds 3.00 GiB more (1.00 → 4.00 GiB, 1 → 4 blocks); no other site changed."),
        grows=True,
    ),
    Change(
        "both of these",
        [*ABOVE, ("CACHED_BLOCKS = 1", "CACHED_BLOCKS = 4")],
        says("{1 << 30} build_cache", " holds 3.00 GiB more (1.00 → 4.00 GiB, 1 → 4 blocks); no other site changed."),
        grows=True,
    ),
    Change(
        "batch doubled",
        [("BATCH = 64", "BATCH = 128")],
        lambda found, text: says("{gelu} Model.forward")(found, text) and most_doubled(found),
        grows=True,
    ),
    Change(
        "a tensor kept",
        [("        loss.backward()\n", "        kept.append(features.detach().clone())\n        loss.backward()\n"),
         ("    history = []\n", "    history, kept = [], []\n")],
        says("{kept.append} train is new and holds "),
        grows=True,
    ),
    Change(
        "SGD to AdamW",
        [("optim.SGD(model.parameters(), lr=0.01)", "optim.AdamW(model.parameters(), lr=0.01)")],
        says("{optimizer.step()} train "),
        grows=True,
    ),
]  # fmt: skip


def most_doubled(found: Found) -> bool:
    """The site that changed most holds twice as much as before, but for a workspace of 32 MiB that it may hold too."""
    most = found["devices"][0]["by_site"][0]
    return 1.9 < most["after_bytes"] / most["before_bytes"] < 2.01


def record(folder: Path, text: str) -> Path:
    """The recording of a program in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(text)
    words = ["gpumem", "run", "-q", "-f", "-o", "train.gpumem", NAME]
    subprocess.run(words, cwd=folder, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    return folder / "train.gpumem"


def edited(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """The text after the edits, each of something that it has once."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def compare(before: Path, after: Path) -> tuple[int, Found]:
    """The exit code under `--fail-above 0`, and the document."""
    words = ["gpumem", "diff", str(before), str(after), "--json", "--fail-above", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.returncode, json.loads(done.stdout)


def adds_up(found: Found) -> bool:
    """Whether sites and stacks add up to the device: before, after, and so the difference."""
    for device in found["devices"]:
        held = device[f"{found['basis']}_bytes"]
        for groups in (device["by_site"], device["by_stack"]):
            for side in ("before", "after", "delta"):
                if sum(group[f"{side}_bytes"] for group in groups) != held[side]:
                    return False
    return bool(found["devices"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/training"))
    folder = parser.parse_args(arguments).folder
    original = PROGRAM.read_text()
    before = record(folder / "before", original)
    wrong = 0
    for change in CHANGES:
        text = edited(original, change.edits)
        after = record(folder / change.name.replace(" ", "_"), text)
        code, found = compare(before, after)
        failures = [
            problem
            for problem, is_so in (
                ("first line", not change.is_right(found, text)),
                ("sums", not adds_up(found)),
                ("exit code", code != int(change.grows)),
                ("settings", {one["name"] for one in found["settings"]} - {"command line"} != set()),
            )
            if is_so
        ]
        wrong += bool(failures)
        delta = found["devices"][0][f"{found['basis']}_bytes"]["delta"] / (1 << 20)
        verdict = f"WRONG: {', '.join(failures)}" if failures else "right"
        print(f"{change.name:22} {delta:+9.2f} MiB  {verdict}\n    {found['headline']}", flush=True)
    print(f"{len(CHANGES) - wrong} of {len(CHANGES)} changes named rightly")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
