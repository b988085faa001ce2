"""Logs as they come: line ends, encodings, lines of megabytes, streams."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumem.importers import oom_log
from gpumem.importers.oom_log import read_oom_log, read_oom_text
from gpumem.trace.oom_message import Figure
from oom_messages import ERROR, WRAPPED, messages_in, modern
from trace_builder import MiB


def test_line_ends_of_windows_make_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(f"one\r\n{WRAPPED}\r\n".replace("\n", "\r\n").encode())
    (found,) = read_oom_log(str(path)).messages
    assert found.line == 2
    assert found.message == messages_in(ERROR)[0].message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_log_that_powershell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(f"epoch 1 ✓\r\n{ERROR}\r\n".encode(encoding))
    (found,) = read_oom_log(str(path)).messages
    assert found.message == messages_in(ERROR)[0].message


def test_bytes_that_are_no_text_and_control_characters_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    hostile = b"\xff\xfe\x80 \x1b]0;title\x07\x1b[2J\x00 [rank\xff] (pid=\x1b[31m) "
    path.write_bytes(b"\x80" + hostile + ERROR.encode() + hostile + b"\n" + hostile)
    (found,) = read_oom_log(str(path)).messages
    assert found.message == messages_in(ERROR)[0].message


def test_message_that_lists_two_hundred_processes_is_read_to_its_end() -> None:
    listed = [(pid, "1024.00 KiB") for pid in range(4000, 4200)]
    (found,) = messages_in(
        modern("2.00 GiB", of="79.15 GiB", free="0 bytes", others=listed, used="70.00 GiB", idle="736.86 MiB")
    )
    assert len(found.message.other_processes) == 200
    assert found.message.idle == Figure(round(736.86 * MiB), 5243)


def test_message_in_a_line_of_megabytes_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_log, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(oom_log, "LINE_BYTES_MAX", 40_000)
    expected = messages_in(ERROR)[0].message
    for before in range(0, 3 << 16, 6007):
        (found,) = messages_in("first\n" + "x" * before + " " + ERROR + "y" * 300_000 + "\nlast\n")
        assert (found.message, found.line, found.repeats) == (expected, 2, 1), before


def test_lines_are_counted_over_pieces_that_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_log, "PIECE_BYTES", 1000)
    text = "".join(f"step {number}: loss 1.0\n" for number in range(5000))
    (found,) = messages_in(text + f"[rank5]: {ERROR}\n" + text)
    assert found.line == 5001
    assert read_oom_text(text + ERROR + "\n" + text).lines == 10001


def test_message_over_the_border_of_two_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = messages_in(ERROR)[0].message
    for piece_bytes in range(210, 700, 7):
        monkeypatch.setattr(oom_log, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(oom_log, "OVERLAP_BYTES", piece_bytes // 2)
        (found,) = messages_in(f"{WRAPPED}\n")
        assert found.message == expected, piece_bytes


def test_log_is_read_as_it_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of megabytes pass through pieces of one, and nothing of them is kept."""
    monkeypatch.setattr("sys.stdin", Stdin(Endless(piece_of_log(), count=200)))
    log = read_oom_log("-")
    assert log.name == "standard input"
    assert [one.rank for one in log.messages] == [7]


def piece_of_log() -> bytes:
    return b"step 1: loss 0.123, everything is well and nothing of interest happens here\n" * 13_000


class Stdin:
    """Standard input with these bytes."""

    def __init__(self, buffer: io.RawIOBase) -> None:
        self.buffer = buffer


class Endless(io.RawIOBase):
    """A stream of many equal pieces and one error."""

    def __init__(self, piece: bytes, count: int) -> None:
        self.pieces: Iterator[bytes] = iter([piece] * count + [f"[rank7]: {ERROR}\n".encode()])

    def read(self, size: int = -1) -> bytes:
        return next(self.pieces, b"")
