"""`gpumem run` where the disk is full or cannot map files: the program runs to its end, and the trace is there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumem.trace.journal_layout import RECORD_WINDOW_BYTES
from program_runs import only_trace, run_python, run_recorded, write_program

pytestmark = pytest.mark.needs("mount")
WINDOW_RECORDS = RECORD_WINDOW_BYTES // 64

ALLOCATES_MANY = f"""
import allocator_stand_in as gpu
gpu.start_cuda()
for _ in range({WINDOW_RECORDS // 3 + 1000}):
    gpu.free(gpu.alloc(1000))
print("went on")
"""


@pytest.fixture
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of the kind and options that the test names."""
    kind, options = request.param
    subprocess.run(["mount", "-t", kind, *options, "none", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize("mounted", [("tmpfs", ["-o", "size=26m"])], indirect=True)
def test_full_disk_ends_the_recording_and_not_the_program(mounted: Path) -> None:
    write_program(mounted, ALLOCATES_MANY)
    ended = run_recorded(mounted, "--nvml-interval", "0", "train.py")
    assert (ended.code, ended.stdout) == (0, b"went on\n")
    assert ended.note.count("the disk was full") == 1
    trace = only_trace(mounted)
    assert trace.meta.ended_by == "disk_full"
    assert trace.event_count == WINDOW_RECORDS


@pytest.mark.parametrize("mounted", [("tmpfs", ["-o", "size=1m"])], indirect=True)
def test_disk_too_small_for_a_journal_is_said_and_nothing_else_blamed(mounted: Path) -> None:
    write_program(mounted, "print('went on')")
    ended = run_recorded(mounted, "train.py")
    assert (ended.code, ended.stdout) == (0, b"went on\n")
    assert "no room for a journal, which takes 24 MiB at least" in ended.note
    assert "The program's recording could not begin, for the reason above.\n" in ended.note
    assert "GPU" not in ended.note


@pytest.mark.parametrize("mounted", [("ramfs", [])], indirect=True)
def test_folder_that_cannot_map_files_gets_its_trace_by_way_of_another(mounted: Path) -> None:
    write_program(mounted, "import gpumem; gpumem.mark('here')")
    ended = run_recorded(mounted, "train.py")
    assert "cannot map files, so the journals stood in /" in ended.note
    assert [mark.name for mark in only_trace(mounted).marks] == ["here"]


@pytest.mark.parametrize("mounted", [("ramfs", [])], indirect=True)
def test_recording_in_a_program_gets_its_trace_by_way_of_another_folder_too(mounted: Path) -> None:
    write_program(mounted, "import gpumem\nwith gpumem.record('a.gpumem'): gpumem.mark('here')\n")
    ended = run_python(mounted, "train.py")
    assert ended.code == 0
    assert "cannot map files, so the journal stands in /" in ended.note
    assert [mark.name for mark in only_trace(mounted).marks] == ["here"]
    folder = ended.note.rpartition(" ")[2].strip().rstrip(".")
    assert not Path(folder).exists()
