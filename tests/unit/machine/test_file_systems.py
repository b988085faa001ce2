"""What a folder's file system can do is found by trying."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpumem.machine.file_systems import has_mapped_files


def test_usual_folder_maps_files_and_keeps_nothing_of_the_trial(tmp_path: Path) -> None:
    assert has_mapped_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("mount")
def test_file_system_that_cannot_reserve_is_told_although_it_can_write(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "ramfs", "none", str(tmp_path)], check=True)
    try:
        assert not has_mapped_files(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.needs("mount")
def test_full_file_system_is_not_taken_for_one_that_cannot_map(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "fill").write_bytes(bytes(64 << 10))
        assert has_mapped_files(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
