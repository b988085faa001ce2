"""Findings packed for a page: a JSON document and long columns as bytes, compressed, as base64.

Owns: the packing, which assets/gm.js undoes. Must not know: what is packed.

    8 bytes  length of the document in bytes, little-endian
    n bytes  the document as UTF-8, padded with blanks to a multiple of 8
    then the columns, each padded to a multiple of 8

A column stands in the document as {"column": [TYPE, OFFSET, COUNT]}, OFFSET counting from the first column's start.
Integers travel as 32-bit numbers where all fit, else as doubles, which are exact below 2**53.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpumem.render.html.markup import foreign
from gpumem.render.json_parts import Json
from gpumem.trace.model import Frame

_ALIGNMENT = 8
_INT32 = np.iinfo(np.int32)


class Payload:
    """Collects columns and frames while a document is made."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._offset = 0
        self._frames: dict[Frame, int] = {}

    def column(self, values: npt.NDArray[np.int64] | Sequence[int]) -> Json:
        """What stands for a column of integers in the document."""
        numbers = np.asarray(values, np.int64)
        fits = not len(numbers) or (int(numbers.min()) >= _INT32.min and int(numbers.max()) <= _INT32.max)
        kind, stored = ("i4", numbers.astype("<i4")) if fits else ("f8", numbers.astype("<f8"))
        content = stored.tobytes()
        place = self._offset
        self._parts.append(content + bytes(-len(content) % _ALIGNMENT))
        self._offset += len(self._parts[-1])
        return {"column": [kind, place, len(numbers)]}

    def frame(self, frame: Frame | None) -> int:
        """The number of a frame in the document's list; -1 for none."""
        return -1 if frame is None else self._frames.setdefault(frame, len(self._frames))

    def frames(self) -> Json:
        """The frames numbered so far."""
        return [frame_text(frame) for frame in self._frames]

    def pack(self, document: Mapping[str, Json]) -> str:
        """The document and the columns as text; the same findings give the same text."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        padded = text + b" " * (-len(text) % _ALIGNMENT)
        return compress(b"".join([len(padded).to_bytes(8, "little"), padded, *self._parts]))


def compress(content: bytes) -> str:
    """`content` as gzip in base64; no time stands in it."""
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii")


def frame_text(frame: Frame) -> Json:
    """A line of code as a page shows it: names made visible and short."""
    return {"file": foreign(frame.file), "line": frame.line, "function": foreign(frame.function)}
