"""The summary as one screen a device: the verdict, the figures, who held the peak.

Owns: the layout of `gpumem summary`. Must not know: how figures are found. No arithmetic beyond layout.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from rich.cells import cell_len
from rich.text import Text

from gpumem.analyses.summary import DeviceSummary, EndAndPeak, TraceSummary
from gpumem.heap.figures import HeapFigures
from gpumem.render.oom_words import verdict_text
from gpumem.render.summary_words import (
    is_bound_by_limit,
    most,
    no_device_sentence,
    others_clause,
    recording_sentences,
    settings_words,
    unrecorded_sentence,
)
from gpumem.render.terminal import theme
from gpumem.render.terminal.holders import holder_lines
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import device_phrase, ending_sentence, instant_text, printable, without_folders
from gpumem.units import counted, format_bytes, format_count, format_duration, format_share
from gpumem.vocabulary import Basis, EventIndex

DEFAULT_TOP = 6
_BYTES_WIDTH = 11
_SHARE_WIDTH = 8
_LABEL_WIDTH = 24
_REASON_WIDTH_LEAST = 36
"""Of why NVML did not tell a figure."""
_RANKS_WIDTH = 58
"""A narrower page leaves the shares out of the table of traces; each trace's own part has them."""
_ROUNDED = "in blocks, rounded up"
_PENDING = "with pending blocks"
_AT_END = "its word at the end"


def render_summaries(summaries: Sequence[TraceSummary], page: Page, *, top: int = DEFAULT_TOP) -> Text:
    """The summaries one below the other; several begin with a table of the processes."""
    lines: list[Text | str] = []
    if len(summaries) > 1:
        lines.extend(_rank_table(summaries, page))
    for summary in summaries:
        if lines:
            lines.append("")
        lines.extend(_summary_lines(summary, page, top))
    return theme.join_lines(lines)


def _summary_lines(summary: TraceSummary, page: Page, top: int) -> Iterator[Text | str]:
    for line in _headline(summary, page):
        yield Text(line, style=theme.QUIET)
    for note in _notes(summary):
        for line in theme.wrap(note, page, indent="  "):
            yield Text(line, style=theme.WARNING)
    if not summary.devices:
        yield from map(Text, theme.wrap(no_device_sentence(summary.meta), page))
    is_whole = summary.start is None and summary.end is None
    for number, device in enumerate(summary.devices):
        if number:
            yield ""
        chosen = f" --device {device.facts.device}" if len(summary.devices) > 1 else ""
        yield from _device_lines(device, page, top, summary, chosen, is_whole=is_whole)


def _headline(summary: TraceSummary, page: Page) -> list[str]:
    meta = summary.meta
    rest = [f"{counted(summary.events, 'event')} in {format_duration(meta.duration_ns)}"]
    if meta.rank is not None:
        rest.insert(0, f"rank {meta.rank}")
    if "torch" in meta.versions:
        rest.append(f"PyTorch {printable(meta.versions['torch'])}")
    program, path = printable(without_folders(meta.program)), printable(summary.path)
    if program and cell_len(f" {page.glyphs.dot} ".join([path, program, *rest])) <= page.width:
        rest.insert(0, program)
    return theme.head_lines(path, rest, page)


def _notes(summary: TraceSummary) -> Iterator[str]:
    meta = summary.meta
    if summary.start is not None or summary.end is not None:
        yield f"Only {_window_text(summary)}: counts and peaks are those of this part, 'end' is its end."
    if meta.running:
        yield "The program is still running: the figures are those of the events so far."
    elif ended := ending_sentence(meta.ended_by):
        yield ended
    yield from recording_sentences(meta, printable)


def _window_text(summary: TraceSummary) -> str:
    start = "the start" if summary.start is None else _at(summary.start.time_ns, summary.start.event)
    end = "the end" if summary.end is None else _at(summary.end.time_ns, summary.end.event)
    return f"from {start} to {end}"


def _at(time_ns: int, event: EventIndex) -> str:
    if event < 0:
        return instant_text(time_ns, event)
    return f"{format_duration(time_ns)} (event {format_count(event)})"


def _device_lines(
    device: DeviceSummary, page: Page, top: int, summary: TraceSummary, chosen: str, *, is_whole: bool
) -> Iterator[Text | str]:
    """The device's part; PyTorch's own figures are those of a whole run, and say nothing of a part of it.

    `chosen`: the flag that chooses the device, where there are several.
    """
    for line in theme.wrap(_verdict(device), page):
        yield Text(line, style=theme.TITLE)
    if device.is_recorded or device.nvml is not None:
        yield ""
        shown = device if is_whole else replace(device, torch_allocated_bytes=None, torch_reserved_bytes=None)
        yield from _figure_table(shown, page)
    if not device.is_recorded:
        return
    yield from _heap_facts(device, page)
    yield theme.fact("segments", _segment_facts(device), page)
    if settings := settings_words(summary.meta, device.facts.device):
        yield theme.fact("settings", printable(settings), page)
    yield from _oom_facts(device, page, summary.path, chosen)
    if device.alloc_count or device.peak.held_bytes:
        yield ""
        yield from holder_lines(device.peak, page, top)


def _card(device: DeviceSummary) -> str:
    return device_phrase(device.facts.name, device.facts.device)


def _verdict(device: DeviceSummary) -> str:
    peak = device.peak
    card, capacity = _card(device), device.facts.capacity_bytes
    if not device.is_recorded:
        return unrecorded_sentence(device, card)
    if not peak.held_bytes and not most(device.reserved_bytes):
        return f"Nothing was allocated on {card} (device {device.facts.device})."
    word = "allocated" if peak.basis is Basis.ALLOCATED else "requested"
    step = f" in step {peak.step}" if peak.step is not None else ""
    when = f"at {format_duration(peak.instant.time_ns)}" if peak.instant.event >= 0 else "at the start"
    event = f", event {format_count(peak.instant.event)}" if peak.instant.event >= 0 else ""
    what = "Peak" if device.reserved_bytes.peak is not None else "At least"
    text = f"{what} {format_bytes(peak.held_bytes)} {word}{step} ({when}{event})"
    if capacity:
        text += f", {format_share(peak.held_bytes, capacity)} of {card}'s {format_bytes(capacity)}"
    else:
        text += f" on {card}"
    return f"{text}; {_headroom(device)}."


def _headroom(device: DeviceSummary) -> str:
    """What is left above the most that was reserved."""
    reserved = format_bytes(most(device.reserved_bytes))
    if device.reserved_bytes.peak is None:
        return f"{reserved} reserved at most since recording began"
    headroom = device.headroom_bytes
    if headroom is None:
        return f"{reserved} reserved at most"
    limit = device.facts.memory_limit_bytes or 0
    bound = f"its limit of {format_bytes(limit)}" if is_bound_by_limit(device) else "that"
    if headroom < 0:
        return f"{reserved} reserved at most, {format_bytes(-headroom)} above {bound}"
    return f"{reserved} reserved at most, which leaves {format_bytes(headroom)} of {bound}{others_clause(device)}"


def _figure_table(device: DeviceSummary, page: Page) -> Iterator[Text]:
    capacity = device.facts.capacity_bytes
    label = f"device {device.facts.device}" + (f" (NVML {device.facts.nvml_index})" if _renumbered(device) else "")
    head = Text(
        fit_right("end", _BYTES_WIDTH)
        + fit_right("at least" if device.reserved_bytes.peak_recorded is not None else "peak", _BYTES_WIDTH + 1)
        + (fit_right("of card", _SHARE_WIDTH + 2) if capacity else "")
    )
    for line in theme.labelled(label, _LABEL_WIDTH, head, page):
        line.stylize(theme.QUIET)
        yield line
    is_told_by_torch_alone = device.allocated_bytes is None
    rows: list[tuple[str, EndAndPeak | None, str]] = [
        ("requested", device.requested_bytes, "what was asked for"),
        ("allocated", device.allocated_bytes, _ROUNDED),
        ("active", device.active_bytes if device.active_bytes != device.allocated_bytes else None, _PENDING),
        ("reserved", device.reserved_bytes, "held from the driver"),
        ("PyTorch said: allocated", device.torch_allocated_bytes, _ROUNDED if is_told_by_torch_alone else _AT_END),
        ("PyTorch said: reserved", device.torch_reserved_bytes, _AT_END),
    ]
    said = _said_the_same(device)
    for name, figures, remark in rows[:4] if said else rows:
        if figures is not None and figures != EndAndPeak(None, None):
            yield from _figure_row(name, figures, capacity, remark, page)
    yield from _nvml_rows(device, page)
    yield from (Text(said_line, style=theme.QUIET) for said_line in (theme.wrap(said, page) if said else ()))


def _said_the_same(device: DeviceSummary) -> str:
    """That PyTorch's own figures are these, where all are; else ""."""
    allocated, reserved = device.torch_allocated_bytes, device.torch_reserved_bytes
    if allocated is None or reserved is None:
        return ""
    if allocated != device.allocated_bytes or reserved != device.reserved_bytes:
        return ""
    return f"PyTorch said the same at the end: allocated peak {_bytes_or_dash(allocated.peak)}"


def _renumbered(device: DeviceSummary) -> bool:
    return device.facts.nvml_index is not None and device.facts.nvml_index != device.facts.device


def _figure_row(name: str, figures: EndAndPeak, capacity: int | None, remark: str, page: Page) -> Iterator[Text]:
    peak = figures.peak if figures.peak is not None else figures.peak_recorded
    share = format_share(peak, capacity) if capacity and peak is not None else ""
    row = Text(fit_right(_bytes_or_dash(figures.end), _BYTES_WIDTH))
    row.append(fit_right(_bytes_or_dash(peak), _BYTES_WIDTH + 1), style=theme.FIGURE)
    if capacity:
        row.append(fit_right(share, _SHARE_WIDTH + 2))
    if remark and _LABEL_WIDTH + row.cell_len + 2 + len(remark) <= page.width:
        row.append(f"  {remark}", style=theme.QUIET)
    return theme.labelled(name, _LABEL_WIDTH, row, page)


def _bytes_or_dash(byte_count: int | None) -> str:
    return "-" if byte_count is None else format_bytes(byte_count)


def _nvml_rows(device: DeviceSummary, page: Page) -> Iterator[Text]:
    if device.nvml is None:
        return
    remark = "at the peak or near" if device.is_recorded else "when it held the most"
    for name, field in (
        ("NVML: this process", "process_bytes"),
        ("NVML: other processes", "other_processes_bytes"),
        ("NVML: free on the card", "free_bytes"),
    ):
        value = getattr(device.nvml, field)
        if value is not None:
            end = None if device.nvml_end is None else getattr(device.nvml_end, field)
            yield from _figure_row(name, EndAndPeak(end, value), device.facts.capacity_bytes, remark, page)
            remark = ""
        elif device.nvml.unavailable:
            reason = device.nvml.unavailable.get(field, "no reason given")
            room = max(page.width - _LABEL_WIDTH, _REASON_WIDTH_LEAST) - 3
            said = Text("   ").append(
                theme.shorten(f"not available: {printable(reason)}", room, page.glyphs.ellipsis), style=theme.QUIET
            )
            yield from theme.labelled(name, _LABEL_WIDTH, said, page)


def _heap_facts(device: DeviceSummary, page: Page) -> Iterator[Text]:
    """How the reserved bytes are used at the peak and at the end, and how the cache served."""
    if device.heap_peak is not None:
        yield theme.fact("at the peak", _heap_text(device.heap_peak), page)
    if device.heap_end is not None:
        yield theme.fact("at the end", _heap_text(device.heap_end), page)
    cache = device.cache
    if cache is not None and device.alloc_count:
        garbage = cache.garbage_collection_count
        collected = f", {counted(garbage, 'garbage collection')}" if garbage else ""
        retries = "1 retry" if cache.retry_count == 1 else f"{format_count(cache.retry_count)} retries"
        served = f"served {format_count(cache.hit_count)} of {counted(device.alloc_count, 'alloc')}"
        share = format_share(cache.hit_count, device.alloc_count)
        splits = counted(cache.split_count, "split")
        yield theme.fact("cache", f"{served} ({share}), {splits}, {retries}{collected}", page)


def _heap_text(heap: HeapFigures) -> str:
    slack = f"slack {format_bytes(heap.slack_bytes)}"
    pending = f", pending {format_bytes(heap.pending_bytes)}" if heap.pending_bytes else ""
    if not heap.idle_bytes:
        return f"{slack}{pending}, nothing idle"
    largest = heap.largest_free
    pools = [("large", largest.large_bytes), ("small", largest.small_bytes), ("private", largest.private_bytes)]
    blocks = ", ".join(f"{format_bytes(byte_count)} {name}" for name, byte_count in pools if byte_count)
    return (
        f"{slack}{pending}, idle {format_bytes(heap.idle_bytes)}: {format_bytes(heap.releasable_bytes)} releasable, "
        f"{format_bytes(heap.gap_bytes)} gaps; largest free {blocks}"
    )


def _segment_facts(device: DeviceSummary) -> str:
    grown = shrunk = ""
    if device.segment_map_count:
        grown = f" (expandable ones grew {counted(device.segment_map_count, 'time')})"
    if device.segment_unmap_count:
        shrunk = f" ({'they' if grown else 'expandable ones'} shrank {counted(device.segment_unmap_count, 'time')})"
    return (
        f"{format_count(device.segment_alloc_count)} obtained{grown}, {format_count(device.segment_free_count)} "
        f"returned{shrunk}, for {counted(device.alloc_count, 'alloc')} and {counted(device.free_count, 'free')}"
    )


def _oom_facts(device: DeviceSummary, page: Page, path: str, chosen: str) -> Iterator[Text]:
    if not device.oom_count:
        yield theme.fact("out of memory", "never", page)
    shown = device.ooms[:3]
    for oom in shown:
        limit_bytes = oom.limit_bytes or device.facts.memory_limit_bytes
        limit = f", PyTorch's limit being {format_bytes(limit_bytes)}" if limit_bytes else ""
        text = (
            f"at {format_duration(oom.time_ns)}, event {format_count(oom.event)}: asked "
            f"{format_bytes(oom.requested_bytes)} with {format_bytes(oom.free_bytes)} free on the card{limit}"
        )
        if oom is device.ooms[0] and device.oom_verdict is not None:
            text = f"at {format_duration(oom.time_ns)}, event {format_count(oom.event)}. "
            text += verdict_text(device.oom_verdict)
        line = theme.fact("out of memory", text, page)
        line.stylize(theme.ERROR)
        yield line
    if device.oom_count > len(shown):
        yield theme.fact("", f"and {counted(device.oom_count - len(shown), 'more time')}", page)
    if device.oom_verdict is not None:
        yield _what_to_do(shlex.quote(printable(path)), chosen, page)


def _what_to_do(path: str, chosen: str, page: Page) -> Text:
    """The next command, and that for a page too where the line has room."""
    command, report, between = f"gpumem snapshot {path} --at oom{chosen}", f"gpumem report {path}", "; on one page: "
    first, *below = theme.pasted(fit_left("what to do", theme.FACT_WIDTH - 1), command, page)
    line = Text(first.rstrip())
    for one in below:
        line.append(f"\n{one}")
    line.stylize(theme.COMMAND, len(line) - len(command))
    if not below and cell_len(first + between + report) <= page.width:
        line.append(between, style=theme.QUIET).append(report, style=theme.COMMAND)
    return line


def _rank_table(summaries: Sequence[TraceSummary], page: Page) -> Iterator[Text]:
    recorded = [device for summary in summaries for device in summary.devices if device.is_recorded]
    is_known = all(device.allocated_bytes is not None for device in recorded)
    held = "allocated" if is_known else "requested"
    has_ranks = any(summary.meta.rank is not None for summary in summaries)
    head = theme.rank_cell("rank", is_shown=has_ranks) + fit_right("device", 8) + fit_right(held, 12)
    has_share = page.width >= _RANKS_WIDTH
    head += fit_right("reserved", 12) + (fit_right("of card", 9) if has_share else "")
    of = theme.fitting(page.width - len(head) - 2, "trace (figures are peaks)", "trace (peaks)", "")
    yield Text(f"{head}  {of}".rstrip(), style=theme.QUIET)
    for summary in summaries:
        rank = theme.rank_cell(summary.meta.rank, is_shown=has_ranks)
        for device in summary.devices:
            reserved, capacity = most(device.reserved_bytes), device.facts.capacity_bytes or 0
            held_bytes = most(device.allocated_bytes if is_known and device.allocated_bytes else device.requested_bytes)
            row = rank + fit_right(str(device.facts.device), 8)
            figures = (format_bytes(held_bytes), format_bytes(reserved), format_share(reserved, capacity))
            held_text, reserved_text, share = figures if device.is_recorded else ("-", "-", "-")
            row += fit_right(held_text, 12) + fit_right(reserved_text, 12) + (fit_right(share, 9) if has_share else "")
            yield from theme.named(Text(row), partial(theme.trace_name, summary.path), theme.NAME_WIDTH_LEAST, page)
