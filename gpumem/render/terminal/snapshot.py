"""The heap at a moment: each segment as a bar with its blocks, next to the NVML reading.

Owns: the layout of `gpumem snapshot`. Must not know: how a heap is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from gpumem.analyses.snapshot import DeviceSnapshot, HeapSnapshot, SegmentFinding
from gpumem.heap.instants import Instant
from gpumem.render.terminal import theme
from gpumem.render.terminal.oom import verdict_report
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import device_phrase, instant_text, printable
from gpumem.trace.model import Reading
from gpumem.units import counted, format_bytes, format_count, format_duration, format_share
from gpumem.vocabulary import BlockState

DEFAULT_TOP = 12
_ADDRESS_WIDTH = 14
_BYTES_WIDTH = 12
_SHARE_WIDTH = 9
_COUNT_WIDTH = 8
_PLACE_WIDTH = 9
_BAR_WIDTH_LEAST = 10


def render_snapshot(snapshot: HeapSnapshot, page: Page, *, top: int = DEFAULT_TOP) -> Text:
    """Each device's segments, largest first."""
    lines: list[Text | str] = []
    for device in snapshot.devices:
        if lines:
            lines.append("")
        lines.extend(_device_lines(snapshot, device, page, top))
    if not snapshot.devices:
        held = "no segment was held on any device" if snapshot.is_recorded else "no allocator was recorded"
        said = f"At {instant_text(snapshot.instant.time_ns, snapshot.instant.event)}: {held}."
        lines.extend(theme.wrap(said, page))
    return theme.join_lines(lines)


def _device_lines(snapshot: HeapSnapshot, device: DeviceSnapshot, page: Page, top: int) -> Iterator[Text | str]:
    instant = snapshot.instant
    if device.oom_verdict is not None:
        yield from verdict_report(device.oom_verdict, page, recording=snapshot.path)
        yield ""
    verdict = _verdict(instant, device) if snapshot.is_recorded else _not_recorded(instant, device)
    for line in theme.wrap(verdict, page):
        yield Text(line, style=theme.TITLE)
    if device.nvml is not None:
        for line in theme.wrap(_nvml(instant, device.nvml), page, indent="  "):
            yield Text(line)
    if device.segments:
        yield ""
        yield from _segment_table(device, page, top)
    if device.unplaced_blocks:
        yield ""
        count = len(device.unplaced_blocks)
        lie = "lies" if count == 1 else "lie"
        said = f"{counted(count, 'block')} {lie} in segments that the recording does not know."
        for line in theme.wrap(said, page):
            yield Text(line, style=theme.WARNING)


def _not_recorded(instant: Instant, device: DeviceSnapshot) -> str:
    name = device_phrase(device.facts.name, device.facts.device)
    return f"At {instant_text(instant.time_ns, instant.event)}: no allocator was recorded on {name}."


def _verdict(instant: Instant, device: DeviceSnapshot) -> str:
    facts = device.facts
    name = device_phrase(facts.name, facts.device)
    blocks = sum(segment.allocated_count for segment in device.segments) + len(device.unplaced_blocks)
    card = f" of {name}'s {format_bytes(facts.capacity_bytes)}" if facts.capacity_bytes else f" on {name}"
    share = f", {format_share(device.reserved_bytes, facts.capacity_bytes)}" if facts.capacity_bytes else ""
    held = f"{format_bytes(device.requested_bytes)} requested in {counted(blocks, 'block')}"
    if device.allocated_bytes is not None:
        asked = f"{format_bytes(device.requested_bytes)} requested"
        held = f"{format_bytes(device.allocated_bytes)} allocated in {counted(blocks, 'block')} ({asked})"
    return (
        f"At {instant_text(instant.time_ns, instant.event)}: {held}, "
        f"{format_bytes(device.reserved_bytes)} reserved in {counted(len(device.segments), 'segment')}{share}{card}."
    )


def _nvml(instant: Instant, reading: Reading) -> str:
    apart = reading.time_ns - instant.time_ns
    when = "then" if not apart else f"{format_duration(abs(apart))} {'later' if apart > 0 else 'earlier'}"
    parts = []
    for name, field in (("this process", "process_bytes"), ("other processes", "other_processes_bytes")):
        parts.append(f"{name} {_figure(reading, field)}")
    of_card = ""
    if reading.total_bytes is not None:
        # Without the driver's reserve: what CUDA counts as the card, as all the other shares do.
        of_card = f" of {format_bytes(reading.total_bytes - (reading.reserved_bytes or 0))}"
    parts.append(f"free {_figure(reading, 'free_bytes')}{of_card}")
    return f"NVML {when}: {', '.join(parts)}."


def _figure(reading: Reading, field: str) -> str:
    value = getattr(reading, field)
    if value is not None:
        return format_bytes(value)
    reason = reading.unavailable.get(field)
    return f"not available ({printable(reason)})" if reason else "not available"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns a table needs: streams, pools and the expandable mark only where segments differ in them."""

    streams: dict[int, str]
    pools: bool
    expandable: bool
    bar_width: int
    """0 on a page too narrow for bars beside these columns."""
    place_width: int
    """Of the stream and the pool."""
    address_width: int
    has_second_line: bool = False
    """Whether the page is so narrow that all but a segment's bytes stands in words below it."""


def _layout(device: DeviceSnapshot, page: Page) -> _Layout:
    handles = dict.fromkeys(segment.stream for segment in _largest_first(device.segments))
    streams: dict[int, str] = {}
    if set(handles) - {0}:
        others = [handle for handle in handles if handle]
        streams = {handle: f"s{number}" for number, handle in enumerate(others, start=1)} | {0: "default"}
    pools = any(segment.pool is not None for segment in device.segments)
    expandable = any(segment.expandable for segment in device.segments)
    address_width = max(_ADDRESS_WIDTH, *(len(f"{segment.address:#x}") for segment in device.segments))
    facts = address_width + _BYTES_WIDTH + _SHARE_WIDTH + _COUNT_WIDTH
    places = bool(streams) + pools
    place_width = max(_PLACE_WIDTH, *(len(_pool(segment)) + 2 for segment in device.segments))
    facts += place_width * places + (5 if expandable else 0)
    layout = _Layout(streams, pools, expandable, page.width - facts - 2, place_width, address_width)
    if layout.bar_width >= _BAR_WIDTH_LEAST:
        return layout
    without = replace(layout, bar_width=0, place_width=place_width - 1, expandable=expandable and not places)
    facts -= places + (5 if without.expandable != expandable else 0)
    return without if facts <= page.width else replace(without, has_second_line=True)


def _largest_first(segments: Sequence[SegmentFinding]) -> list[SegmentFinding]:
    return sorted(segments, key=lambda segment: (-segment.segment_bytes, segment.address))


def _segment_table(device: DeviceSnapshot, page: Page, top: int) -> Iterator[Text]:
    layout = _layout(device, page)
    used = "in use" if all(segment.tiled for segment in device.segments) else "asked"
    header = fit_left("segment", layout.address_width) + fit_right("bytes", _BYTES_WIDTH)
    header += fit_right(used, _SHARE_WIDTH)
    if not layout.has_second_line:
        header += fit_right("blocks", _COUNT_WIDTH)
        header += fit_right("stream", layout.place_width) if layout.streams else ""
        header += fit_right("pool", layout.place_width) if layout.pools else ""
        header += fit_right("exp", 5) if layout.expandable else ""
    yield Text(header, style=theme.QUIET)
    ordered = _largest_first(device.segments)
    rows = [_segment_row(segment, layout, page) for segment in ordered[:top]]
    for segment, row in zip(ordered, rows, strict=False):
        yield row
        if layout.has_second_line:
            yield from (Text(line) for line in _second_line(segment, layout, page))
    rest = ordered[top:]
    if rest:
        more = format_bytes(sum(segment.segment_bytes for segment in rest))
        said = f"{counted(len(rest), 'more segment')}, {more}; --top {len(ordered)} shows all"
        yield from (Text(line, style=theme.QUIET) for line in theme.wrap(said, page, indent=theme.INDENT))
    bars = "".join(row.plain[-layout.bar_width :] for row in rows) if layout.bar_width else ""
    legend = _legend(device, layout, page, bars)
    if legend:
        yield Text("")
    for line in theme.wrap_items(legend, page):
        yield Text(line, style=theme.QUIET)


def _segment_row(segment: SegmentFinding, layout: _Layout, page: Page) -> Text:
    used = segment.requested_bytes if segment.allocated_bytes is None else segment.allocated_bytes
    row = Text(fit_left(f"{segment.address:#x}", layout.address_width))
    row.append(fit_right(format_bytes(segment.segment_bytes), _BYTES_WIDTH), style=theme.FIGURE)
    row.append(fit_right(format_share(used, segment.segment_bytes), _SHARE_WIDTH))
    if layout.has_second_line:
        return row
    row.append(fit_right(format_count(segment.allocated_count + segment.pending_count), _COUNT_WIDTH))
    if layout.streams:
        row.append(fit_right(layout.streams[segment.stream], layout.place_width))
    if layout.pools:
        row.append(fit_right(_pool(segment), layout.place_width))
    if layout.expandable:
        row.append(fit_right("yes" if segment.expandable else "-", 5))
    if not layout.bar_width:
        return row
    row.append("  ")
    for character, style in _bar(segment, layout.bar_width, page):
        row.append(character, style=style)
    return row


def _pool(segment: SegmentFinding) -> str:
    return "-" if segment.pool is None else f"({segment.pool[0]}, {segment.pool[1]})"


def _second_line(segment: SegmentFinding, layout: _Layout, page: Page) -> list[str]:
    """What the columns for which there is no room would say, in words."""
    said = [counted(segment.allocated_count + segment.pending_count, "block")]
    if layout.streams:
        said.append(f"stream {layout.streams[segment.stream]}")
    if segment.pool is not None:
        said.append(f"pool {_pool(segment)}")
    if segment.expandable:
        said.append("expandable")
    return theme.wrap_behind(theme.INDENT, ", ".join(said), page)


def _bar(segment: SegmentFinding, width: int, page: Page) -> Iterator[tuple[str, str]]:
    """One character a cell: what most of the cell's bytes are; neighbouring blocks alternate in shade."""
    glyphs = page.glyphs
    weights: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / max(1, segment.segment_bytes)
    number = 0
    for placed in segment.blocks:
        block = placed.block
        if block.state is BlockState.FREE:
            continue
        character = glyphs.pending if block.state is BlockState.PENDING else (glyphs.full, glyphs.dark)[number % 2]
        number += 1
        begin = (block.address - segment.address) * scale
        end = begin + (block.block_bytes or block.requested_bytes or 0) * scale
        for cell in range(int(begin), min(width, int(end) + 1)):
            covered = min(end, cell + 1) - max(begin, cell)
            weights[cell][character] = weights[cell].get(character, 0.0) + covered
    for weight in weights:
        held = sum(weight.values())
        if held < 0.5:
            yield (glyphs.light, theme.QUIET) if held < 0.125 else (glyphs.sparse, theme.REQUESTED)
        else:
            character = max(weight, key=lambda key: (weight[key], key))
            yield character, theme.WARNING if character == glyphs.pending else theme.REQUESTED


def _legend(device: DeviceSnapshot, layout: _Layout, page: Page, drawn: str) -> list[str]:
    """What the characters that were drawn mean."""
    streams = [f"{name} stream {handle:#x}" for handle, name in layout.streams.items() if handle]
    if not drawn:
        return streams
    glyphs = page.glyphs
    tiled = all(segment.tiled for segment in device.segments)
    parts = [f"{glyphs.full} {glyphs.dark} blocks in use, one after the other"]
    if glyphs.sparse in drawn:
        parts.append(f"{glyphs.sparse} mostly free")
    if glyphs.pending in drawn:
        parts.append(f"{glyphs.pending} pending (freed, another stream still uses it)")
    parts.append(f"{glyphs.light} free" if tiled else f"{glyphs.light} free, or a block's rounding (not recorded)")
    return parts + streams
