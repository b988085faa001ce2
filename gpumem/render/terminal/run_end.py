"""The few lines at the end of `gpumem run`: how much at the peak, where the trace is, what to type next.

Owns: their layout. Must not know: how figures are found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from gpumem.analyses.summary import DeviceSummary, TraceSummary
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import ending, printable
from gpumem.units import counted, format_bytes, format_duration, format_share

_BYTES_WIDTH = 11
_LABEL_WIDTH = 18


def render_run_end(summaries: Sequence[TraceSummary], page: Page, folder: str | None = None) -> list[str]:
    """Some lines for each trace of a run, and the commands that tell more; `folder` holds these traces and no other."""
    lines = [line for summary in summaries for line in _trace_lines(summary, page)]
    paths = " ".join(shlex.quote(path) for path in ([s.path for s in summaries] if folder is None else [folder]))
    for lead, command in (("next:", "summary"), ("or on one page:", "report")):
        lines += theme.pasted(lead, f"gpumem {command} {paths}", page)
    return lines


def _trace_lines(summary: TraceSummary, page: Page) -> Iterator[str]:
    meta = summary.meta
    rank = "" if meta.rank is None else f"rank {meta.rank}, "
    duration = format_duration(meta.duration_ns)
    events = f"{counted(summary.events, 'event')} in {duration}"
    yield from theme.led_by_path(printable(summary.path), f": {rank}{events}{ending(meta.ended_by)}", page)
    for device in summary.devices:
        if device.requested_bytes.peak is not None or not device.is_recorded:
            yield from _device_lines(device, page)
    for sentence in _sentences(summary):
        yield from theme.wrap_behind("  ", sentence, page)


def _sentences(summary: TraceSummary) -> Iterator[str]:
    """What limits the figures."""
    meta = summary.meta
    if meta.ended_by == "disk_full":
        yield "the disk was full: recording stopped there, the program went on"
    if meta.ended_by == "no_memory":
        yield "the process had no memory left for its events: recording stopped there, the program went on"
    if meta.records_lost:
        yield f"{counted(meta.records_lost, 'event')} begun but not finished when the program died"
    for sentence in (meta.stacks_off, *meta.notes):
        if sentence is not None:
            yield printable(sentence)


def _device_lines(device: DeviceSummary, page: Page) -> Iterator[str]:
    name = device.facts.name or "name not known"
    yield from theme.wrap_behind("  ", f"GPU {device.facts.device} ({printable(name)})", page)
    for label, figure, remark in _figures(device):
        row = f"    {fit_left(label, _LABEL_WIDTH)}{figure}"
        if cell_len(row) + 2 + len(remark) <= page.width:
            yield f"{row}  {remark}".rstrip()
        else:
            yield row[2:]
            yield from theme.wrap_behind(" " * 4, remark.strip(), page)


def _figures(device: DeviceSummary) -> Iterator[tuple[str, str, str]]:
    """The device's figures: what it is, how much, of what."""
    capacity = device.facts.capacity_bytes
    if not device.is_recorded:
        yield ("by NVML at most", *_figure(device.nvml_process_bytes_peak, capacity))
        return
    held, figures = "requested", device.requested_bytes
    if device.allocated_bytes is not None:
        held, figures = "allocated", device.allocated_bytes
    yield (f"{held} at most", *_figure(figures.peak, capacity))
    yield ("reserved at most", *_figure(device.reserved_bytes.peak, capacity))
    if device.oom_count:
        yield ("ran out of memory", counted(device.oom_count, "time"), "")


def _figure(byte_count: int | None, capacity: int | None) -> tuple[str, str]:
    if byte_count is None:
        return fit_right("not known", _BYTES_WIDTH), ""
    figure = fit_right(format_bytes(byte_count), _BYTES_WIDTH)
    if capacity is None:
        return figure, "(the card's capacity is not known)"
    return figure, f"{format_share(byte_count, capacity):>7} of {format_bytes(capacity)}"
