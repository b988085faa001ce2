"""The gpumem command: its verbs, and the border at which errors become one sentence and an exit code.

Owns: the table of commands, loaded when called for, and the exit codes: 0 done, 1 a check failed, 2 usage, 3 input or
output. Must not know: what a command does. Nothing heavy is imported here.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click

from gpumem import __version__
from gpumem.errors import GpumemError, InputError
from gpumem_cli.output import drop_rest, open_missing_streams, print_note

EXIT_INTERRUPTED = 130
EXIT_USAGE = 2
GARBAGE_THRESHOLD = 50_000
"""New objects after which Python looks for cycles: findings have none, and live to the end."""


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
    "report": CommandPlace("gpumem_cli.report", "report", "One HTML page that shows it all, to look at or to send."),
    "explain": CommandPlace("gpumem_cli.explain", "explain", "nvidia-smi against the allocator, part by part."),
    "oom": CommandPlace("gpumem_cli.oom", "oom", "Why memory ran out: an error message explained."),
    "diff": CommandPlace("gpumem_cli.diff", "diff", "What changed between two traces, or two moments of one."),
    "replay": CommandPlace("gpumem_cli.replay", "replay", "Re-run the allocator: exact, or under other settings."),
    "import": CommandPlace("gpumem_cli.import_", "import_", "Make a .gpumem of a journal or another format."),
    "doctor": CommandPlace("gpumem_cli.doctor", "doctor", "What works on this machine, and why not the rest."),
    "demo": CommandPlace("gpumem_cli.demo", "demo", "Nine steps of 1 GiB: what moves, what stays, and why."),
}

MEANT = {
    "summary": (
        "peak",
        "peaks",
        "stats",
        "stat",
        "show",
        "info",
        "sites",
        "memory",
        "top",
        "summarize",
        "view",
    ),
    "timeline": ("graph", "curve", "curves", "chart", "time", "history"),
    "report": ("flame", "flamegraph", "icicle", "html", "page", "plot", "browser", "web", "share"),
    "snapshot": ("heap", "segments", "segment", "blocks", "dump", "state", "at", "fragmentation"),
    "explain": (
        "why",
        "where",
        "live",
        "watch",
        "ps",
        "nvidia-smi",
        "nvml",
        "smi",
        "ledger",
        "waterfall",
        "outside",
        "context",
    ),
    "oom": ("out-of-memory", "outofmemory", "error", "message", "log", "ran-out"),
    "diff": ("compare", "delta", "changes", "changed", "regression", "vs", "leak", "leaks"),
    "replay": ("simulate", "what-if", "whatif", "settings", "tune", "verify", "allocator", "fits", "fit"),
    "run": ("record", "profile", "trace", "exec", "start", "attach"),
    "import": ("convert", "finish", "seal", "recover"),
    "doctor": ("check", "diagnose", "version", "status", "env"),
    "demo": ("example", "sample", "tour", "try"),
}
"""Words that people try, by the command that answers them."""

_LIKENESS_LEAST = 0.7
"""Of a mistyped verb to the one that is named for it; two letters in three, as of foo and oom, are chance."""
_PROGRAM_SUFFIXES = (".py", ".pyw", ".pyz")
_TRACE_SUFFIXES = (".gpumem", ".gpumem.journal", ".pickle", ".pkl")


class CommandGroup(click.Group):
    """The verbs of COMMANDS, each imported when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        command = getattr(importlib.import_module(place.module), place.attribute)
        assert isinstance(command, click.Command), f"{place.module}.{place.attribute} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(unknown_command(args[0]), ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="gpumem %(version)s")
@click.pass_context
def gpumem(ctx: click.Context) -> None:
    """Where your GPU memory goes.

    Record a training script with gpumem run train.py, then ask for its summary.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USAGE)


def unknown_command(word: str) -> str:
    """The sentence for a verb that is none: what it may have meant."""
    from gpumem.render.text import printable

    lowered = word.lower()
    what = _as_a_file(word)
    if what is not None:
        return what
    meant = next((name for name, words in MEANT.items() if lowered in words), None)
    near = get_close_matches(lowered, COMMANDS, n=1, cutoff=_LIKENESS_LEAST)
    candidate = meant or (near[0] if near else None)
    if candidate is not None:
        return f"There is no command '{printable(word)}'; for that, try gpumem {candidate}."
    return f"There is no command '{printable(word)}'; the commands are {', '.join(COMMANDS)}."


def _as_a_file(word: str) -> str | None:
    """The sentence for a file that stands where the verb should: a program to record, or a trace to read."""
    import shlex

    from gpumem.render.text import printable

    name = printable(word)
    if word.endswith(_PROGRAM_SUFFIXES):
        return f"'{name}' is a program, not a command; record it with gpumem run {shlex.quote(name)}."
    if word.endswith(_TRACE_SUFFIXES):
        return f"'{name}' is a trace, not a command; see what is in it with gpumem summary {shlex.quote(name)}."
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and leaves with its exit code."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    sys.exit(run_command_line(arguments))


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    open_missing_streams()
    _make_streams_tolerant()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    try:
        code = gpumem.main(words, prog_name="gpumem", standalone_mode=False)
    except GpumemError as error:
        _say(str(error))
        return error.exit_code
    except click.UsageError as error:
        _say(_usage_sentence(error, words))
        return EXIT_USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except MemoryError:
        _say("This process ran out of memory; give it more, or open less at a time.")
        return InputError.exit_code
    except OSError as error:  # what nobody foresaw: a disk that fails meanwhile, no room for the text of --help
        drop_rest(sys.stdout)
        _say(_system_sentence(error))
        return InputError.exit_code
    return code if isinstance(code, int) else 0


def _make_streams_tolerant() -> None:
    """Characters that the terminal's encoding lacks become escapes, not an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _usage_sentence(error: click.UsageError, words: Sequence[str]) -> str:
    command = error.ctx.command_path if error.ctx else "gpumem"
    if command == "gpumem" and words and words[0] in COMMANDS:
        command = f"gpumem {words[0]}"  # click does not say whose option lacks its value
    sentence = error.format_message().rstrip(".")
    return f"{sentence}{'' if sentence.endswith('?') else '.'} See {command} --help."


def _system_sentence(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "The folder that this command was started in is gone; change to another one."
    where = "" if error.filename is None else f" ({error.filename})"
    return f"The system could not go on: {error.strerror or error}{where}; see to that and try again."


def _say(text: str) -> None:
    from gpumem.render.text import printable

    sentence = " ".join(line.strip() for line in text.splitlines() if line.strip())
    print_note(f"gpumem: {printable(sentence)}")
