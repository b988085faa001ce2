"""Running processes in the terminal: each device with who holds it, then what is odd, each with the command to look.

Owns: the layout of `gpumem explain` without a trace. Must not know: how anything was found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from gpumem.analyses.live import Holder, LiveDevice, LiveExplanation
from gpumem.nvml import Unavailable
from gpumem.render.live_text import live_finding_next, live_finding_text, state_text
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_share

_PID_WIDTH = 9
_BYTES_WIDTH = 12
_SHARE_WIDTH = 9
_USER_WIDTH = 10
_STATE_WIDTH = 10
_COMMAND_WIDTH_LEAST = 10
_WIDTH_WITH_SHARE = 44
"""A narrower page leaves out the share of the card that the bytes are."""
_WIDTH_WITH_USER = 72
"""A narrower page leaves out who owns a process, so that its command can be told."""


def render_live(live: LiveExplanation, page: Page) -> Text:
    """The devices, one below the other, then the findings."""
    lines: list[Text | str] = []
    for line in theme.wrap(_verdict(live), page):
        lines.append(Text(line, style=theme.TITLE))
    for device in live.devices:
        lines.append("")
        lines.extend(_device_lines(device, page))
    if live.findings:
        lines.append("")
    lines.extend(_finding_lines(live, page))
    return theme.join_lines(lines)


def _verdict(live: LiveExplanation) -> str:
    driver = f", driver {printable(live.driver_version)}" if live.driver_version else ""
    if live.pid is not None:
        command = "" if live.process is None else f" ({_command(live.process.command, live.process.name)})"
        held = ", ".join(
            f"{_figure(holder.held_bytes)} of device {device.now.device.number}"
            for device in live.devices
            for holder in device.holders
        )
        return f"Process {live.pid}{command} holds {held or 'nothing that NVML lists'}{driver}."
    pids = {holder.pid for device in live.devices for holder in device.holders}
    holders = "1 process" if len(pids) == 1 else f"{len(pids)} processes"
    held_bytes = [device.listed_bytes for device in live.devices]
    known = [figure for figure in held_bytes if figure is not None]
    held = f"{format_bytes(sum(known))} held by {holders}" if pids else "no process is listed"
    if len(known) < len(held_bytes):
        held = f"{holders} listed, not all with their bytes"
    instances = sum(device.now.device.instance is not None for device in live.devices)
    gpus = counted(len({device.now.device.index for device in live.devices}), "GPU")
    split = f" with {counted(instances, 'MIG instance')}" if instances else ""
    return f"{gpus}{split}{driver}: {held}."


def _figure(held_bytes: int | None) -> str:
    return "hidden bytes" if held_bytes is None else format_bytes(held_bytes)


def _device_lines(device: LiveDevice, page: Page) -> Iterator[Text | str]:
    now = device.now
    known = now.memory.total_bytes
    card_bytes = None if isinstance(known, Unavailable) else known
    name = printable(now.device.name)
    name += "" if card_bytes is None else f", {format_bytes(card_bytes)}"
    parts = [
        ("used", now.memory.used_bytes),
        ("free", now.memory.free_bytes),
        ("driver's reserve", now.memory.reserved_bytes),
    ]
    said = [f"{word} {'not available' if isinstance(one, Unavailable) else format_bytes(one)}" for word, one in parts]
    if device.unlisted_bytes is not None:
        said[0] += f" ({format_bytes(device.unlisted_bytes)} of no process)"
    for line in theme.wrap(f"device {now.device.number}: {name}: {', '.join(said)}", page, indent="  "):
        yield Text(line)
    if isinstance(now.listed, Unavailable):
        return
    if not device.holders:
        yield Text("  no process is listed", style=theme.QUIET)
        return
    head = _row(page, "pid", "bytes", "of card", "user", "state")
    yield Text(head + ("command" if page.width - len(head) >= _COMMAND_WIDTH_LEAST else ""), style=theme.QUIET)
    for holder in device.holders:
        yield from _holder_row(holder, card_bytes, page)


def _row(page: Page, pid: str, held: str, share: str, user: str, state: str) -> str:
    left = fit_right(pid, _PID_WIDTH) + fit_right(held, _BYTES_WIDTH)
    left += fit_right(share, _SHARE_WIDTH) if page.width >= _WIDTH_WITH_SHARE else ""
    user = fit_left(user, _USER_WIDTH) if page.width >= _WIDTH_WITH_USER else ""
    return f"{left}  {user}{fit_left(state, _STATE_WIDTH)}"


def _holder_row(holder: Holder, card_bytes: int | None, page: Page) -> Iterator[Text]:
    process = holder.process
    held = "hidden" if holder.held_bytes is None else format_bytes(holder.held_bytes)
    share = format_share(holder.held_bytes, card_bytes) if card_bytes and holder.held_bytes is not None else "-"
    user = "?" if process is None else theme.shorten(printable(process.user), _USER_WIDTH - 1, page.glyphs.ellipsis)
    state = "?" if process is None else state_text(process.state)
    command = "(not visible from here)" if process is None else _command(process.command, process.name)
    if process is not None and process.container is not None:
        command = f"[{process.container}] {command}"
    left = _row(page, str(holder.pid), held, share, user, "left over" if holder.is_left_behind else state)
    room = page.width - cell_len(left)
    if room >= _COMMAND_WIDTH_LEAST:
        yield Text(left + theme.shorten(command, room, page.glyphs.ellipsis))
    else:
        yield Text(left.rstrip())
        yield Text("    " + theme.shorten(command, page.width - 4, page.glyphs.ellipsis))


def _command(words: Sequence[str], name: str) -> str:
    return printable(shlex.join(words) if words else f"[{name}]")


def _finding_lines(live: LiveExplanation, page: Page) -> Iterator[Text]:
    for finding in live.findings:
        for line in theme.wrap(f"{page.glyphs.dot} {live_finding_text(finding)}", page, indent="  "):
            yield Text(theme.shorten(line, page.width, page.glyphs.ellipsis))
        command = live_finding_next(finding)
        if command is not None:
            yield Text(f"    {command}", style=theme.COMMAND)
