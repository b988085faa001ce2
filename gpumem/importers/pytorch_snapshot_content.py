"""A snapshot's file as plain bytes: told apart by its first bytes, inflated within bounds.

Owns: which files may be PyTorch snapshots, gzip, xz, zstd and bzip2. Must not know: what the bytes say.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpumem.errors import TraceForeign, TraceNotFound, TraceTruncated
from gpumem.units import MIB, format_bytes

GZIP, XZ, ZSTD, BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh"
COMPRESSED = (GZIP, XZ, ZSTD, BZIP2)
INFLATED_BYTES_ALLOWED = 256 * MIB
INFLATION_ALLOWED = 100
"""A compressed file may hold this many times its own bytes (real ones: 5 to 25 times)."""
XZ_MEMORY_BYTES_MAX = 256 * MIB
READ_BYTES = 1 * MIB
HEAD_BYTES = 4096

_PICKLE_STARTS = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?[}\]]|[}\]]q|\((?:dp|lp|d|l)|[}\]]\(|[}\]]\.", re.DOTALL)
_PICKLE_KEYS = re.compile(rb"segments|device_traces|total_size")
_JSON_KEYS = re.compile(
    rb'"(?:segments|device_traces|allocator_settings|external_annotations|host_segments|host_traces|total_size|blocks)"'
)


def is_pytorch_snapshot(head: bytes) -> bool:
    """Whether a file that begins with `head` (4 KiB are plenty) may be a snapshot: a pickle, or JSON with its keys,
    compressed or not.

    No other format that gpumem reads is a pickle; read_pytorch_snapshot says what is wrong with one of another kind.
    """
    if head.startswith(COMPRESSED):
        head = b"" if head.startswith(ZSTD) else _inflated_head(head)
        if not head:  # zstd and bzip2 inflate block by block, and a block is larger than a head
            return True
    if _PICKLE_STARTS.match(head):
        return True
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and _JSON_KEYS.search(head) is not None


def is_other_pickle(head: bytes) -> bool:
    """Whether a file that begins with `head` is a pickle of something else: it names no key of a snapshot there."""
    return _PICKLE_STARTS.match(head) is not None and _PICKLE_KEYS.search(head) is None


def read_content(path: Path) -> bytearray:
    """The file's bytes, inflated where it is compressed.

    Raises TraceNotFound, TraceTruncated (cut off or damaged) or TraceForeign (it inflates beyond all measure).
    """
    try:
        with path.open("rb") as file:
            packed_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            magic = file.read(6)
            file.seek(0)
            if magic.startswith(COMPRESSED):
                return _inflate(path, magic, file, packed_bytes)
            content = bytearray(packed_bytes)
            del content[file.readinto(content) or 0 :]
            return content
    except FileNotFoundError:
        raise TraceNotFound(f"{path} does not exist; give the path of a snapshot.") from None
    except OSError as error:
        raise TraceNotFound(f"{path} cannot be read ({error.strerror or error}); give a readable snapshot.") from None


class _Gzip:
    def __init__(self, magic: bytes) -> None:
        assert magic.startswith(GZIP)
        self._inflater = zlib.decompressobj(wbits=31)

    def inflate(self, packed: bytes) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + packed, READ_BYTES)

    @property
    def is_finished(self) -> bool:
        return self._inflater.eof

    @property
    def wants_more(self) -> bool:
        return not self._inflater.unconsumed_tail

    @property
    def unused(self) -> bytes:
        return self._inflater.unused_data


class _XzOrBzip2:
    def __init__(self, magic: bytes) -> None:
        is_xz = magic.startswith(XZ)
        self._inflater = lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX) if is_xz else bz2.BZ2Decompressor()

    def inflate(self, packed: bytes) -> bytes:
        return self._inflater.decompress(packed, READ_BYTES)

    @property
    def is_finished(self) -> bool:
        return self._inflater.eof

    @property
    def wants_more(self) -> bool:
        return self._inflater.needs_input

    @property
    def unused(self) -> bytes:
        return self._inflater.unused_data


def _inflate(path: Path, magic: bytes, file: BinaryIO, packed_bytes: int) -> bytearray:
    allowed = max(INFLATED_BYTES_ALLOWED, INFLATION_ALLOWED * packed_bytes)
    content = bytearray()
    pieces = _zstd_pieces(file) if magic.startswith(ZSTD) else _member_pieces(file, magic)
    try:
        for piece in pieces:
            content += piece
            if len(content) > allowed:
                raise TraceForeign(
                    f"{path} inflates to more than {format_bytes(allowed)}, {INFLATION_ALLOWED} times its own bytes; "
                    "inflate it yourself first if you trust it."
                )
    except (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise TraceTruncated(
            f"{path} is cut off or damaged: its compressed data breaks after {format_bytes(len(content))} inflated "
            f"({str(error).rstrip('.') or 'it ends too early'}); copy it again."
        ) from None
    return content


def _member_pieces(file: BinaryIO, magic: bytes) -> Iterator[bytes]:
    """The inflated bytes of gzip, xz or bzip2 members, one behind the other."""
    inflater: _Gzip | _XzOrBzip2 = _Gzip(magic) if magic.startswith(GZIP) else _XzOrBzip2(magic)
    packed = file.read(READ_BYTES)
    while packed or not inflater.wants_more:
        yield inflater.inflate(packed)
        packed = b""
        if inflater.is_finished:
            packed = (inflater.unused or file.read(READ_BYTES)).lstrip(b"\0")
            if not packed:
                return
            inflater = type(inflater)(magic)
        elif inflater.wants_more:
            packed = file.read(READ_BYTES)
    raise EOFError("it ends too early")


def _zstd_pieces(file: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa

    with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
        while piece := stream.read(READ_BYTES):
            yield piece


def _inflated_head(head: bytes) -> bytes:
    inflated = b""
    try:
        for piece in _member_pieces(io.BytesIO(head), head[:6]):
            inflated += piece
            if len(inflated) >= HEAD_BYTES:
                break
    except (EOFError, zlib.error, lzma.LZMAError, OSError):
        return inflated
    return inflated
