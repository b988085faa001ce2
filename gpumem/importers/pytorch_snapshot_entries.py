"""One device's trace entries as columns, taken from the snapshot piece by piece.

Owns: action names, the keys of an entry, folding of free_requested with the free_completed that follows it. Must not
know: segments, other devices, what the events mean together.

A piece is small enough to stay in the processor's cache and is dropped once it is converted: the columns grow while
the entries shrink. A piece of entries as PyTorch writes them goes through in bulk; any other is cleaned entry by entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_stacks import StackInterner
from gpumem.vocabulary import EventKind

PIECE_ENTRIES = 4096
NUMBER_MAX = 2**63 - 1
ACTION_NAME_LENGTH_MAX = 40

KINDS: dict[str, int] = {
    "alloc": EventKind.ALLOC.value,
    "free": EventKind.FREE.value,
    "free_requested": EventKind.FREE_REQUESTED.value,
    "free_completed": EventKind.FREE_COMPLETED.value,
    "segment_alloc": EventKind.SEGMENT_ALLOC.value,
    "segment_free": EventKind.SEGMENT_FREE.value,
    "segment_map": EventKind.SEGMENT_MAP.value,
    "segment_unmap": EventKind.SEGMENT_UNMAP.value,
    "oom": EventKind.OOM.value,
    "snapshot": EventKind.SNAPSHOT.value,
    "annotate": EventKind.MARK.value,
}
UNSAID = ("", "N/A")

Entry = dict[str, object]


@dataclass(slots=True)
class Oddities:
    """What in a file was not as PyTorch writes it, counted over all devices."""

    unknown_actions: Counter[str] = field(default_factory=Counter)
    unreadable_entries: int = 0
    categories: bool = False


@dataclass(slots=True)
class Texts:
    """Interned texts of entries: (compile context, user metadata); row 0 has neither."""

    rows: dict[tuple[str, str], int] = field(default_factory=lambda: {("", ""): 0})

    def row(self, compile_context: object, metadata: object) -> int:
        return self.rows.setdefault((_said(compile_context), _said(metadata)), len(self.rows))


@dataclass(frozen=True, slots=True)
class PoolNames:
    """Private pools by row; row 0 is the default."""

    rows: dict[tuple[int, int], int] = field(default_factory=lambda: {(0, 0): 0})

    def row(self, pool: object) -> int:
        if not isinstance(pool, list | tuple) or len(pool) != 2 or not all(_is_number(part) for part in pool):
            return 0
        return self.rows.setdefault((int(pool[0]), int(pool[1])), len(self.rows)) if len(self.rows) < 2**16 else 0


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """A device's events in order; free_requested + free_completed of one block are one FREE."""

    kind: npt.NDArray[np.uint8]
    address: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64]
    """-1 where not recorded."""
    stack: npt.NDArray[np.uint32]
    text: npt.NDArray[np.uint32]
    pool: npt.NDArray[np.uint16]
    pools_recorded: bool

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: npt.NDArray[np.uint8]
    address: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64]
    stack: npt.NDArray[np.uint32]
    text: npt.NDArray[np.uint32]
    pool: npt.NDArray[np.uint16]


class EntryReader:
    """Turns entries into columns; stacks, texts, pools and oddities are shared by all devices of a snapshot."""

    def __init__(self, stacks: StackInterner) -> None:
        self.stacks = stacks
        self.texts = Texts()
        self.pools = PoolNames()
        self.oddities = Oddities()
        self._pools_recorded = False

    def read(self, entries: list[object]) -> EntryColumns:
        """The columns of `entries`, which is emptied."""
        self._pools_recorded = False
        pieces = [self._read_piece(piece) for piece in _pieces(entries)]
        columns = {
            name: np.concatenate([getattr(piece, name) for piece in pieces])
            if pieces
            else np.zeros(0, dtype=np.dtype(dtype))
            for name, dtype in _DTYPES.items()
        }
        return EntryColumns(**columns, pools_recorded=self._pools_recorded)

    def _read_piece(self, piece: list[object]) -> _Piece:
        try:
            return self._convert(piece)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return self._convert(self._cleaned(piece))

    def _convert(self, piece: list[Entry]) -> _Piece:
        actions = list(map(_ACTION, piece))
        "".join(actions)  # raises where one is no string: nothing else may be hashed
        kind = np.frombuffer(bytes(map(KINDS.__getitem__, actions)), dtype=np.uint8)
        address = _numbers(piece, _ADDRESS)
        keep, kind = _fold(kind, address)
        if not keep.all():
            piece = list(compress(piece, keep.tolist()))
            address = address[keep]
        if piece and not self.oddities.categories:
            self.oddities.categories = "category" in piece[0]
        return _Piece(
            kind=kind,
            address=address,
            bytes=_numbers(piece, _SIZE),
            stream=_numbers(piece, _STREAM),
            time_us=_numbers(piece, _TIME),
            stack=self._stack_rows(piece),
            text=self._text_rows(piece),
            pool=self._pool_rows(piece),
        )

    def _stack_rows(self, piece: list[Entry]) -> npt.NDArray[np.uint32]:
        try:
            stacks = list(map(_FRAMES, piece))
        except KeyError:
            stacks = [entry.get("frames", ()) for entry in piece]
            if not any(stacks):
                return np.zeros(len(piece), dtype=np.uint32)
        if not set(map(type, stacks)) <= {list, tuple}:
            raise TypeError
        return self.stacks.rows_of(stacks)

    def _text_rows(self, piece: list[Entry]) -> npt.NDArray[np.uint32]:
        contexts = _texts(piece, _COMPILE_CONTEXT)
        metadata = _texts(piece, _METADATA)
        if not contexts and not metadata:
            return np.zeros(len(piece), dtype=np.uint32)
        none = [""] * len(piece)
        rows = map(self.texts.row, contexts or none, metadata or none)
        return np.fromiter(rows, dtype=np.uint32, count=len(piece))

    def _pool_rows(self, piece: list[Entry]) -> npt.NDArray[np.uint16]:
        if not piece or "pool_id" not in piece[0]:  # a version writes it into every entry or into none
            return np.zeros(len(piece), dtype=np.uint16)
        pools = list(map(_POOL, piece))
        if pools.count(None) == len(pools):
            return np.zeros(len(piece), dtype=np.uint16)
        self._pools_recorded = True
        return np.fromiter(map(self.pools.row, pools), dtype=np.uint16, count=len(piece))

    def _cleaned(self, piece: Sequence[object]) -> list[Entry]:
        """The entries that can be read, each with all its keys and of the right types."""
        cleaned: list[Entry] = []
        for entry in piece:
            action = entry.get("action") if isinstance(entry, dict) else None
            if isinstance(entry, dict) and isinstance(action, str) and action in KINDS:
                made = _clean(entry, action)
                if made is not None:
                    cleaned.append(made)
                    continue
            elif isinstance(action, str):
                self.oddities.unknown_actions[action[:ACTION_NAME_LENGTH_MAX]] += 1
                continue
            self.oddities.unreadable_entries += 1
        return cleaned


_ACTION, _ADDRESS, _SIZE, _STREAM, _TIME = map(itemgetter, ("action", "addr", "size", "stream", "time_us"))
_FRAMES, _POOL = itemgetter("frames"), itemgetter("pool_id")
_COMPILE_CONTEXT, _METADATA = itemgetter("compile_context"), itemgetter("user_metadata")
_DTYPES = {
    "kind": np.uint8, "address": np.int64, "bytes": np.int64, "stream": np.int64, "time_us": np.int64,
    "stack": np.uint32, "text": np.uint32, "pool": np.uint16,
}  # fmt: skip


def _pieces(entries: list[object]) -> Iterator[list[object]]:
    """The entries piece by piece, removed as they are given; a piece never ends between the two halves of a free."""
    entries.reverse()
    while entries:
        piece = entries[: -PIECE_ENTRIES - 1 : -1]
        del entries[-PIECE_ENTRIES:]
        last = piece[-1]
        if entries and isinstance(last, dict) and last.get("action") == "free_requested":
            piece.append(entries.pop())
        yield piece


def _numbers(piece: list[Entry], key: itemgetter[str]) -> npt.NDArray[np.int64]:
    column = np.fromiter(map(key, piece), dtype=np.int64, count=len(piece))
    if len(column) and int(column.min()) < 0 and key is not _TIME:
        raise ValueError
    return column


def _fold(
    kind: npt.NDArray[np.uint8], address: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Which rows stay when each free_completed directly behind its own free_requested becomes one FREE with it."""
    keep = np.ones(len(kind), dtype=np.bool_)
    pairs = np.flatnonzero(
        (kind[:-1] == EventKind.FREE_REQUESTED) & (kind[1:] == EventKind.FREE_COMPLETED) & (address[:-1] == address[1:])
    )
    folded = kind.copy()
    folded[pairs] = EventKind.FREE
    keep[pairs + 1] = False
    return keep, folded[keep]


def _texts(piece: list[Entry], key: itemgetter[str]) -> list[object]:
    """The texts under `key`, or nothing when no entry says anything there."""
    try:
        texts = list(map(key, piece))
    except KeyError:
        return []
    return [] if not texts or (texts[0] in UNSAID and texts.count(texts[0]) == len(texts)) else texts


def _said(text: object) -> str:
    return text if isinstance(text, str) and text not in UNSAID else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= NUMBER_MAX


def _clean(entry: Entry, action: str) -> Entry | None:
    address = entry.get("addr", entry.get("device_free", 0) if action == "oom" else 0)
    numbers = {"addr": address, "size": entry.get("size", 0), "stream": entry.get("stream", 0)}
    if not all(_is_number(value) for value in numbers.values()):
        return None
    time_us = entry.get("time_us")
    frames = entry.get("frames")
    return {
        "action": action,
        **numbers,
        "time_us": time_us if _is_number(time_us) else -1,
        "frames": frames if isinstance(frames, list | tuple) else (),
        "compile_context": entry.get("compile_context", ""),
        "user_metadata": entry.get("user_metadata", ""),
        "pool_id": entry.get("pool_id"),
    }
