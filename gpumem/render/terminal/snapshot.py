"""The heap at a moment: each segment as a bar with its blocks, next to the NVML reading.

Owns: the layout of `gpumem snapshot`. Must not know: how a heap is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        lines.append(f"At {instant_text(snapshot.instant.time_ns, snapshot.instant.event)}: {held}.")
    return theme.join_lines(lines)


def _device_lines(snapshot: HeapSnapshot, device: DeviceSnapshot, page: Page, top: int) -> Iterator[Text | str]:
    instant = snapshot.instant
    if device.oom_verdict is not None:
        yield from verdict_report(device.oom_verdict, page, recording=snapshot.path)
        yield ""
    verdict = _verdict(instant, device) if snapshot.is_recorded else _not_recorded(instant, device)
    for line in theme.wrap(verdict, page.width):
        yield Text(line, style=theme.TITLE)
    if device.nvml is not None:
        for line in theme.wrap(_nvml(instant, device.nvml), page.width, indent="  "):
            yield Text(line)
    if device.segments:
        yield ""
        yield from _segment_table(device, page, top)
    if device.unplaced_blocks:
        yield ""
        count = len(device.unplaced_blocks)
        lie = "lies" if count == 1 else "lie"
        said = f"{counted(count, 'block')} {lie} in segments that the recording does not know."
        yield Text(said, style=theme.WARNING)


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


def _layout(device: DeviceSnapshot, page: Page) -> _Layout:
    handles = dict.fromkeys(segment.stream for segment in _largest_first(device.segments))
    streams: dict[int, str] = {}
    if set(handles) - {0}:
        others = [handle for handle in handles if handle]
        streams = {handle: f"s{number}" for number, handle in enumerate(others, start=1)} | {0: "default"}
    pools = any(segment.pool is not None for segment in device.segments)
    expandable = any(segment.expandable for segment in device.segments)
    facts = _ADDRESS_WIDTH + _BYTES_WIDTH + _SHARE_WIDTH + _COUNT_WIDTH
    places = bool(streams) + pools
    facts += _PLACE_WIDTH * places + (5 if expandable else 0)
    room = page.width - facts - 2
    if room >= _BAR_WIDTH_LEAST:
        return _Layout(streams, pools, expandable, room, _PLACE_WIDTH)
    return _Layout(streams, pools, expandable and not places, 0, _PLACE_WIDTH - 1)


def _largest_first(segments: Sequence[SegmentFinding]) -> list[SegmentFinding]:
    return sorted(segments, key=lambda segment: (-segment.segment_bytes, segment.address))


def _segment_table(device: DeviceSnapshot, page: Page, top: int) -> Iterator[Text]:
    layout = _layout(device, page)
    used = "in use" if all(segment.tiled for segment in device.segments) else "asked"
    header = fit_left("segment", _ADDRESS_WIDTH) + fit_right("bytes", _BYTES_WIDTH) + fit_right(used, _SHARE_WIDTH)
    header += fit_right("blocks", _COUNT_WIDTH)
    header += fit_right("stream", layout.place_width) if layout.streams else ""
    header += fit_right("pool", layout.place_width) if layout.pools else ""
    header += fit_right("exp", 5) if layout.expandable else ""
    yield Text(header, style=theme.QUIET)
    ordered = _largest_first(device.segments)
    rows = [_segment_row(segment, layout, page) for segment in ordered[:top]]
    yield from rows
    rest = ordered[top:]
    if rest:
        more = format_bytes(sum(segment.segment_bytes for segment in rest))
        yield Text(f"{counted(len(rest), 'more segment')}, {more}; --top {len(ordered)} shows all", style=theme.QUIET)
    bars = "".join(row.plain[-layout.bar_width :] for row in rows) if layout.bar_width else ""
    legend = _legend(device, layout, page, bars)
    if legend:
        yield Text("")
    for line in theme.wrap_items(legend, page.width):
        yield Text(line, style=theme.QUIET)


def _segment_row(segment: SegmentFinding, layout: _Layout, page: Page) -> Text:
    used = segment.requested_bytes if segment.allocated_bytes is None else segment.allocated_bytes
    row = Text(fit_left(f"{segment.address:#x}", _ADDRESS_WIDTH))
    row.append(fit_right(format_bytes(segment.segment_bytes), _BYTES_WIDTH), style=theme.FIGURE)
    row.append(fit_right(format_share(used, segment.segment_bytes), _SHARE_WIDTH))
    row.append(fit_right(format_count(segment.allocated_count + segment.pending_count), _COUNT_WIDTH))
    if layout.streams:
        row.append(fit_right(layout.streams[segment.stream], layout.place_width))
    if layout.pools:
        pool = "-" if segment.pool is None else f"({segment.pool[0]}, {segment.pool[1]})"
        row.append(fit_right(pool, layout.place_width))
    if layout.expandable:
        row.append(fit_right("yes" if segment.expandable else "-", 5))
    if not layout.bar_width:
        return row
    row.append("  ")
    for character, style in _bar(segment, layout.bar_width, page):
        row.append(character, style=style)
    return row


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
