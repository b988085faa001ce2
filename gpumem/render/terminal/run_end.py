"""The few lines at the end of `gpumem run`: how much at the peak, where the trace is, what to type next.

Owns: their layout. Must not know: how figures are found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from gpumem.analyses.summary import DeviceSummary, TraceSummary
from gpumem.render.text import ending, printable
from gpumem.units import counted, format_bytes, format_duration, format_share

_BYTES_WIDTH = 11


def render_run_end(summaries: Sequence[TraceSummary], folder: str | None = None) -> str:
    """Some lines for each trace of a run, and the commands that tell more; `folder` holds these traces and no other."""
    lines = [line for summary in summaries for line in _trace_lines(summary)]
    paths = " ".join(shlex.quote(path) for path in ([s.path for s in summaries] if folder is None else [folder]))
    lines += [f"next: gpumem summary {paths}", f"or on one page: gpumem report {paths}"]
    return "".join(f"{line}\n" for line in lines)


def _trace_lines(summary: TraceSummary) -> Iterator[str]:
    meta = summary.meta
    rank = "" if meta.rank is None else f"rank {meta.rank}, "
    duration = format_duration(meta.duration_ns)
    events = f"{counted(summary.events, 'event')} in {duration}"
    yield f"{printable(summary.path)}: {rank}{events}{ending(meta.ended_by)}"
    for device in summary.devices:
        if device.requested_bytes.peak is not None or not device.is_recorded:
            yield from _device_lines(device)
    if meta.ended_by == "disk_full":
        yield "  the disk was full: recording stopped there, the program went on"
    if meta.ended_by == "no_memory":
        yield "  the process had no memory left for its events: recording stopped there, the program went on"
    if meta.records_lost:
        yield f"  {counted(meta.records_lost, 'event')} begun but not finished when the program died"
    for sentence in (meta.stacks_off, *meta.notes):
        if sentence is not None:
            yield f"  {printable(sentence)}"


def _device_lines(device: DeviceSummary) -> Iterator[str]:
    capacity = device.facts.capacity_bytes
    name = device.facts.name or "name not known"
    yield f"  GPU {device.facts.device} ({printable(name)})"
    if not device.is_recorded:
        yield f"    by NVML at most   {_figure(device.nvml_process_bytes_peak, capacity)}"
        return
    held, figures = "requested", device.requested_bytes
    if device.allocated_bytes is not None:
        held, figures = "allocated", device.allocated_bytes
    yield f"    {held} at most {_figure(figures.peak, capacity)}"
    yield f"    reserved at most  {_figure(device.reserved_bytes.peak, capacity)}"
    if device.oom_count:
        yield f"    ran out of memory {counted(device.oom_count, 'time')}"


def _figure(byte_count: int | None, capacity: int | None) -> str:
    if byte_count is None:
        return f"{'not known':>{_BYTES_WIDTH}}"
    figure = f"{format_bytes(byte_count):>{_BYTES_WIDTH}}"
    if capacity is None:
        return f"{figure}  (the card's capacity is not known)"
    return f"{figure}  {format_share(byte_count, capacity):>7} of {format_bytes(capacity)}"
