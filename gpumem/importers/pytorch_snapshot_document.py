"""A snapshot's bytes as Python values: a pickle of plain data, or the same as JSON.

Owns: loading without running anything, within memory in proportion to the file. Must not know: what the keys mean.

A pickle is walked natively before it is loaded (gpumem/abi/pickle.py): it may hold dicts, lists, tuples, strings and
numbers only, so nothing in it can call, hang or crash the unpickler, which refuses every global besides. The cyclic
garbage collector, which finds nothing in such data, is off meanwhile: loading takes 0.4 times as long.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpumem.abi.pickle import PickleReport, PickleVerdict, check_pickle, skim_snapshot
from gpumem.errors import GpumemError, TraceForeign, TraceTruncated
from gpumem.importers.pytorch_snapshot_skim import SkimmedEntries
from gpumem.units import MIB, format_bytes

LOADED_BYTES_ALLOWED = 256 * MIB
LOADED_FACTOR_ALLOWED = 24
"""A pickle may take this many times its bytes in memory (real ones: 3 to 11 times)."""
TRACE_KEYS = ("segments", "device_traces")
PEEK_BYTES = 1 * MIB


@contextmanager
def paused_garbage_collector() -> Iterator[None]:
    """The cyclic garbage collector is off inside, and as before afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Document:
    """A snapshot's top level by key; with `entries`, `device_traces` hold lists of frames only."""

    values: dict[str, object]
    entries: SkimmedEntries | None


def load_document(path: Path, content: bytearray) -> Document:
    """The values of a snapshot; a bare segments list counts as one with `segments` alone.

    Raises TraceForeign for what is no snapshot, TraceTruncated for what is cut off or damaged.
    """
    begin = bytes(content[:64]).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    is_json = begin in (b"{", b"[", b'"') or not content
    try:
        if is_json:
            return Document(_top_level(path, _load_json(path, content)), None)
        return _load_pickle(path, content)
    except MemoryError:
        raise TraceForeign(
            f"{path} needs more memory than there is; record fewer entries (max_entries) or take a larger machine."
        ) from None


def _top_level(path: Path, value: object) -> dict[str, object]:
    if isinstance(value, list) and (not value or any(isinstance(one, dict) for one in value)):
        value = {"segments": value}
    if not isinstance(value, dict) or not any(isinstance(value.get(key), list) for key in TRACE_KEYS):
        raise TraceForeign(
            f"{path} is no snapshot of PyTorch's memory: it has neither 'segments' nor 'device_traces'; "
            "make one with torch.cuda.memory._dump_snapshot()."
        )
    return {key: part for key, part in value.items() if isinstance(key, str)}


# ---- pickle ----


def _load_pickle(path: Path, content: bytearray) -> Document:
    file_bytes = len(content)
    report = check_pickle(content)
    if report.verdict is not PickleVerdict.PLAIN:
        raise _pickle_error(path, report)
    allowed = max(LOADED_BYTES_ALLOWED, LOADED_FACTOR_ALLOWED * file_bytes)
    if report.loaded_bytes > allowed:
        raise TraceForeign(
            f"{path} would take {format_bytes(report.loaded_bytes)} in memory, more than a snapshot of "
            f"{format_bytes(file_bytes)} can need; it was not written by PyTorch."
        )
    return _load_skimmed(path, content) or Document(_top_level(path, _unpickle(path, content)), None)


def _load_skimmed(path: Path, content: bytearray) -> Document | None:
    """The document with its entries taken out natively; None where they are not as PyTorch writes them."""
    skim = skim_snapshot(content)
    if skim is None:
        return None
    with skim:
        values = _top_level(path, _unpickle(path, skim.rest))
        traces = values.get("device_traces", [])
        if not isinstance(traces, list) or len(traces) != skim.trace_count:
            return None
        if sum(len(trace) if isinstance(trace, list) else 0 for trace in traces) != skim.frames_count:
            return None
        return Document(values, SkimmedEntries(skim))


def _unpickle(path: Path, content: bytearray) -> object:
    try:
        return _PlainUnpickler(_ContentFile(content)).load()
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError) as error:
        raise TraceTruncated(f"{path} is damaged: a value in it cannot be read ({error}); copy it again.") from None


def _pickle_error(path: Path, report: PickleReport) -> GpumemError:
    at = report.offset
    if report.verdict is PickleVerdict.NOT_PLAIN:
        return TraceForeign(
            f"{path} is a pickle that names or calls code (opcode 0x{report.opcode:02x} at byte {at}), which no memory "
            "snapshot of PyTorch does; nothing was run. Give the file that torch.cuda.memory._dump_snapshot() wrote."
        )
    if report.verdict is PickleVerdict.CUT_OFF:
        return TraceTruncated(f"{path} is cut off: its last whole part ends at byte {at}; copy it again.", offset=at)
    if at == 0:
        return TraceForeign(f"{path} is neither a pickle nor JSON; give a snapshot that PyTorch wrote.")
    return TraceTruncated(
        f"{path} is damaged, or no snapshot of PyTorch's memory: byte {at} (0x{report.opcode:02x}) does not fit what "
        "stands before it; copy it again.",
        offset=at,
    )


class _PlainUnpickler(pickle.Unpickler):
    """Python's unpickler without a way to reach code; the native check comes first, this is the second lock."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it names data stored elsewhere")


class _ContentFile:
    """Bytes in memory as the file that the unpickler asks for; `peek` spares it a call for every opcode."""

    def __init__(self, content: bytearray) -> None:
        self._content = content
        self._view = memoryview(content)
        self._at = 0

    def peek(self, byte_count: int) -> bytes:
        return bytes(self._view[self._at : self._at + max(byte_count, PEEK_BYTES)])

    def read(self, byte_count: int) -> bytes:
        piece = bytes(self._view[self._at : self._at + byte_count])
        self._at += len(piece)
        return piece

    def readinto(self, target: bytearray) -> int:
        piece = self.read(len(target))
        target[: len(piece)] = piece
        return len(piece)

    def readline(self) -> bytes:
        end = self._content.find(b"\n", self._at)
        return self.read((end + 1 if end >= 0 else len(self._content)) - self._at)


# ---- JSON ----


def _load_json(path: Path, content: bytearray) -> object:
    """JSON repeats every frame in full where a pickle shares them; equal ones become one object as they are read."""
    frames: dict[tuple[object, object, object], dict[str, object]] = {}

    def share_frame(made: dict[str, object]) -> dict[str, object]:
        if "filename" not in made:
            return made
        key = (made["filename"], made.get("line"), made.get("name"))
        return frames.setdefault(key, made) if all(isinstance(part, str | int) for part in key) else made

    try:
        return json.loads(content, object_hook=share_frame)
    except json.JSONDecodeError as error:
        raise TraceTruncated(
            f"{path} is no whole JSON text: {error.msg} at character {error.pos}; copy it again.", offset=error.pos
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceForeign(f"{path} is no snapshot: its JSON cannot be read ({error}).") from None
