"""Words of a device's figures that the terminal's summary and the page share.

Owns: what is most known of a figure, what a recording lacks, and who else holds of the rest of the card. Must not know:
layout, HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpumem.analyses.summary import DeviceSummary, EndAndPeak
from gpumem.trace.allocators import settings_of
from gpumem.trace.model import TraceMeta
from gpumem.units import counted, format_bytes
from gpumem.vocabulary import TraceSource


def most(figures: EndAndPeak) -> int:
    """The peak, or the most that was recorded where the peak is not known."""
    return figures.peak if figures.peak is not None else figures.peak_recorded or 0


def settings_words(meta: TraceMeta, device: int) -> str:
    """The settings of a device's allocators, where not all of a recording's have the same; else nothing."""
    if len(settings_of(meta)) == 1:
        return ""
    named = (
        "not in the recording" if line is None else line or "PyTorch's default ones"
        for line in settings_of(meta, device)
    )
    return " and ".join(named)


def recording_sentences(meta: TraceMeta, shown: Callable[[str], str]) -> Iterator[str]:
    """What a reader of the figures must know of the recording; `shown` makes what comes from a trace fit to be seen."""
    if meta.history_truncated:
        yield (
            "The recording does not reach back to the program's start: what was most before it is not known, and the "
            "peaks here are the most since."
        )
    if meta.records_lost:
        yield f"{counted(meta.records_lost, 'event')} lost: the figures may be off by their bytes."
    if meta.stacks_off:
        yield shown(meta.stacks_off)
    yield from (shown(note) for note in meta.notes)
    if meta.source is TraceSource.NONE and not meta.notes:
        yield "No allocator was recorded: only NVML readings and marks."


def no_device_sentence(meta: TraceMeta) -> str:
    """What can be said of a trace in which there is no device."""
    if meta.source is TraceSource.NONE:
        return "Neither an allocator nor a reading of a device was recorded."
    return "No device was used: nothing was allocated."


def unrecorded_sentence(device: DeviceSummary, card: str) -> str:
    """What can be said of a device on which no allocator was recorded: NVML's figure of the process."""
    where = f"{card} (device {device.facts.device})"
    if device.nvml_process_bytes_peak is None:
        return f"What was allocated on {where} was not recorded."
    seen = format_bytes(device.nvml_process_bytes_peak)
    return f"What was allocated on {where} was not recorded; NVML saw this process hold {seen} of it at most."


def is_bound_by_limit(device: DeviceSummary) -> bool:
    """Whether the program's own limit, and not the card, is what headroom is counted to."""
    limit, capacity = device.facts.memory_limit_bytes, device.facts.capacity_bytes
    return limit is not None and (capacity is None or limit < capacity)


def others_clause(device: DeviceSummary) -> str:
    """`, 3.00 GiB of it held by other processes`, behind what is left of the card; empty where none is known."""
    if is_bound_by_limit(device) or device.nvml is None or not device.nvml.other_processes_bytes:
        return ""
    return f", {format_bytes(device.nvml.other_processes_bytes)} of it held by other processes"
