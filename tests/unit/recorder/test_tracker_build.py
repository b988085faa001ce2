"""Building the torch tracker: against the installed torch, and the cache's manners with a pretended torch and compiler.

The pretended compiler is a script that counts its calls and writes its last argument as the library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fake_torch import write_fake_torch
from gpumem.errors import TrackerUnavailable
from gpumem.recorder import tracker_build
from gpumem.recorder.torch_install import TorchInstall, find_torch, find_torch_in, has_cxx11_abi

EXPORTED = {"gm_torch_tracker_attach", "gm_torch_tracker_mute_until_snapshot", "gm_torch_tracker_unmute"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def torch(tmp_path: Path) -> TorchInstall:
    """A folder that looks like an installed torch 9.1."""
    folder = write_fake_torch(tmp_path / "site")
    (folder / "__init__.py").write_text("raise AssertionError('torch was imported')\n")
    found = find_torch_in(folder)
    assert found is not None
    return found


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler script; `calls` beside it has a line a call."""
    script = tmp_path / "pretended-c++"
    write_compiler(script, 'for last; do :; done; echo library > "$last"')
    monkeypatch.setenv("CXX", str(script))
    return script


def write_compiler(script: Path, body: str) -> None:
    script.write_text(f'#!/bin/sh\necho "${{GPUMEM_RECORD-none}} $*" >> {script.parent}/calls\n{body}\n')
    script.chmod(0o755)


def calls(compiler: Path) -> list[str]:
    path = compiler.parent / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.needs("torch", "compiler")
def test_tracker_compiles_against_the_installed_torch_and_exports_its_functions(tmp_path: Path) -> None:
    installed = find_torch()
    assert installed is not None
    library = tracker_build.build_tracker(tracker_build.plan_tracker(installed))
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in listed.stdout.splitlines() if " T " in line} == EXPORTED
    needed = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in needed.stdout.splitlines() if "c10" in line] == [
        "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
    ]


@pytest.mark.needs("torch", "compiler")
def test_tracker_compiles_without_a_warning() -> None:
    installed = find_torch()
    assert installed is not None
    plan = tracker_build.plan_tracker(installed)
    command = tracker_build.compile_command(plan, Path(os.devnull), "c++17")
    include = f"-I{installed.folder / 'include'}"
    command = [word.replace("-I", "-isystem", 1) if word == include else word for word in command if word != "-w"]
    done = subprocess.run([*command, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_versions_are_read_from_the_text_of_version_py(torch: TorchInstall) -> None:
    assert (torch.version, torch.git_version, torch.cuda_version) == ("9.1.0+cu130", "0123456789abcdef0123", "13.0")
    assert has_cxx11_abi(torch)
    (torch.folder / "lib" / "libc10.so").write_bytes(b"\x7fELF _ZN3c105ErrorC2ENS_14SourceLocationESs")
    assert not has_cxx11_abi(torch)


def test_library_is_built_once_and_found_again(torch: TorchInstall, compiler: Path, cache: Path) -> None:
    first = tracker_build.start_build(tracker_build.plan_tracker(torch)).wait()
    second = tracker_build.start_build(tracker_build.plan_tracker(torch)).wait()
    assert first == second
    assert first.is_relative_to(cache / "gpumem" / "tracker")
    assert first.read_text() == "library\n"
    assert len(calls(compiler)) == 1
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in calls(compiler)[0]
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".lock", ".so"]


def test_build_leaves_recording_out_of_its_environment(
    torch: TorchInstall, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUMEM_RECORD", "{}")
    tracker_build.build_tracker(tracker_build.plan_tracker(torch))
    assert calls(compiler)[0].startswith("none ")


def children() -> set[str]:
    """The pids of this process's children, ended ones that nobody waited for among them."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def test_starting_a_build_leaves_no_child_behind(torch: TorchInstall, compiler: Path) -> None:
    before = children()
    build = tracker_build.start_build(tracker_build.plan_tracker(torch))
    assert children() == before
    assert build.wait().exists()


def test_several_ranks_building_at_once_compile_once(torch: TorchInstall, compiler: Path) -> None:
    write_compiler(compiler, 'sleep 0.3; for last; do :; done; echo library > "$last"')
    plan = tracker_build.plan_tracker(torch)
    with ThreadPoolExecutor(4) as pool:
        builds = list(pool.map(lambda _: tracker_build.start_build(plan), range(4)))
        libraries = list(pool.map(lambda build: build.wait(), builds))
    assert libraries == [plan.library] * 4
    assert len(calls(compiler)) == 1


def test_another_compiler_or_torch_builds_anew(torch: TorchInstall, compiler: Path) -> None:
    first = tracker_build.plan_tracker(torch).library
    write_compiler(compiler, 'for last; do :; done; echo other > "$last"')
    second = tracker_build.plan_tracker(torch).library
    assert first.parent == second.parent
    assert first != second
    version = torch.folder / "version.py"
    version.write_text(version.read_text().replace("9.1.0", "9.2.0"))
    later = find_torch_in(torch.folder)
    assert later is not None
    assert tracker_build.plan_tracker(later).library.parent != second.parent


def test_without_a_compiler_an_earlier_library_serves(
    torch: TorchInstall, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tracker_build.build_tracker(tracker_build.plan_tracker(torch))
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    assert tracker_build.start_build(tracker_build.plan_tracker(torch)).wait() == built


def test_without_a_compiler_the_sentence_says_what_to_install(
    torch: TorchInstall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TrackerUnavailable, match=r"no C\+\+ compiler here .* torch 9\.1\.0\+cu130; install a C\+\+"):
        tracker_build.plan_tracker(torch)


def test_failed_build_quotes_the_compilers_first_error(torch: TorchInstall, compiler: Path) -> None:
    write_compiler(compiler, "echo 'In file included' >&2; echo 'a.h:1: error: no such type' >&2; exit 1")
    with pytest.raises(TrackerUnavailable, match=r"pretended-c\+\+ could not .* \(a\.h:1: error: no such type\)"):
        tracker_build.start_build(tracker_build.plan_tracker(torch)).wait()
    assert [path.suffix for path in tracker_build.plan_tracker(torch).library.parent.iterdir()] == [".lock"]


def test_second_language_standard_is_tried(torch: TorchInstall, compiler: Path) -> None:
    write_compiler(compiler, 'case "$*" in *c++17*) exit 1;; esac; for last; do :; done; echo newer > "$last"')
    assert tracker_build.build_tracker(tracker_build.plan_tracker(torch)).read_text() == "newer\n"
    assert len(calls(compiler)) == 2


def test_torch_too_old_or_without_headers_is_named(torch: TorchInstall, compiler: Path) -> None:
    header = torch.folder / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    header.write_text("no tracker here\n")
    with pytest.raises(
        TrackerUnavailable, match=r"torch 9\.1\.0\+cu130 cannot hand its events over; install torch 2\.2"
    ):
        tracker_build.plan_tracker(torch)
    header.unlink()
    with pytest.raises(TrackerUnavailable, match=r"without its C\+\+ headers"):
        tracker_build.plan_tracker(torch)


def test_unwritable_cache_gives_way_to_a_private_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tracker_build.cache_folder()
    assert folder == tmp_path / f"gpumem-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert tracker_build.cache_folder() != folder


def test_description_needs_no_torch_in_memory(torch: TorchInstall, compiler: Path) -> None:
    script = (
        "import json, sys\nfrom gpumem.recorder import tracker_build\n"
        "found = tracker_build.describe_tracker()\n"
        "print(json.dumps([found.torch_version, found.cuda_version, found.is_built, found.reason,"
        " 'torch' in sys.modules]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(torch.folder.parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["9.1.0+cu130", "13.0", False, None, False]


def test_compiler_is_described_without_torch_too(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_build, "find_torch", lambda: None)
    found = tracker_build.describe_tracker()
    assert (found.compiler, found.reason) == (str(compiler), "torch is not installed for this Python")
