"""Out-of-memory errors in the terminal: the verdict, its arithmetic, what to do; of several ranks a line each first.

Owns: the layout of `gpumem oom`, and of a verdict within other reports. Must not know: how a verdict is found, its
words (render/oom_words.py). No arithmetic beyond layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from gpumem.analyses.oom import ExplainedMessage, OomLogFindings
from gpumem.analyses.oom_facts import OomCode, OomFacts, OomFinding, OomVerdict, Verdict
from gpumem.render.oom_advice import finding_command, finding_text, is_advice
from gpumem.render.oom_words import OWNERS, asked_text, is_more_than_rounding, is_rough, verdict_text, verdict_word
from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import Page, fit_left, fit_right
from gpumem.render.text import printable
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin
from gpumem.units import counted, format_bytes, format_count, format_share

DEFAULT_TOP = 16
_BYTES_WIDTH = 12
_SHARE_WIDTH = 9
_OVERVIEW_WIDTH = 80
_OVERVIEW_WIDTH_WITH_LINE = 58
_INDENT = "   "


def render_oom(findings: OomLogFindings, page: Page, *, top: int = DEFAULT_TOP) -> Text:
    """The messages of a log: several begin with a line each, and the worst follows in full."""
    lines: list[Text | str] = []
    if len(findings.messages) > 1:
        lines.extend(_overview(findings, page, top))
    lines.extend(_message_lines(findings, findings.worst, page))
    return theme.join_lines(lines)


def verdict_lines(found: OomVerdict, page: Page) -> Iterator[Text]:
    """The verdict itself, wrapped."""
    for line in theme.wrap(printable(verdict_text(found)), page):
        yield Text(line, style=theme.TITLE)


def verdict_report(found: OomVerdict, page: Page, *, recording: str | None = None) -> Iterator[Text]:
    """A verdict whole: the sentence, the figures it stands on, what to do."""
    yield from verdict_lines(found, page)
    yield Text("")
    yield from _arithmetic_lines(found, page)
    yield from advice_lines(found, page, recording=recording)


def advice_lines(found: OomVerdict, page: Page, *, recording: str | None = None) -> Iterator[Text]:
    """What to do, numbered, with the commands to paste; then what is peculiar about the figures."""
    advice = [finding for finding in found.findings if is_advice(finding.code)]
    said = (OomCode.SEGMENT_ROUNDED,)  # beside the figure
    rest = [finding for finding in found.findings if not is_advice(finding.code) and finding.code not in said]
    for number, finding in enumerate(advice, start=1):
        yield from _finding_lines(f"{number}  ", finding, found, page, recording)
    if advice and rest:
        yield Text("")
    for finding in rest:
        yield from _finding_lines(f"{page.glyphs.dot}  ", finding, found, page, recording)


def _finding_lines(
    head: str, finding: OomFinding, found: OomVerdict, page: Page, recording: str | None
) -> Iterator[Text]:
    lines = theme.wrap(printable(finding_text(finding, found)), page, room=page.width - len(_INDENT))
    yield Text(fit_left(head, len(_INDENT)) + lines[0])
    for line in lines[1:]:
        yield Text(_INDENT + line)
    command = finding_command(finding, recording, origin=found.facts.origin)
    for line in () if command is None else command.splitlines():
        yield Text(_INDENT + line, style=theme.COMMAND)


def _overview(findings: OomLogFindings, page: Page, top: int) -> Iterator[Text]:
    log, messages = findings.log, findings.messages
    ranks = {one.found.rank for one in messages} - {None}
    of_ranks = f" of {counted(len(ranks), 'rank')}" if ranks else ""
    kinds = Counter(verdict_word(one.verdict.verdict) for one in messages)
    counts = ", ".join(f"{format_count(count)} {kind}" for kind, count in kinds.most_common())
    head = f"{counted(len(messages), 'out-of-memory error')}{of_ranks} in {printable(log.name)}: {counts}."
    for line in theme.wrap(head, page):
        yield Text(line, style=theme.TITLE)
    yield Text("")
    yield Text(_row(page, "rank", "GPU", "line", "asked", "free", "idle", "missing", "verdict"), style=theme.QUIET)
    shown = list(messages[:top])
    if findings.worst not in shown:
        shown = [*shown[:-1], findings.worst]
    for one in shown:
        row = _message_row(one, page)
        if one.found.worker is not None and cell_len(row) + 12 < page.width:
            row += "  " + theme.shorten(
                printable(one.found.worker), page.width - cell_len(row) - 2, page.glyphs.ellipsis
            )
        yield Text(row, style=theme.FIGURE if one is findings.worst else "")
    if len(messages) > len(shown):
        more = counted(len(messages) - len(shown), "more error")
        yield Text(f"{more}; --top {len(messages)} shows all", style=theme.QUIET)
    if log.left_out_count:
        said = f"and {counted(log.left_out_count, 'later error')} that are only counted"
        yield from (Text(line, style=theme.WARNING) for line in theme.wrap(said, page))
    yield Text("")
    yield Text("The one to look at first:", style=theme.QUIET)


def _row(
    page: Page, rank: str, device: str, line: str, asked: str, free: str, idle: str, missing: str, kind: str
) -> str:
    """A row of the overview; a narrow page leaves out what the verdict follows from."""
    cells = [(rank, 5), (device, 4), (line, 8), (asked, 12), (free, 12), (idle, 12), (missing, 12)]
    if page.width < _OVERVIEW_WIDTH:
        del cells[4:6]
    if page.width < _OVERVIEW_WIDTH_WITH_LINE:
        del cells[2:4]
    return "".join(fit_right(cell, width) for cell, width in cells) + f"  {kind}"


def _message_row(one: ExplainedMessage, page: Page) -> str:
    found, facts = one.found, one.verdict.facts
    rank = "-" if found.rank is None else str(found.rank)
    device = "-" if found.message.device is None else str(found.message.device)
    return _row(
        page, rank, device, format_count(found.line), _cell(facts.asked), _cell(facts.free), _cell(facts.idle),
        _cell(one.verdict.short), verdict_word(one.verdict.verdict),
    )  # fmt: skip


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"~{format_bytes(figure.byte_count)}" if is_rough(figure) else format_bytes(figure.byte_count)


def _message_lines(findings: OomLogFindings, one: ExplainedMessage, page: Page) -> Iterator[Text]:
    yield from verdict_lines(one.verdict, page)
    for line in theme.wrap_items(_where(findings, one), page, gap=f" {page.glyphs.dot} "):
        yield Text(line, style=theme.QUIET)
    yield Text("")
    yield from _arithmetic_lines(one.verdict, page)
    yield from advice_lines(one.verdict, page)


def _where(findings: OomLogFindings, one: ExplainedMessage) -> list[str]:
    """Who said it and where it stands."""
    found, message = one.found, one.found.message
    parts = []
    if found.rank is not None:
        parts.append(f"rank {found.rank}")
    if found.worker is not None:
        parts.append(printable(found.worker))
    if message.device is not None:
        name = "" if message.device_name is None else f" ({printable(message.device_name)})"
        parts.append(f"GPU {message.device}{name}")
    parts.append(f"line {format_count(found.line)} of {printable(findings.log.name)}")
    if message.wording is not None:
        parts.append(printable(message.wording))
    if message.versions is not None:
        parts.append(f"PyTorch {message.versions}")
    if found.repeats > 1:
        parts.append(f"printed {found.repeats} times")
    return parts


def _arithmetic_lines(found: OomVerdict, page: Page) -> Iterator[Text]:
    """The figures with the card beside them, and a blank line; nothing where none is known."""
    facts = found.facts
    if facts.asked is None or facts.asked.byte_count >= IMPOSSIBLE_BYTES:
        return
    rows = [(label, figure, remark) for label, figure, remark in _rows(found) if figure is not None]
    width = max(len(label) for label, _, _ in rows) + 1
    if facts.card is not None:
        figures = _BYTES_WIDTH + _SHARE_WIDTH
        yield Text(fit_right("of card", figures + (width if width + figures <= page.width else 0)), style=theme.QUIET)
    for label, figure, remark in rows:
        yield from _figure_row(label, width, figure, facts.card, remark, page)
    yield Text("")


def _rows(found: OomVerdict) -> Sequence[tuple[str, Figure | None, str]]:
    """The figures from what was asked for to what is missing, then where the card's bytes are."""
    facts, owner = found.facts, OWNERS[found.facts.origin]
    outside = found.outside if found.outside is not None and is_more_than_rounding(found.outside) else None
    is_limited = found.verdict is Verdict.LIMIT
    has_sum = facts.free is not None and facts.idle is not None and not is_limited
    pools = ("idle in private pools", facts.private_idle, "of CUDA graphs or a MemPool")
    printed = '"reserved but unallocated"' if facts.origin is OomOrigin.TORCH and facts.idle is not None else ""
    return (
        ("asked for", facts.asked, asked_text(found)),
        ("free on the card", facts.free, ""),
        (f"idle in {owner}'s reserve", facts.idle, printed),
        *([pools] if found.has_private_in_reach else []),
        ("free and idle together", found.within_reach if has_sum else None, ""),
        ("missing", found.short, ""),
        *([] if found.has_private_in_reach else [pools]),
        (f"in use by {owner}", facts.allocated, ""),
        (f"held by {owner}", facts.reserved if _is_worth_a_row(facts, found) else None, "in use and idle"),
        ("its limit", facts.limit, ""),
        ("left by that limit", found.limit_room if is_limited else None, ""),
        ("this process, by NVML", None if found.outside is outside else facts.process, ""),
        (f"outside {owner}", outside, _outside_text(found)),
        ("the card", facts.card, ""),
    )


def _is_worth_a_row(facts: OomFacts, found: OomVerdict) -> bool:
    """Whether the sum of reserved bytes is what the verdict turns on."""
    return found.verdict in (Verdict.LIMIT, Verdict.SPILL) or facts.allocated is None


def _outside_text(found: OomVerdict) -> str:
    own, others = found.own_outside, found.others_outside
    if own is None or others is None:
        return ""
    rest = f", others and the driver {_cell(others)}" if is_more_than_rounding(others) else ""
    return f"this process {_cell(own)}{rest}"


def _figure_row(label: str, width: int, figure: Figure, card: Figure | None, remark: str, page: Page) -> Iterator[Text]:
    row = Text().append(fit_right(_cell(figure), _BYTES_WIDTH), style=theme.FIGURE)
    if card is not None:
        row.append(fit_right(format_share(figure.byte_count, card.byte_count), _SHARE_WIDTH))
    if width + row.cell_len + 2 + len(remark) <= page.width:
        yield from theme.labelled(label, width, row.append(f"  {remark}" if remark else "", style=theme.QUIET), page)
        return
    yield from theme.labelled(label, width, row, page)
    for line in theme.wrap_behind(_INDENT, remark, page) if remark else ():
        yield Text(line, style=theme.QUIET)
