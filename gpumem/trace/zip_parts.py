"""Uncompressed ZIP files that grow member by member, and reading members at their offset.

Owns: the ZIP's bytes (local headers, central directory, zip64). Must not know: what the members hold.

A growing file has whole members and no directory. `cut` takes it back to the end of a member, so a writer that was
killed in the middle of one leaves nothing behind. Every member carries its length and CRC in its local header, so
the directory can be rebuilt from the members alone. Dates are fixed: the same members give the same bytes.
"""

from __future__ import annotations

import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import OutputUnwritable, TraceForeign, TraceNotFound, TraceTruncated

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_EXTRA64 = struct.Struct("<HHQQ")
LOCAL_SIGNATURE = b"PK\x03\x04"
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = 0x04034B50, 0x02014B50, 0x06054B50
_END64_MAGIC, _LOCATOR64_MAGIC = 0x06064B50, 0x07064B50
_LIMIT32, _LIMIT16 = 0xFFFFFFFF, 0xFFFF
_UTF8_NAMES = 0x0800
_DOS_DATE = 0x0021  # 1980-01-01
_VERSION, _VERSION64 = 20, 45
_DIRECTORY_ERRORS = (
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    OverflowError,
    IndexError,
    EOFError,
    struct.error,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One member: where its bytes lie in the file, how many, and their CRC-32."""

    name: str
    header_offset: int
    data_offset: int
    byte_count: int
    crc: int

    @property
    def end_offset(self) -> int:
        return self.data_offset + self.byte_count


class ReadOnlyFile:
    """A file opened once and read at offsets by any number of threads; closed when no longer referred to."""

    def __init__(self, path: Path) -> None:
        """Opens `path`; raises TraceNotFound when that fails."""
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise TraceNotFound(f"{path} does not exist.") from None
        except OSError as error:
            raise TraceNotFound(f"{path} cannot be opened: {error.strerror}.") from error
        self._closing = weakref.finalize(self, os.close, self.descriptor)

    def close(self) -> None:
        """Closes the file now rather than when the last reader is gone."""
        self._closing()

    @property
    def byte_count(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read_at(self, offset: int, byte_count: int) -> bytes:
        """`byte_count` bytes from `offset`; raises TraceTruncated when the file ends before."""
        length = 0
        try:
            file_bytes = self.byte_count
            if offset + byte_count > file_bytes:
                message = f"{self.path} is cut off: it ends at byte {file_bytes}, inside bytes that belong to it."
                raise TraceTruncated(message, offset=file_bytes)
            pieces: list[bytes] = []
            while length < byte_count:
                pieces.append(os.pread(self.descriptor, byte_count - length, offset + length))
                if not pieces[-1]:
                    raise TraceTruncated(f"{self.path} became shorter while it was read.", offset=offset + length)
                length += len(pieces[-1])
        except OSError as error:
            raise TraceTruncated(f"{self.path} cannot be read at byte {offset}: {error}.", offset=offset) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ZipReader:
    """The members of a finished ZIP, read at their offset."""

    def __init__(self, path: Path) -> None:
        """Reads the directory of `path`; raises TraceTruncated when there is none or it does not fit the file."""
        self.path = path
        self.file = ReadOnlyFile(path)
        self.members: Mapping[str, Member] = _read_directory(self.file)

    def read(self, name: str) -> bytes:
        """The bytes of member `name`; raises TraceTruncated when it is missing or does not give its CRC."""
        member = self.members.get(name)
        if member is None:
            raise TraceTruncated(f"{self.path} is damaged: it has no member {name}.")
        return read_member(self.file, member)


def read_member(file: ReadOnlyFile, member: Member) -> bytes:
    """The bytes of `member`; raises TraceTruncated when they do not give its CRC."""
    content = file.read_at(member.data_offset, member.byte_count)
    if zlib.crc32(content) != member.crc:
        message = f"{file.path} is damaged: {member.name}, at byte {member.data_offset}, does not give its checksum."
        raise TraceTruncated(message, offset=member.data_offset)
    return content


def find_members(file: ReadOnlyFile, end_offset: int) -> list[Member]:
    """The members in the first `end_offset` bytes of a growing ZIP, from their local headers.

    Raises TraceTruncated when the members do not end exactly there.
    """
    members: list[Member] = []
    offset = 0
    while offset < end_offset:
        member = _read_local_header(file, offset)
        if member.end_offset > end_offset:
            raise TraceTruncated(f"{file.path} is damaged: no member ends at byte {end_offset}.", offset=offset)
        members.append(member)
        offset = member.end_offset
    return members


def is_finished_zip(path: Path) -> bool:
    """Whether the file ends in a ZIP directory, which a growing one has not yet."""
    return zipfile.is_zipfile(path)


def has_member(path: Path, name: str) -> bool:
    """Whether a ZIP's directory names a member; false where the directory cannot be read."""
    try:
        with zipfile.ZipFile(path) as opened:
            return name in opened.NameToInfo
    except _DIRECTORY_ERRORS:
        return False


def find_member(file: ReadOnlyFile, header_offset: int) -> Member:
    """The member whose local header stands at `header_offset`; raises TraceTruncated when there is none."""
    return _read_local_header(file, header_offset)


def member_header_bytes(name: str) -> int:
    """Bytes of the local header of a member called `name` that is smaller than 4 GiB."""
    return _LOCAL.size + len(name.encode())


class ZipWriter:
    """A ZIP that grows member by member; readable as a ZIP once `finish` has written its directory."""

    def __init__(self, path: Path, *, cut_offset: int | None = None, named: Path | None = None) -> None:
        """Creates `path`, which must not exist; with `cut_offset` takes an existing one back to that length.

        Errors speak of `named` where `path` is a temporary name. Raises OutputUnwritable, and TraceTruncated when
        no member ends at `cut_offset`.
        """
        self.path = path
        self._named = named or path
        self.members: list[Member] = []
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if cut_offset is None else 0)
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise OutputUnwritable(f"{self._named} cannot be written: {error.strerror}.") from error
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        if cut_offset is not None:
            self._cut(cut_offset)

    @property
    def end_offset(self) -> int:
        """Where the next member begins."""
        return self.members[-1].end_offset if self.members else 0

    def append(self, name: str, content: bytes | memoryview) -> Member:
        """Writes one member behind the last; raises OutputUnwritable when the disk is full or the like."""
        header_offset, crc = self.end_offset, zlib.crc32(content)
        header = _local_header(name, len(content), crc)
        try:
            self._write(header_offset, header)
            self._write(header_offset + len(header), content)
        except OutputUnwritable:
            self._shorten(header_offset)  # what was written of it takes the last room of a full disk
            raise
        member = Member(name, header_offset, header_offset + len(header), len(content), crc)
        self.members.append(member)
        return member

    def finish(self) -> None:
        """Writes the central directory and closes the file."""
        directory = _central_directory(self.members, self.end_offset)
        self._write(self.end_offset, directory)
        self._shorten(self.end_offset + len(directory))  # a write that failed may have left more
        self.close()

    def close(self) -> None:
        """Closes the file without a directory; `cut_offset` opens it again."""
        self._closing()

    def _cut(self, cut_offset: int) -> None:
        try:
            if cut_offset > os.fstat(self._descriptor).st_size:
                raise TraceTruncated(
                    f"{self.path} is shorter than the {cut_offset} bytes published.", offset=cut_offset
                )
            os.ftruncate(self._descriptor, cut_offset)
        except OSError as error:
            raise OutputUnwritable(f"{self._named} cannot be written: {error.strerror}.") from error
        reading = ReadOnlyFile(self.path)
        self.members = find_members(reading, cut_offset)
        reading.close()

    def _shorten(self, byte_count: int) -> None:
        try:
            os.ftruncate(self._descriptor, byte_count)
        except OSError as error:
            raise OutputUnwritable(f"{self._named} cannot be written: {error.strerror}.") from error

    def _write(self, offset: int, content: bytes | memoryview) -> None:
        view = memoryview(content)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            raise OutputUnwritable(f"{self._named} cannot be written at byte {offset}: {error.strerror}.") from error


def _read_directory(file: ReadOnlyFile) -> dict[str, Member]:
    try:
        with open(os.dup(file.descriptor), "rb") as stream, zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except _DIRECTORY_ERRORS as error:
        message = f"{file.path} is cut off or damaged: its ZIP directory cannot be read ({error})."
        raise TraceTruncated(message, offset=file.byte_count) from error
    members: dict[str, Member] = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise TraceForeign(
                f"{file.path} is no trace as gpumem writes it: {entry.filename} is compressed. "
                "Pack it without compression (zip -0)."
            )
        members[entry.filename] = _read_local_header(file, entry.header_offset, entry)
    return members


def _read_local_header(file: ReadOnlyFile, offset: int, entry: zipfile.ZipInfo | None = None) -> Member:
    fields = _LOCAL.unpack(file.read_at(offset, _LOCAL.size) if offset >= 0 else bytes(_LOCAL.size))
    magic, _, flags, method, _, _, crc, _, byte_count, name_bytes, extra_bytes = fields
    if magic != _LOCAL_MAGIC or method != zipfile.ZIP_STORED:
        raise TraceTruncated(f"{file.path} is damaged: no member begins at byte {offset}.", offset=offset)
    rest = file.read_at(offset + _LOCAL.size, name_bytes + extra_bytes)
    if entry is not None:  # the directory is right even where another packer left sizes out of the local header
        byte_count, crc = entry.file_size, entry.CRC
    elif byte_count == _LIMIT32 and extra_bytes >= _EXTRA64.size:
        byte_count = _EXTRA64.unpack_from(rest, name_bytes)[2]
    name = rest[:name_bytes].decode("utf-8" if flags & _UTF8_NAMES else "cp437", errors="replace")
    return Member(name, offset, offset + _LOCAL.size + len(rest), byte_count, crc)


def _local_header(name: str, byte_count: int, crc: int) -> bytes:
    encoded = name.encode()
    large = byte_count >= _LIMIT32
    extra = _EXTRA64.pack(1, 16, byte_count, byte_count) if large else b""
    length = _LIMIT32 if large else byte_count
    version = _VERSION64 if large else _VERSION
    fields = (_LOCAL_MAGIC, version, _UTF8_NAMES, 0, 0, _DOS_DATE, crc, length, length, len(encoded), len(extra))
    return _LOCAL.pack(*fields) + encoded + extra


def _central_directory(members: Sequence[Member], offset: int) -> bytes:
    entries = b"".join(_central_entry(member) for member in members)
    count, byte_count = len(members), len(entries)
    tail = b""
    if count >= _LIMIT16 or offset >= _LIMIT32 or byte_count >= _LIMIT32:
        tail = _END64.pack(
            _END64_MAGIC, _END64.size - 12, _VERSION64, _VERSION64, 0, 0, count, count, byte_count, offset
        ) + _LOCATOR64.pack(_LOCATOR64_MAGIC, 0, offset + byte_count, 1)
    short_count = min(count, _LIMIT16)
    end = _END.pack(_END_MAGIC, 0, 0, short_count, short_count, min(byte_count, _LIMIT32), min(offset, _LIMIT32), 0)
    return entries + tail + end


def _central_entry(member: Member) -> bytes:
    encoded = member.name.encode()
    large = [value for value in (member.byte_count, member.byte_count) if value >= _LIMIT32]
    large += [member.header_offset] if member.header_offset >= _LIMIT32 else []
    extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    version = _VERSION64 if large else _VERSION
    length = min(member.byte_count, _LIMIT32)
    return (
        _CENTRAL.pack(
            _CENTRAL_MAGIC,
            version | 3 << 8,
            version,
            _UTF8_NAMES,
            0,
            0,
            _DOS_DATE,
            member.crc,
            length,
            length,
            len(encoded),
            len(extra),
            0,
            0,
            0,
            0o644 << 16,
            min(member.header_offset, _LIMIT32),
        )
        + encoded
        + extra
    )
