"""Results on stdout: text as wide as the terminal, JSON as UTF-8; notes on stderr.

Owns: the three standard streams: writing, a reader that went away (`| head`), streams that are full or closed. Must not
know: what is written.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from gpumem.errors import OutputUnwritable

if TYPE_CHECKING:
    from rich.text import Text

    from gpumem.render.terminal.theme import Page

NOTE_LEAD = "gpumem: "
EXIT_PIPE_CLOSED = 141
"""128 + SIGPIPE: what a shell sees of a program whose reader went away."""


def open_missing_streams() -> None:
    """Gives the streams that whoever started us has closed something to be: else files opened next take their numbers.

    Nothing can be read there, notes go nowhere, and a result cannot be written.
    """
    modes = {"stdin": (os.O_RDONLY, "r"), "stdout": (os.O_RDONLY, "w"), "stderr": (os.O_WRONLY, "w")}
    for number, (name, (flags, mode)) in enumerate(modes.items()):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode, encoding="utf-8"))  # noqa: SIM115 (to the end)


def print_note(*lines: str) -> None:
    """Says something on stderr; where nobody can be told, nobody is."""
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        drop_rest(sys.stderr)


def print_report(write: Callable[[Page], Sequence[str]]) -> None:
    """Says on stderr what `write` makes of the room beside `gpumem: ` there; no line is broken where stderr is no
    terminal.
    """
    from gpumem.render.terminal.theme import MAX_WIDTH, make_console, page_of

    page = page_of(make_console(sys.stderr, width_otherwise=MAX_WIDTH))
    lines = write(replace(page, width=page.width - len(NOTE_LEAD)))
    print_note(*(f"{NOTE_LEAD}{line}" for line in lines))


def say_written(path: Path, said: str, *more: tuple[str, str]) -> None:
    """Says that a file was written and something of it; then each of `more`, what to paste behind the words for it."""
    from gpumem.render.terminal.theme import led_by_path, pasted
    from gpumem.render.text import printable

    def write(page: Page) -> list[str]:
        lines = led_by_path(printable(str(path)), said, page, lead="wrote ")
        return lines + [line for lead, what in more for line in pasted(lead, what, page)]

    print_report(write)


def print_page(render: Callable[[Page], Text]) -> None:
    """Prints what `render` makes of the terminal's page; plain where stdout is no terminal."""
    from gpumem.render.terminal.theme import make_console, page_of

    console = make_console(sys.stdout)
    page = render(page_of(console))
    with to_stdout():
        with console.capture() as capture:
            console.print(page, end="")
        _write(capture.get().encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def print_json(text: str) -> None:
    """Prints a JSON document as UTF-8."""
    with to_stdout():
        _write(text.encode("utf-8"))


@contextmanager
def to_stdout() -> Iterator[None]:
    """Ends the command quietly where the reader of what is written went away; raises OutputUnwritable where stdout is
    full or closed.
    """
    try:
        yield
    except BrokenPipeError:
        drop_rest(sys.stdout)
        raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
    except OSError as error:
        drop_rest(sys.stdout)
        raise OutputUnwritable(
            f"Standard output cannot be written: {error.strerror}; send it to a file or a program that takes it."
        ) from None


def _write(content: bytes) -> None:
    rest = memoryview(content)
    sys.stdout.flush()
    while rest:  # under PYTHONUNBUFFERED a write may take a part only
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def drop_rest(stream: TextIO) -> None:
    """The interpreter flushes its streams once more at its end: gives this one something that takes what is left."""
    with suppress(io.UnsupportedOperation):  # a stand-in for a stream, with no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
