"""A log of any length -> the out-of-memory messages in it, each with its line and its rank.

Owns: reading bytes in pieces, whose line is whose (prefixes of launchers), messages that run over several lines while
other ranks write between them, the same message printed again. Must not know: figures (oom_text.py), verdicts.

Pieces without a word of interest are passed over whole: a log of gigabytes costs a search through its bytes, no loop
over its lines, and no memory but for the messages found.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gpumem.errors import InputError, TraceNotFound
from gpumem.importers.oom_text import (
    MESSAGE_CHARACTERS_MAX,
    find_starts,
    is_continued_by,
    is_whole,
    origin_of,
    parse_message,
)
from gpumem.trace.oom_message import FoundMessage, OomLog, OomMessage, OomOrigin
from gpumem.units import counted

PIECE_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 17
"""A longer line is read in pieces that overlap by more than a message."""
OVERLAP_BYTES = 2 * MESSAGE_CHARACTERS_MAX
MESSAGE_LINES_MAX = 24
"""Lines of its own that a message may run over."""
WAIT_LINES_MAX = 400
"""Lines of others that may stand between two lines of a message."""
MESSAGES_MAX = 10_000
STANDARD_INPUT = "-"

_INTERESTING = (
    b"ut of memory", b"ried to allocate", b"emoryAllocation", b"OF_MEMORY", b"OfMemory", b"ALLOC_",
    b"expandable_segments", b"reemptively reject", b"exceed allowed", b"bad_alloc: out_of", b"cannot be allocated",
    b"ailed to allocate", b"OOM when allocating",
)  # fmt: skip
"""A line without any of these can begin no message and show no settings."""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_TIME = r"\[?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
_PREFIX = re.compile(
    rf"(?>(?:\s*+(?>{_TIME}|\[[^\[\]]{{1,60}}\](?:<std(?:out|err)>)?:?"
    r"|\((?=[^()]{0,80}(?:pid|rank|ip)\s*[=:])[^()]{1,120}\):?|\d{1,5}:(?=\s|$)|[\w.-]{1,60}\s{0,20}\|(?!\|)"
    r"|(?i:(?:global_)?rank)[ :=_-]?\d{1,6}\b:?|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b:?))*)\s*"
)
_RANK = re.compile(
    r"\[\s*(?:global_)?rank[ :=_]*(\d{1,6})\b|\[default(\d{1,6})\]|\[\d{1,6},\s?(\d{1,6})\]<std"
    r"|\b(?:global_)?rank\s*[=:#]?\s*(\d{1,6})\b|\A\s*(\d{1,5}):(?=\s|$)",
    re.IGNORECASE,
)
NAME_CHARACTERS_MAX = 80
"""So near before an error its rank may stand within a line."""
_WORKER = re.compile(r"\(([^()]*\bpid\s*=[^()]*)\)|([\w.-]{1,60})\s{0,20}\|")
_NO_MESSAGE_LINE = re.compile(r"\s*(?:Traceback \(|File \"|\^+\s*$|raise |return |During handling of|The above exc)")
_SETTINGS = re.compile(
    r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF[\"']?\s{0,3}(?:=|:|\]\s?=|,)\s{0,3}[\"']?([a-z_]{3,40}:[\w:,.\[\]>-]{1,400})"
)
_ADVICE = re.compile(r"(?:try|recommend|consider|suggest|e\.g\.)\w*\s+(?:\w+\s+){0,3}[`\"']?$", re.IGNORECASE)
_PURPOSE = re.compile(r"[`\"']?\s+(?:to|can|could|may|might)\b")
"""What follows settings that are only spoken of."""
_EXPANDABLE_REFUSED = "expandable_segments not supported on this platform"

_RECORDING = "no log; of a recording, gpumem snapshot --at oom says why memory ran out"
_COMPRESSED = "compressed; unpack it first (zcat, xzcat, zstdcat, bzcat) and give it on standard input as -"
_MAGICS = (
    (b"PK\x03\x04", f"a recording or an archive, {_RECORDING}"),
    *((start, f"a pickle, {_RECORDING}") for start in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")),
    *((start, _COMPRESSED) for start in (b"\x1f\x8b", b"\xfd7zXZ", b"(\xb5/\xfd", b"BZh")),
)


def read_oom_log(path: str) -> OomLog:
    """The messages in the file of this name, or of standard input for `-`.

    Raises TraceNotFound where it cannot be read, InputError where there is none in it.
    """
    if path == STANDARD_INPUT:
        return _read(sys.stdin.buffer, "standard input")
    place = Path(path)
    try:
        with place.open("rb") as stream:
            return _read(stream, path)
    except FileNotFoundError:
        raise TraceNotFound(f"{path} does not exist; check the name, or give the log on standard input as -.") from None
    except IsADirectoryError:
        raise TraceNotFound(f"{path} is a folder; name the log in it.") from None
    except OSError as error:
        raise TraceNotFound(f"{path} cannot be read: {error.strerror or error}.") from None


def read_oom_text(text: str) -> OomLog:
    """The messages in a text at hand; raises InputError where there is none."""
    return _read(io.BytesIO(text.encode("utf-8", "surrogateescape")), "the text given")


def _read(stream: BinaryIO, name: str) -> OomLog:
    head = stream.read(PIECE_BYTES)
    collector = _Collector()
    for line in _interesting_lines(_decoded(stream, head), collector):
        collector.take(line)
    return collector.finish(name, head)


def _decoded(stream: BinaryIO, head: bytes) -> Iterator[bytes]:
    """The bytes in pieces; a log in UTF-16, as PowerShell writes them, as UTF-8."""
    if not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while head:
            yield head
            head = stream.read(PIECE_BYTES)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while head:
        yield decoder.decode(head).encode("utf-8", "surrogatepass")
        head = stream.read(PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, or a piece of a long one: messages that start at `end` or later come again in the next piece."""

    number: int
    content: bytes
    end: int


def _interesting_lines(pieces: Iterator[bytes], collector: _Collector) -> Iterator[_Line]:
    """The lines of pieces that have a word of interest, and those after them while a message is open."""
    rest = b""
    for piece in pieces:
        whole, _, rest = (rest + piece).rpartition(b"\n")
        if whole:
            yield from _lines_of(whole, collector)
        while len(rest) > PIECE_BYTES:
            cut = PIECE_BYTES - OVERLAP_BYTES
            if _has_interest(rest[:PIECE_BYTES]):
                yield from _pieces_of(_Line(collector.lines + 1, rest[:PIECE_BYTES], cut))
            rest = rest[cut:]
    if rest:
        yield from _lines_of(rest, collector)


def _lines_of(whole: bytes, collector: _Collector) -> Iterator[_Line]:
    if not collector.is_waiting and not _has_interest(whole):
        collector.lines += whole.count(b"\n") + 1
        return
    for content in whole.split(b"\n"):
        collector.lines += 1
        if collector.is_waiting or _has_interest(content):
            yield from _pieces_of(_Line(collector.lines, content, len(content) + 1))


def _pieces_of(line: _Line) -> Iterator[_Line]:
    """A long line as pieces that overlap."""
    step = LINE_BYTES_MAX - OVERLAP_BYTES
    first = 0
    while len(line.content) - first > LINE_BYTES_MAX:
        yield _Line(line.number, line.content[first : first + LINE_BYTES_MAX], step)
        first += step
    yield _Line(line.number, line.content[first:], line.end - first)


def _has_interest(piece: bytes) -> bool:
    return any(word in piece for word in _INTERESTING)


@dataclass(slots=True)
class _Open:
    """A message whose lines are still coming."""

    origin: OomOrigin
    line: int
    rank: int | None
    worker: str | None
    text: str
    own_lines: int = 1
    seen_at: int = 0


Key = tuple[int | None, str | None]


class _Collector:
    """Puts lines together to messages, one open at a time for each writer, and counts what is the same."""

    def __init__(self) -> None:
        self.lines = 0
        self._open: dict[Key, _Open] = {}
        self._last: Key | None = None
        self._found: dict[tuple[OomMessage, Key], FoundMessage] = {}
        self._left_out_count = 0
        self._settings: str | None = None
        self._has_expandable_refused = False

    @property
    def is_waiting(self) -> bool:
        """Whether a message's lines are still coming."""
        return bool(self._open)

    def take(self, line: _Line) -> None:
        text = _COLOURS.sub("", line.content.decode("utf-8", "replace")).rstrip("\r")
        prefix = _PREFIX.match(text)
        assert prefix is not None, "an empty prefix matches"
        body = text[prefix.end() :]
        key = _writer_of(text[: prefix.end()])
        starts = [start for start in find_starts(text) if start.start() < line.end]
        if starts and key in self._open and is_continued_by(self._open[key].origin, self._open[key].text, starts[0]):
            del starts[0]
        before = text if not starts else text[: starts[0].start()]
        self._continue(key, line.number, body if not starts else before[prefix.end() :])
        self._note_settings(before)
        for number, start in enumerate(starts):
            end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
            near = text[max(prefix.end(), start.start() - NAME_CHARACTERS_MAX) : start.start()]
            self._begin(_named_within(near, key), start, line, text[:end])
        if self._open:
            self._close_old(line.number)

    def finish(self, name: str, head: bytes) -> OomLog:
        """What was found; raises InputError where that is nothing."""
        for key in list(self._open):
            self._close(key)
        messages = sorted(_without_echoes(list(self._found.values())), key=lambda found: found.line)
        if not messages:
            raise InputError(_nothing_found(name, head, self.lines))
        return OomLog(name, messages, self.lines, self._left_out_count, self._settings, self._has_expandable_refused)

    def _begin(self, key: Key, start: re.Match[str], line: _Line, text: str) -> None:
        if key in self._open:
            self._close(key)
        content = text[start.start() :][: MESSAGE_CHARACTERS_MAX + 1]
        one = _Open(origin_of(start), line.number, *key, content, seen_at=line.number)
        self._open[key], self._last = one, key
        self._close_whole(key)

    def _continue(self, key: Key, number: int, body: str) -> None:
        """Adds the line's body to an open message: its writer's, or the last one's where it names none."""
        if key not in self._open and key == (None, None) and self._last in self._open:
            assert self._last is not None, "no key is None"
            key = self._last
        one = self._open.get(key)
        if one is None or not body:
            return
        if _NO_MESSAGE_LINE.match(body) or one.own_lines >= MESSAGE_LINES_MAX:
            self._close(key)
            return
        one.text += "\n" + body
        one.own_lines, one.seen_at = one.own_lines + 1, number
        self._close_whole(key)

    def _close_whole(self, key: Key) -> None:
        one = self._open[key]
        if len(one.text) > MESSAGE_CHARACTERS_MAX or is_whole(one.origin, one.text):
            self._close(key)

    def _close_old(self, number: int) -> None:
        for key in [key for key, one in self._open.items() if number - one.seen_at > WAIT_LINES_MAX]:
            self._close(key)

    def _close(self, key: Key) -> None:
        one = self._open.pop(key)
        message = parse_message(one.origin, one.text)
        if message is None:
            return
        same = (replace(message, versions=None), key)
        known = self._found.get(same)
        if known is not None:
            self._found[same] = replace(known, repeats=known.repeats + 1)
        elif len(self._found) < MESSAGES_MAX:
            self._found[same] = FoundMessage(message, one.line, one.rank, one.worker)
        else:
            self._left_out_count += 1

    def _note_settings(self, text: str) -> None:
        for match in _SETTINGS.finditer(text):
            if not _ADVICE.search(text[: match.start()][-60:]) and not _PURPOSE.match(text, match.end()):
                self._settings = match[1].rstrip(".,:")
        self._has_expandable_refused = self._has_expandable_refused or _EXPANDABLE_REFUSED in text


def _writer_of(prefix: str) -> Key:
    """Rank and worker that a line's beginning names."""
    rank, worker = _RANK.search(prefix), _WORKER.search(prefix)
    number = None if rank is None else int(next(group for group in rank.groups() if group is not None))
    name = None if worker is None else next(group for group in worker.groups() if group is not None).strip()
    return number, name


def _named_within(near: str, key: Key) -> Key:
    """The writer, with the rank that a line names only before the error itself: `failed on rank 3: CUDA out of …`."""
    if key[0] is not None:
        return key
    ranks = [match for match in _RANK.finditer(near) if match[4] is not None or match[1] is not None]
    return (int(ranks[-1][4] or ranks[-1][1]), key[1]) if ranks else key


def _without_echoes(messages: list[FoundMessage]) -> list[FoundMessage]:
    """The messages less those that say nothing of their own.

    The same figures under no name are the same error (a launcher's closing report); an error without a figure beside
    one with figures, by the same writer or none, is that one told again.
    """
    named = {replace(one.message, versions=None) for one in messages if (one.rank, one.worker) != (None, None)}
    with_figures = {(one.rank, one.worker) for one in messages if one.message.asked is not None}
    kept: list[FoundMessage] = []
    for one in messages:
        writer = (one.rank, one.worker)
        if writer == (None, None) and replace(one.message, versions=None) in named:
            continue
        is_bare = one.message.asked is None and (one.message.wording or "").endswith("out of memory")
        if is_bare and with_figures and (writer in with_figures or writer == (None, None)):
            continue
        kept.append(one)
    return kept


def _nothing_found(name: str, head: bytes, lines: int) -> str:
    if not head:
        return f"{name} is empty; give the program's output with its errors in it (2>&1)."
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return f"{name} is {kind}."
    return (
        f"{name} has no out-of-memory error in {counted(lines, 'line')}: looked for those of PyTorch, CuPy, gpumem, "
        "XLA, CUDA and its libraries; give the output of the process that failed, with its errors in it (2>&1)."
    )
