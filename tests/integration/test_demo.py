"""`gpumem demo` as it is typed: the nine steps' figures, on a simulated and on a pretended GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem.analyses.demo import REASONS
from gpumem.vocabulary import TraceSource
from pretended_driver import build_driver
from waits import SECONDS_AT_MOST

MIB = 1 << 20
ALLOCATED_AND_RESERVED_MIB = {
    "CUDA started": (0, 0),
    "a tiny tensor": (0, 2),
    "1 a on the GPU": (1024, 1026),
    "2 b on the GPU": (2048, 2050),
    "3 b to the CPU": (1024, 2050),
    "4 c on the GPU": (2048, 2050),
    "5 c on the GPU again": (2048, 3074),
    "6 d on the GPU": (3072, 3074),
    "7 d deleted": (2048, 3074),
    "8 e on the CPU": (2048, 3074),
    "9 e to the GPU": (3072, 3074),
    "empty_cache()": (1024, 1024),
}
"""As PyTorch 2.11 said on an H200."""


def run_demo(folder: Path, *arguments: str, libraries: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "LD_LIBRARY_PATH": str(libraries or folder)}
    command = [sys.executable, "-m", "gpumem", "demo", *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS_AT_MOST)


def test_figures_are_those_of_pytorch_on_a_real_card(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["schema"], said["device"], said["simulated"]) == ("gpumem.demo/1", 0, True)
    found = {step["name"]: (step["allocated_bytes"] // MIB, step["reserved_bytes"] // MIB) for step in said["steps"]}
    assert found == ALLOCATED_AND_RESERVED_MIB
    assert list(found) == list(REASONS)
    assert {step["nvml_process_bytes"] for step in said["steps"]} == {None}
    assert said["steps"][1]["allocated_bytes"] == 512
    trace = gpumem.open(tmp_path / said["path"])
    assert trace.meta.source is TraceSource.GPUMEM
    assert trace.meta.notes == ()


@pytest.mark.needs("stacks")
def test_it_says_where_it_runs_and_where_the_trace_is(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "on a simulated GPU (24.00 GiB)" in done.stdout.replace("\n", " ")
    assert "$ gpumem summary demo.gpumem" in done.stdout
    assert done.stdout.endswith("\n$ gpumem report demo.gpumem\n")
    assert "samples/nine_steps.py" in done.stdout
    assert (tmp_path / "demo.gpumem").exists()
    again = run_demo(tmp_path, "-o", "demo.gpumem")
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.needs("stacks")
def test_it_writes_the_page_when_asked(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--report", "demo.html", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nine_steps.py" in (tmp_path / "demo.html").read_text(encoding="utf-8")
    again = run_demo(tmp_path, "--report", "demo.html")
    assert again.returncode == 2
    assert "demo.html exists already" in again.stderr


def test_it_advises_no_page_that_it_has_written_and_takes_a_folder(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "-o", ".", "--report", "demo.html")
    assert (done.returncode, done.stderr) == (0, "gpumem: wrote demo.html; it opens in any browser\n")
    assert "gpumem report" not in done.stdout
    assert (tmp_path / "demo.gpumem").exists()


@pytest.mark.needs("compiler")
def test_a_card_that_is_too_small_is_not_used(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--json", libraries=build_driver(tmp_path))
    said = json.loads(done.stdout)
    assert said["simulated"] is True
    assert said["why_simulated"] == "GPU 0 has 64.00 MiB free, and 4.00 GiB are needed"
