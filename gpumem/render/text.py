"""Foreign text made safe to print.

Owns: which characters are shown as escapes, and how a device, a program's end and a point in a trace are put in
passing, what belongs on one line. Must not know: terminals, styles.
"""

from __future__ import annotations

import re
import signal

from gpumem.units import format_count, format_duration

FIGURE_AND_UNIT = re.compile(r"(\d[\d.,]*) ([KMGT]iB|B|s|ms|us|ns|min|%)(?!\w)")
"""A figure in a sentence, which no line break may part from its unit."""
NAME_AND_NUMBER = re.compile(r"\b(device|event|step|line|rank|GPU) (?=\d)")
"""What a number in a sentence counts, which no line break of a terminal parts from it."""


def printable(text: str) -> str:
    """`text` with everything that is not plainly visible written as an escape: control and bidirectional characters,
    line breaks, and the bytes of a name that is no text (`\\xff`).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def without_folders(path: str) -> str:
    """The file's name alone."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def place(file: str, line: int) -> str:
    """Where a line of code is, as far as that is known: C++ of installed libraries often has no file or no line."""
    return "" if file in ("", "??") else f"{file}:{line}" if line else file


def device_phrase(name: str | None, device: int) -> str:
    """A device within a sentence: `the NVIDIA H200`, `the simulated device`; `device 0` where its name is not known."""
    return f"the {printable(name)}" if name else f"device {device}"


def ending(ended_by: str) -> str:
    """How the program ended, to follow a figure: `, exit code 3`; nothing where that was its plain end.

    Nor for want of disk or memory, which is worth a sentence of its own, and a snapshot, which is no end.
    """
    word, _, number = ended_by.partition(" ")
    if ended_by in ("", "exit", "disk_full", "no_memory", "snapshot"):
        return ""
    if word == "exit":
        return f", exit code {printable(number)}"
    if word == "signal":
        return f", ended by {signal_text(number)}"
    if ended_by == "running":
        return ", copied while its program ran"
    return ", killed with its recorder" if ended_by == "killed" else f", ended by {printable(ended_by)}"


def ending_sentence(ended_by: str) -> str:
    """How the recording ended, as a sentence; nothing where that was the program's plain end."""
    word, _, number = ended_by.partition(" ")
    if ended_by in ("", "exit", "exit 0", "snapshot"):
        return ""
    if word == "exit":
        return f"The program ended with exit code {printable(number)}."
    if word == "signal":
        return f"The program was ended by {signal_text(number)}."
    if ended_by == "killed":
        return "The program was killed, and its recorder with it."
    if ended_by == "running":
        return "It was copied while its program ran: the figures are those of the events until then."
    if ended_by == "disk_full":
        return "The disk was full: recording stopped there, the program went on."
    if ended_by == "no_memory":
        return "The process had no memory left for its events: recording stopped there, the program went on."
    return f"The recording ended by {printable(ended_by)}."


def signal_text(number: str) -> str:
    """`signal 9 (SIGKILL)`; the number alone where it has no name."""
    try:
        return f"signal {number} ({signal.Signals(int(number)).name})"
    except ValueError:
        return f"signal {printable(number)}"


def instant_text(time_ns: int, event: int) -> str:
    """A point in a trace: `9.85 s (after event 8,212)`, `1.00 s (before the first event)`, `the start`."""
    if event < 0:
        return f"{format_duration(time_ns)} (before the first event)" if time_ns else "the start"
    return f"{format_duration(time_ns)} (after event {format_count(event)})"


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return ascii(char)[1:-1]
