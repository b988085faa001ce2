"""A replay as one screen a device: the verdict, replayed and recorded figures side by side, what was not recorded.

Owns: the layout of `gpumem replay`. Must not know: how a run is followed. No arithmetic beyond layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.text import Text

from gpumem.analyses.oom import is_expandable_on
from gpumem.analyses.replay import DeviceReplay, ReplayFindings
from gpumem.analyses.replay_check import EventFacts, FirstDifference, HeapCheck, RunCheck
from gpumem.analyses.replay_limit import LimitSource, MemoryLimit
from gpumem.analyses.replay_what_if import CountRange, RefusedRequests, RunFigures, WhatIfFigures
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_bytes_apart, format_count, format_duration, format_share
from gpumem.vocabulary import EventKind

DEFAULT_TOP = 6
_LABEL_WIDTH = 28
_FIGURE_WIDTH = 18
_FIGURE_WIDTH_LEAST = 15
_REFUSED_WIDTH = 60
"""A narrower page leaves out when a site would first run out, so that the site can be told."""
_STACK_FRAMES_SHOWN = 6


def render_replay(findings: ReplayFindings, page: Page, *, top: int = DEFAULT_TOP) -> Text:
    """The devices one below the other."""
    facts = [counted(findings.events, "event"), _recorded_with(findings)]
    head = theme.head_lines(printable(findings.path), facts, page)
    lines: list[Text | str] = [Text(line, style=theme.QUIET) for line in head]
    if not findings.devices:
        lines.append("No allocator was recorded: there is nothing to replay.")
    for number, device in enumerate(findings.devices):
        if number:
            lines.append("")
        lines.extend(_device_lines(findings, device, page, top))
    return theme.join_lines(lines)


def _recorded_with(findings: ReplayFindings) -> str:
    lines = {device.recorded_settings for device in findings.devices} or {findings.meta.settings}
    if len(lines) > 1:
        return f"recorded with {len(lines)} lines of settings"
    return _recorded_line(lines.pop())


def _recorded_line(line: str | None) -> str:
    if line is None:
        return "settings not in the recording: PyTorch's defaults assumed"
    return f"recorded with {_settings(line)}"


def _name(device: DeviceReplay) -> str:
    """The device, and of several allocators on it which one."""
    name, number = f"device {device.facts.device}", device.allocator.number
    if device.allocator_count == 1:
        return name
    return f"{name} (PyTorch's allocator)" if number is None else f"{name} (gpumem's allocator {number})"


def _settings(line: str) -> str:
    return printable(line) or "PyTorch's default settings"


def _device_lines(findings: ReplayFindings, device: DeviceReplay, page: Page, top: int) -> Iterator[Text | str]:
    for line in theme.wrap(_verdict(findings, device), page):
        yield Text(line, style=theme.ERROR if findings.differs and device.check.exact is False else theme.TITLE)
    difference = device.check.first_difference
    if difference is not None:
        yield ""
        yield from _difference_lines(difference, page)
    yield ""
    yield from _figure_table(findings, device, page)
    yield from _facts(findings, device, page)
    if device.what_if is not None and device.what_if.refused_by_site:
        yield ""
        yield from _refused_table(device.what_if, device.request_count, page, top)


def _verdict(findings: ReplayFindings, device: DeviceReplay) -> str:
    if device.what_if is not None:
        return _what_if_verdict(findings, device, device.what_if)
    name, check = _name(device), device.check
    decisions = f"{format_count(check.decision_count)} of {format_count(check.event_count)}"
    if check.exact and not check.event_count:
        return f"Nothing was recorded on {name} that the allocator, run again, could be held to."
    if check.exact:
        return f"Exact on {name}: the allocator, run again, decides {decisions} recorded events to the byte."
    if check.exact is None:
        return f"The run on {name} cannot be followed. {printable(check.refusal or '')}"
    if check.first_difference is None:
        return f"All {decisions} decisions on {name} are as recorded, but the heap at the end is another."
    return (
        f"The replay of {name} parts from the recording at event {format_count(check.first_difference.event)} "
        f"({format_duration(check.first_difference.time_ns)}), after {counted(check.decision_count, 'decision')} to "
        f"the byte: {check.first_difference.reason}."
    )


def _what_if_verdict(findings: ReplayFindings, device: DeviceReplay, found: WhatIfFigures) -> str:
    tried = f"With {_tried(findings, device)}, {_name(device)}"
    if found.refused_count:
        refused = f"{format_count(found.refused_count)} of {counted(device.served_count_recorded, 'request')}"
        return f"{tried} would run out of memory in {refused} that were served when recorded."
    recorded, amount = device.recorded.reserved_bytes_peak, abs(found.saved_bytes)
    peak = f"at most {format_bytes(found.figures.reserved_bytes_peak)} reserved"
    if amount:
        word = "less" if found.saved_bytes > 0 else "more"
        peak += f", {format_bytes(amount)} ({format_share(amount, recorded)}) {word} than the recorded "
        peak += format_bytes(recorded)
    else:
        peak += ", as recorded"
    return f"{tried} would serve every request that was served when recorded, with {peak}."


def _tried(findings: ReplayFindings, device: DeviceReplay) -> str:
    what = []
    if device.settings != (device.recorded_settings or ""):
        what.append(_settings(device.settings))
    if findings.gpu_memory_bytes is not None:
        what.append(f"{format_bytes(findings.gpu_memory_bytes)} of GPU memory")
    if device.limit.source is LimitSource.OPTION and device.limit.limit_bytes is not None:
        what.append(f"a limit of {format_bytes(device.limit.limit_bytes)}")
    return " and ".join(what) or _settings(device.settings)


def _figure_table(findings: ReplayFindings, device: DeviceReplay, page: Page) -> Iterator[Text]:
    found = device.what_if
    made = device.followed if found is None else found.figures
    width = max(_FIGURE_WIDTH_LEAST, min(_FIGURE_WIDTH, (page.width - _LABEL_WIDTH) // 2))
    head = Text(fit_right("recorded", width) + fit_right("replayed" if found is None else "would be", width))
    for line in theme.labelled(f"device {device.facts.device}", _LABEL_WIDTH, head, page):
        line.stylize(theme.QUIET)
        yield line
    requests = device.request_count
    can_grow = any(is_expandable_on(line) for line in (device.settings, device.recorded_settings))
    grown, shrunk = (", or grown", ", or shrunk") if can_grow else ("", "")
    for label, field, is_bytes in (
        ("reserved, at most", "reserved_bytes_peak", True),
        ("allocated, at most", "allocated_bytes_peak", True),
        (f"segments obtained{grown}", "segment_alloc_count", False),
        (f"segments returned{shrunk}", "segment_free_count", False),
        ("out of memory", "oom_count", False),
    ):
        of = requests if field == "oom_count" else None
        row = Text(fit_right(_figure(device.recorded, field, is_bytes, of), width))
        row.append(fit_right(_figure(made, field, is_bytes, of), width), style=theme.FIGURE)
        yield from theme.labelled(label, _LABEL_WIDTH, row, page)


def _figure(figures: RunFigures | None, field: str, is_bytes: bool, of: int | None) -> str:
    value = None if figures is None else getattr(figures, field)
    if value is None:
        return "-"
    if is_bytes:
        return format_bytes(value)
    return format_count(value) if of is None else f"{format_count(value)} of {format_count(of)}"


def _facts(findings: ReplayFindings, device: DeviceReplay, page: Page) -> Iterator[Text]:
    found, check = device.what_if, device.check
    if len({one.recorded_settings for one in findings.devices}) > 1:
        yield theme.fact("settings", _recorded_line(device.recorded_settings), page)
    if found is not None:
        yield from _what_if_facts(device, found, page)
    yield theme.fact("memory limit", _limit_text(device.limit), page)
    if found is not None:
        yield theme.fact("recorded run", _recorded_run(check), page)
    elif check.exact is not None and check.first_difference is None:
        yield theme.fact("heap at the end", _heap_text(check.heap), page)
    for number, sentence in enumerate(() if found is None else found.caveats):
        yield theme.fact("" if number else "mind", sentence, page)
    for number, sentence in enumerate(check.not_recorded):
        yield theme.fact("" if number else "not recorded", sentence, page)


def _what_if_facts(device: DeviceReplay, found: WhatIfFigures, page: Page) -> Iterator[Text]:
    least, most = found.reserved_bytes_peak.least, found.reserved_bytes_peak.most
    if least != most:
        low, high = format_bytes_apart(least, most)
        text = f"{low} to {high} reserved at most, by the addresses of new segments"
        if found.oom_count.least != found.oom_count.most:
            text += f"; {_counts(found.oom_count)} requests out of memory"
        yield theme.fact("range", text, page)
    if device.recorded.oom_count:
        yield theme.fact(
            "served now",
            f"{format_count(found.served_count)} of {counted(device.recorded.oom_count, 'request')} that ran out "
            "of memory when recorded; what the program would have done then is not known",
            page,
        )
    if device.memory_bytes is None:
        text = "not known from the trace: as much as is asked for; --gpu-memory sets it"
        yield theme.fact("card", text, page)
    else:
        text = f"{format_bytes(device.memory_bytes)}, all for the allocator; of a real card CUDA itself takes some"
        yield theme.fact("card", text, page)


def _counts(found: CountRange) -> str:
    return f"{format_count(found.least)} to {format_count(found.most)}"


def _limit_text(limit: MemoryLimit) -> str:
    if limit.limit_bytes is not None:
        where = {
            LimitSource.OPTION: "by --memory-limit",
            LimitSource.META: "as recorded",
            LimitSource.SETTINGS: "by per_process_memory_fraction",
            LimitSource.TRACE: "not recorded; the most that was reached before a request was refused",
            LimitSource.NONE: "",
        }[limit.source]
        return f"{format_bytes(limit.limit_bytes)} ({where})"
    if limit.source is not LimitSource.TRACE:
        return "none but the card's memory"
    at_least = format_bytes(limit.at_least_bytes or 0)
    if limit.below_bytes is None:
        return f"not recorded; at least the {at_least} reached, as no request was refused"
    return f"not recorded; by the trace at least {at_least} and less than {format_bytes(limit.below_bytes)}"


def _recorded_run(check: RunCheck) -> str:
    if check.exact is None:
        return f"cannot be followed, so the figures are less sure: {printable(check.refusal or '')}"
    if check.exact:
        return f"followed exactly, {counted(check.decision_count, 'decision')}"
    return (
        f"followed exactly for its first {counted(check.decision_count, 'decision')} only, so the figures are less sure"
    )


def _heap_text(heap: HeapCheck | None) -> str:
    if heap is None:
        return "not in the recording, so not compared"
    if heap.difference is not None:
        return heap.difference
    found = f"{counted(heap.segment_count, 'segment')} and {counted(heap.block_count, 'block')}"
    return f"{found}, each as in the file"


def _difference_lines(difference: FirstDifference, page: Page) -> Iterator[Text]:
    yield theme.fact("recorded", _event_text(difference.expected, "nothing more"), page)
    yield theme.fact("replayed", _event_text(difference.got, "nothing"), page)
    shown = difference.stack[:_STACK_FRAMES_SHOWN]
    for number, line in enumerate(shown):
        room = page.width - theme.FACT_WIDTH
        text = theme.site_text(line.file, line.line, line.function, room, page.glyphs.ellipsis)
        yield Text(fit_left("" if number else "called from", theme.FACT_WIDTH) + text, style=theme.QUIET)


def _event_text(event: EventFacts | None, nothing: str) -> str:
    if event is None:
        return nothing
    text = event.kind.name.lower()
    if event.kind is not EventKind.OOM and event.address:
        text += f" at 0x{event.address:x}"
    if event.event_bytes:
        text += f", {format_count(event.event_bytes)} bytes"
    return f"{text}, stream 0x{event.stream:x}"


def _refused_table(found: WhatIfFigures, request_count: int, page: Page, top: int) -> Iterator[Text]:
    has_time = page.width >= _REFUSED_WIDTH
    indent = 34 if has_time else 23
    time = fit_right("first at", 11) if has_time else ""
    title = theme.fitting(page.width - indent, "site that would run out", "site")
    yield Text(f"{fit_right('requests', 9)}{fit_right('largest', 12)}{time}  {title}", style=theme.QUIET)
    for one in found.refused_by_site[:top]:
        row = Text().append(fit_right(format_count(one.request_count), 9), style=theme.FIGURE)
        row.append(fit_right(format_bytes(one.requested_bytes_most), 12))
        if has_time:
            row.append(fit_right(format_duration(one.first_time_ns), 11))
        yield from theme.named(row, partial(_site, one), theme.PLACE_WIDTH_LEAST, page)
    rest = len(found.refused_by_site) - top
    if rest > 0:
        more, flag = counted(rest, "more site"), f"--top {len(found.refused_by_site)}"
        is_beside = page.width - indent >= theme.PLACE_WIDTH_LEAST
        lead = " " * indent if is_beside else theme.INDENT
        yield Text(lead + theme.fitting(page.width - len(lead), f"({more}; {flag} shows all)", f"({more}; {flag})"))


def _site(refused: RefusedRequests, room: int, ellipsis: str) -> str:
    if refused.site is None:
        return theme.fitting(room, "(no Python stack: autograd, C++ code)", "(no Python stack)")
    site = refused.site
    return theme.site_text(site.file, site.line, site.function, room, ellipsis)
