"""`gpumem report`: one page of one or several traces.

Owns: its flags, the page's file, progress on stderr. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpumem.errors import OutputUnwritable, TargetExists, UsageError
from gpumem.trace.targets import check_replaceable, check_writable
from gpumem_cli import options
from gpumem_cli.output import say_written

if TYPE_CHECKING:
    from gpumem.analyses.page import Progress
    from gpumem.trace.model import Trace
    from gpumem.vocabulary import DeviceOrdinal

PAGE_SUFFIX = ".html"
PAGE_BYTES_MAX = 8 << 20
COARSENESS_MAX = 32
"""A page of one view that shows a thirty-second part of what it could is small, whatever its trace."""


@click.command()
@options.traces_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=options.check_path,
    help="The page to write [default: TRACE.html, in this folder].",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing page.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when it went well.")
@options.device_option
def report(traces: tuple[str, ...], output: str | None, force: bool, quiet: bool, device: int | None) -> None:
    """Write one HTML page that shows it all: who held the memory, when, and what limits.

    The page opens in any browser, offline, and can be sent as it is. TRACE is a .gpumem file, the journal of a running
    or killed program, a memory snapshot of PyTorch, or a folder of them; two are compared, several are told apart.
    """
    from gpumem.simulate.opening import open_traces
    from gpumem.units import format_bytes

    target = find_target(output, *traces, force=force)
    with _progress(is_shown=not quiet and sys.stderr.isatty()) as progress:
        progress("reading", 0, 1)
        opened = [trace for path in traces for trace in open_traces(path)]
        devices = [options.chosen_devices(trace, device) for trace in opened]
        page_bytes = write_report(opened, target, force=force, devices=devices, progress=progress)
    if not quiet:
        say_written(target, f" ({format_bytes(page_bytes)}); it opens in any browser")


def write_report(
    traces: Sequence[Trace],
    target: Path,
    *,
    force: bool,
    devices: Sequence[Collection[DeviceOrdinal] | None] | None = None,
    progress: Progress = lambda part, number, count: None,
) -> int:
    """Writes the page of `traces` and returns how many bytes it has; raises what write_page does."""
    from gpumem.analyses.page import find_page
    from gpumem.render.html.page import render_page

    coarseness = 1
    while True:
        page = find_page(traces, devices=devices, progress=progress, coarseness=coarseness)
        content = render_page(page).encode("utf-8")
        if len(content) <= PAGE_BYTES_MAX or coarseness >= COARSENESS_MAX:
            break
        coarseness *= 2
    write_page(target, content, force=force)
    return len(content)


def write_page(target: Path, content: bytes, *, force: bool) -> None:
    """Writes a page whole or not at all.

    Raises TargetExists unless `force`, OutputUnwritable where it cannot be written.
    """
    from gpumem.seal.linux import rename_to_free_name

    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".tmp")
        try:
            with open(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o666 & ~_umask())
            if force:
                os.replace(name, target)
            elif not rename_to_free_name(Path(name), target):
                raise TargetExists(target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise OutputUnwritable(
            f"{target} cannot be written ({error.strerror}); choose another place with -o."
        ) from None


def find_target(output: str | None, *traces: str, force: bool, option: str = "-o") -> Path:
    """Where the page of `traces` goes, checked before anything is read; `option` is the flag that named it.

    Raises TargetExists, UsageError or OutputUnwritable.
    """
    name = Path(traces[0]).resolve().name.removesuffix(".journal").removesuffix(".gpumem") + PAGE_SUFFIX
    if output == "-":
        raise UsageError(f"A page is written to a file, not to standard output; name it with {option} FILE.html.")
    target = Path(name) if output is None else Path(output)
    if target.is_dir():
        target = target / name
    elif output is not None and output.endswith(os.sep):
        raise OutputUnwritable(f"{output} is no folder; make it first, or choose another place with {option}.")
    if any(target.resolve() == Path(trace).resolve() for trace in traces):
        raise UsageError(f"{target} is the trace itself; choose another name for the page with {option}.")
    check_writable(target.parent, option)
    check_replaceable(target, force=force, option=option)
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[Progress]:
    """A line on the terminal that says what is being done, gone at the end."""
    if not is_shown:
        yield lambda part, number, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from gpumem.render.text import printable

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def tell(part: str, number: int, count: int) -> None:
            bar.update(task, description=printable(part), completed=number, total=count)

        yield tell
