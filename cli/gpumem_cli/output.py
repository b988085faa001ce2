"""Results on stdout: text as wide as the terminal, JSON as UTF-8.

Owns: writing, and a reader that went away (`| head`). Must not know: what is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text

    from gpumem.render.terminal.theme import Page

EXIT_PIPE_CLOSED = 141
"""128 + SIGPIPE: what a shell sees of a program whose reader went away."""


def print_page(render: Callable[[Page], Text]) -> None:
    """Prints what `render` makes of the terminal's page; plain where stdout is no terminal."""
    from gpumem.render.terminal.theme import make_console, page_of

    console = make_console(sys.stdout)
    page = render(page_of(console))
    with console.capture() as capture:
        console.print(page, end="")
    _write(capture.get().encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def print_json(text: str) -> None:
    """Prints a JSON document as UTF-8."""
    _write(text.encode("utf-8"))


def _write(content: bytes) -> None:
    rest = memoryview(content)
    try:
        sys.stdout.flush()
        while rest:  # under PYTHONUNBUFFERED a write may take a part only
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end: give it something that takes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
