"""`gpumem run`: record a program with no change to it.

Owns: its flags, and what is said on stderr when the program has ended. Must not know: how a program is started.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpumem.units import parse_capacity
from gpumem.vocabulary import AllocatorChoice
from gpumem_cli.options import check_path, seconds
from gpumem_cli.output import print_report

if TYPE_CHECKING:
    from gpumem.recorder.output import Output
    from gpumem.recorder.supervisor import RunOutcome
    from gpumem.recorder.target import Target
    from gpumem.render.terminal.theme import Page

_LONG_WITH_VALUE = ("--output", "--nvml-interval", "--memory-limit", "--allocator")
_SHORT_WITH_VALUE = "omc"
_SHORT_THAT_NAME_THE_PROGRAM = "mc"


class ProgramCommand(click.Command):
    """A command whose options end where the program begins, as Python's own do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the options before the program; the rest belongs to the program, whatever it looks like."""
        end = find_program(args)
        lacking = find_lacking(args[:end])
        if lacking is not None:
            raise click.UsageError(f"Option '{lacking}' requires an argument", ctx)
        has_separator = args[end : end + 1] == ["--"] and not names_program(args[:end])
        return super().parse_args(ctx, [*args[:end], "--", *args[end + has_separator :]])


def find_program(arguments: list[str]) -> int:
    """Where in `arguments` the program's own words begin: at SCRIPT, or behind the value of -m or -c."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word in ("-", "--") or not word.startswith("-"):
            break
        letter, has_value = _find_letter_with_value(word)
        takes_next = word in _LONG_WITH_VALUE or (letter and not has_value)
        position += 2 if takes_next else 1
        if letter and letter in _SHORT_THAT_NAME_THE_PROGRAM:
            break
    return min(position, len(arguments))


def find_lacking(options: list[str]) -> str | None:
    """The last of `options`, where it takes a value and has none; else the program's first word would be that value."""
    if not options or find_program([*options, "", ""]) == len(options):
        return None
    word = options[-1]
    letter, _ = _find_letter_with_value(word)
    return f"-{letter}" if letter else word


def names_program(options: list[str]) -> bool:
    """Whether -m or -c is among `options`."""
    letters = (_find_letter_with_value(word)[0] for word in options)
    return any(letter and letter in _SHORT_THAT_NAME_THE_PROGRAM for letter in letters)


def _find_letter_with_value(word: str) -> tuple[str, bool]:
    """The letter among short options such as -qm that takes a value, and whether the value follows in the word."""
    if word.startswith("-") and not word.startswith("--"):
        for place, letter in enumerate(word[1:], start=1):
            if letter in _SHORT_WITH_VALUE:
                return letter, place + 1 < len(word)
    return "", False


@click.command(cls=ProgramCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR/",
    callback=check_path,
    help="The trace to write [default: SCRIPT.<pid>.gpumem].",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing trace.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when the program has ended.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option("-c", "code", metavar="CODE", help="Run code, as python -c does.")
@click.option("--no-stacks", is_flag=True, help="Do not record Python stacks.")
@click.option(
    "--nvml-interval",
    metavar="SECONDS",
    type=seconds(3600),
    default=0.1,
    show_default=True,
    help="Time between two NVML readings; 0 for none.",
)
@click.option("--memory-limit", metavar="SIZE", help="What PyTorch may take of each GPU, such as 24GiB.")
@click.option(
    "--allocator",
    type=click.Choice([choice.value for choice in AllocatorChoice]),
    default=AllocatorChoice.AUTO.value,
    show_default=True,
    help="native: the program's own; gpumem: ours in its place; auto: PyTorch's own, ours for CuPy.",
)
@click.argument("words", metavar="SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    output: str | None,
    force: bool,
    quiet: bool,
    module: str | None,
    code: str | None,
    no_stacks: bool,
    nvml_interval: float,
    memory_limit: str | None,
    allocator: str,
    words: tuple[str, ...],
) -> None:
    """Run SCRIPT, and all the processes it starts, and record their GPU memory.

    SCRIPT is what python would run, or another program such as torchrun. Options stand before it; everything after
    belongs to the program. gpumem run ends with the program's exit code.
    """
    from gpumem.recorder.child import leave_as
    from gpumem.recorder.output import find_output
    from gpumem.recorder.spec import milliseconds_of
    from gpumem.recorder.supervisor import RunRequest, run_program

    target = _find_target(module, code, words)
    limit_bytes = None if memory_limit is None else parse_capacity(memory_limit)
    place = find_output(output, force=force)
    interval_ms = milliseconds_of(nvml_interval)
    choice = AllocatorChoice(allocator)
    outcome = run_program(RunRequest(target, place, not no_stacks, interval_ms, limit_bytes, choice))
    if not quiet:
        print_report(lambda page: [*_where_journals_stood(place, page), *_what_came_of_it(outcome, page)])
    leave_as(outcome.wait_status)


def _find_target(module: str | None, code: str | None, words: tuple[str, ...]) -> Target:
    from gpumem.recorder.target import find_code, find_module, find_script

    if module is not None:
        return find_module(module, words)
    if code is not None:
        return find_code(code, words)
    if not words:
        raise click.UsageError("Name the program to record: gpumem run train.py")
    return find_script(words[0], words[1:])


def _where_journals_stood(place: Output, page: Page) -> list[str]:
    from gpumem.render.terminal.theme import led_by_path

    said = f" cannot map files, so the journals stood in {place.journal_folder}."
    return led_by_path(str(place.folder), said, page) if place.is_apart else []


def _what_came_of_it(outcome: RunOutcome, page: Page) -> list[str]:
    """The end of the run: figures and paths, or why there are none."""
    from gpumem.render.terminal.theme import led_by_path, wrap
    from gpumem.units import format_duration

    lines: list[str] = []
    if outcome.traces:
        lines.extend(_describe_traces([trace.path for trace in outcome.traces], page))
    if outcome.nothing_recorded is not None:
        ran = format_duration(outcome.duration_ns)
        lines.extend(wrap(f"Nothing was recorded of the program's {ran}. {outcome.nothing_recorded}", page))
    for failed in outcome.failed:
        lines.extend(led_by_path(str(failed.journal), f" could not be sealed: {failed.error}", page))
    for journal in outcome.unfinished:
        why = outcome.sealer_complaint or "killed"
        said = f" stays as it is, since its sealer died twice ({why}); finish it with:"
        lines.extend(led_by_path(str(journal), said, page))
        lines.append(f"gpumem import {shlex.quote(str(journal))} -o {shlex.quote(str(journal.with_suffix('')))}")
    if outcome.recording_pids:
        pids = ", ".join(str(pid) for pid in outcome.recording_pids)
        lines.extend(wrap(f"Still recording: process {pids}; each trace is completed when its process ends.", page))
    return lines


def _describe_traces(paths: Sequence[Path], page: Page) -> list[str]:
    from gpumem.analyses.summary import summarise_trace
    from gpumem.importers.open import open_trace
    from gpumem.render.terminal.run_end import render_run_end

    shown = [path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path for path in paths]
    summaries = [summarise_trace(open_trace(path)) for path in shown]
    return render_run_end(summaries, page, _folder_of_all(shown))


def _folder_of_all(paths: Sequence[Path]) -> str | None:
    """The folder that holds these traces, several of them, and no others; None where there is none but this one."""
    from gpumem.importers.open import find_traces

    folder = paths[0].parent
    if len(paths) < 2 or folder == Path() or {path.parent for path in paths} != {folder}:
        return None
    return str(folder) if set(find_traces(folder)) == set(paths) else None
