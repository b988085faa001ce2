"""The growing ZIP: what is written is read, what is cut is gone, and other tools read it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from gpumem.errors import OutputUnwritable, TraceForeign, TraceTruncated
from gpumem.trace.zip_parts import ReadOnlyFile, ZipReader, ZipWriter, find_members


def test_finished_zip_is_read_by_the_standard_library_and_by_us(tmp_path: Path) -> None:
    writer = ZipWriter(tmp_path / "a.zip")
    writer.append("one.txt", b"1" * 1000)
    writer.append("zwei/ü.txt", b"")
    writer.finish()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["one.txt", "zwei/ü.txt"]
    reader = ZipReader(tmp_path / "a.zip")
    assert (reader.read("one.txt"), reader.read("zwei/ü.txt")) == (b"1" * 1000, b"")


def test_cut_takes_the_file_back_to_the_end_of_a_member(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    writer = ZipWriter(path)
    first = writer.append("a", b"kept")
    writer.append("b", b"half written when the writer was killed")
    writer.close()
    again = ZipWriter(path, cut_offset=first.end_offset)
    assert [member.name for member in again.members] == ["a"]
    again.append("c", b"next")
    again.finish()
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a": b"kept", "c": b"next"}


@pytest.mark.parametrize("cut_offset", [1, 34, 10_000])
def test_cut_where_no_member_ends_is_damage(tmp_path: Path, cut_offset: int) -> None:
    writer = ZipWriter(tmp_path / "a.zip")
    writer.append("a", b"kept")
    writer.close()
    with pytest.raises(TraceTruncated):
        ZipWriter(tmp_path / "a.zip", cut_offset=cut_offset)


def test_writer_never_takes_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("mine")
    with pytest.raises(OutputUnwritable, match=r"a\.zip cannot be written"):
        ZipWriter(tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_text() == "mine"


def test_members_beyond_four_gib_keep_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    header = 30 + 1 + 20
    content_bytes = 5 << 30
    path.touch()
    os.truncate(path, header + content_bytes)  # sparse: the content is zeros that take no space
    with path.open("r+b") as file:
        file.write(bytes.fromhex("504b0304 2d00 0008 0000 0000 2100 00000000 ffffffff ffffffff 0100 1400") + b"a")
        file.write(bytes.fromhex("0100 1000") + content_bytes.to_bytes(8, "little") * 2)
    writer = ZipWriter(path, cut_offset=header + content_bytes)
    writer.append("b", b"behind")
    writer.finish()
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a").file_size == content_bytes
        assert archive.read("b") == b"behind"
    reader = ZipReader(path)
    assert reader.read("b") == b"behind"
    assert reader.members["b"].header_offset == header + content_bytes


def test_more_members_than_sixteen_bits_count(tmp_path: Path) -> None:
    writer = ZipWriter(tmp_path / "many.zip")
    for number in range(66_000):
        writer.append(f"{number}", b"")
    writer.finish()
    with zipfile.ZipFile(tmp_path / "many.zip") as archive:
        assert len(archive.namelist()) == 66_000


def test_compressed_member_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", "x" * 1000)
    with pytest.raises(TraceForeign, match=r"meta\.json is compressed\. Pack it without compression"):
        ZipReader(tmp_path / "a.zip")


def test_directory_that_promises_more_than_the_file_has_is_damage(tmp_path: Path) -> None:
    writer = ZipWriter(tmp_path / "a.zip")
    writer.append("a", b"content")
    writer.finish()
    content = bytearray((tmp_path / "a.zip").read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = b"\xf0\xff\xff\x7f" * 2
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(TraceTruncated, match="cut off"):
        ZipReader(tmp_path / "a.zip").read("a")


def test_growing_zip_gives_its_members_without_a_directory(tmp_path: Path) -> None:
    writer = ZipWriter(tmp_path / "a.zip")
    writer.append("a", b"12345")
    end = writer.append("b", b"6").end_offset
    writer.close()
    members = find_members(ReadOnlyFile(tmp_path / "a.zip"), end)
    assert [(member.name, member.byte_count) for member in members] == [("a", 5), ("b", 1)]
