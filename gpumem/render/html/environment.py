"""The end of the page: how each trace was recorded, and what was lost.

Owns: its HTML. Must not know: how facts were learned.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from gpumem.analyses.page import PageFindings
from gpumem.analyses.summary import TraceSummary
from gpumem.render.html.markup import Html, foreign, foreign_line, tag
from gpumem.trace.allocators import settings_of
from gpumem.trace.model import DeviceFacts
from gpumem.units import counted, format_bytes, format_duration

_VERSIONED = {"nvidia_driver": "NVIDIA's driver", "cuda": "CUDA", "cudnn": "cuDNN", "python": "Python"}


def environment_section(page: PageFindings) -> Html:
    """The facts of each trace as a list of names and values."""
    lists = []
    for trace in page.traces:
        rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _facts(trace.summary)]
        facts = tag("dl", *rows, class_="facts")
        if len(page.traces) > 1:
            facts = tag("details", tag("summary", foreign(trace.summary.path)), facts)
        lists.append(facts)
    return tag("section", tag("h2", "Environment and recording"), *lists, id="environment")


def _facts(summary: TraceSummary) -> Iterator[tuple[str, str]]:
    meta = summary.meta
    yield "Trace", foreign(summary.path)
    if meta.program:
        yield "Program", foreign(meta.program)
    if meta.command_line:
        yield "Command line", foreign_line(shlex.join(meta.command_line))
    if meta.rank is not None:
        yield "Rank", str(meta.rank)
    if meta.pid is not None:
        yield "Process", str(meta.pid)
    yield "Recorded by", _source(summary)
    yield "Events", f"{counted(summary.events, 'event')} in {format_duration(meta.duration_ns)}"
    yield "Ended by", "still running" if meta.running else foreign(meta.ended_by) or "not known"
    lines = settings_of(meta)
    yield "Allocator settings", _settings(lines) if len(lines) == 1 else "each allocator's own, see its device"
    for name, version in sorted(meta.versions.items()):
        yield f"Version of {_VERSIONED.get(name, foreign(name))}", foreign(version)
    for facts in meta.devices:
        settings = "" if len(lines) == 1 else f", settings {_settings(settings_of(meta, facts.device))}"
        yield f"Device {facts.device}", _device(facts) + settings
    yield "Lost", counted(meta.records_lost, "event") if meta.records_lost else "nothing"
    if any(device.is_recorded for device in summary.devices):
        yield "Call stacks", _call_stacks(summary)
        yield "Block sizes", _block_sizes(summary)
    if meta.history_truncated:
        yield "Begins", "in mid-run: what was before is not recorded"
    if meta.produced_by:
        yield "Written by", foreign(meta.produced_by)


def _settings(lines: Sequence[str | None]) -> str:
    named = ("not in the recording" if line is None else foreign_line(line) or "none set" for line in lines)
    return " and ".join(named)


def _call_stacks(summary: TraceSummary) -> str:
    if summary.meta.stacks_off:
        return foreign_line(summary.meta.stacks_off)
    held = [one for device in summary.devices for one in device.peak.by_site]
    return (
        "recorded"
        if not held or any(one.site is not None for one in held)
        else "none of the blocks at the peak has one"
    )


def _block_sizes(summary: TraceSummary) -> str:
    if summary.meta.block_bytes_known:
        return "known"
    known = [str(device.facts.device) for device in summary.devices if device.allocated_bytes is not None]
    where = f"known on device {', '.join(known)}; elsewhere" if known else "not known:"
    return f"{where} bytes are those asked for"


def _source(summary: TraceSummary) -> str:
    return {
        "native": "PyTorch's own allocator, through its trace tracker",
        "gpumem": "gpumem's own allocator",
        "pytorch_snapshot": "PyTorch's memory snapshot",
        "none": "NVML and marks only",
    }[summary.meta.source.value]


def _device(facts: DeviceFacts) -> str:
    parts = [foreign(facts.name) if facts.name else "name not known"]
    if facts.capacity_bytes is not None:
        parts.append(format_bytes(facts.capacity_bytes))
    if facts.memory_limit_bytes is not None:
        parts.append(f"limit {format_bytes(facts.memory_limit_bytes)}")
    if facts.nvml_index is not None:
        parts.append(f"NVML's index {facts.nvml_index}")
    if facts.uuid:
        parts.append(foreign(facts.uuid))
    return ", ".join(parts)
