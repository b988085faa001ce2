"""The gpumem command: its verbs, and the border at which errors become one sentence and an exit code.

Owns: the table of commands, loaded when called for, and the exit codes: 0 done, 1 a check failed, 2 usage, 3 input or
output. Must not know: what a command does. Nothing heavy is imported here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click

from gpumem import __version__
from gpumem.errors import GpumemError

EXIT_INTERRUPTED = 130
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Where a command lives, and its line in the list of commands."""

    module: str
    attribute: str
    short_help: str


COMMANDS = {
    "run": CommandPlace("gpumem_cli.run", "run", "Record a program with no change to it."),
    "summary": CommandPlace("gpumem_cli.summary", "summary", "Peaks, who holds them, the cache, NVML beside it."),
    "timeline": CommandPlace("gpumem_cli.timeline", "timeline", "The curves of a trace, drawn in the terminal."),
    "snapshot": CommandPlace("gpumem_cli.snapshot", "snapshot", "The heap at a moment: segments and their blocks."),
    "explain": CommandPlace("gpumem_cli.explain", "explain", "nvidia-smi against the allocator, part by part."),
