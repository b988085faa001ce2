"""What the whole suite shares: the parts a test may need, the GPU switch and golden files.

A test that needs a part says so with `@pytest.mark.needs("torch")`. Where the part is missing the test is not run and
the last line names it, unless GPUMEM_REQUIRE lists the part (as .ci/run does): then it fails. Tests marked `gpu` run
only under `--gpu`, and fail there when no device answers.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from interpreters import WALKED, has_interpreter, has_stacks

GOLDEN_FOLDER = Path(__file__).parent / "golden"
SET_OUTSIDE = (
    *("GPUMEM_RECORD", "PYTHONUNBUFFERED", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "RANK", "LOCAL_RANK"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
)
"""Variables that change what gpumem, or a program that a test starts, does; CUDA_VISIBLE_DEVICES too but for --gpu."""


@functools.cache
def has_mounts() -> bool:
    """Whether file systems can be mounted; root in a container may often not."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode == 0
        return mounted and subprocess.run(["umount", "--lazy", folder]).returncode == 0


PARTS: dict[str, Callable[[], bool]] = {
    "torch": lambda: importlib.util.find_spec("torch") is not None,
    "compiler": lambda: any(shutil.which(name) for name in ("c++", "g++", "clang++")),
    "cmake": lambda: shutil.which("cmake") is not None,
    "clang-format": lambda: importlib.util.find_spec("clang_format") is not None,
    "mount": has_mounts,
    "stacks": has_stacks,
    **{f"python{version}": functools.partial(has_interpreter, version) for version in WALKED},
    "playwright": lambda: importlib.util.find_spec("playwright") is not None,
    "chromium": lambda: any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="run the tests that need a GPU; fail when none answers")
    parser.addoption("--update-golden", action="store_true", help="write what the tests print into tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*parts): not run where a part is missing, failing if GPUMEM_REQUIRE names it"
    )
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; run with --gpu")
    if unknown := required_parts() - PARTS.keys():
        raise pytest.UsageError(f"GPUMEM_REQUIRE names {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    config.stash[NOT_RUN] = {}
    # A runner in the background or under nohup ignores signals, which the programs under test would inherit.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tests see nothing of what the person who runs them has set, of a recording that surrounds them for one."""
    for name in SET_OUTSIDE:
        os.environ.pop(name, None)
    if not session.config.getoption("--gpu"):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.setdefault("PYTHONHASHSEED", "0")


NOT_RUN = pytest.StashKey[dict[str, int]]()


def required_parts() -> set[str]:
    """The parts that GPUMEM_REQUIRE turns from "not run" into a failure."""
    return {part.strip() for part in os.environ.get("GPUMEM_REQUIRE", "").split(",") if part.strip()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--gpu"):
        without_gpu = [item for item in items if item.get_closest_marker("gpu")]
        if without_gpu:
            config.stash[NOT_RUN]["a GPU (--gpu)"] = len(without_gpu)
            config.hook.pytest_deselected(items=without_gpu)
            items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.fail("no GPU answers through NVML, and --gpu was given", pytrace=False)
    for marker in item.iter_markers("needs"):
        for part in marker.args:
            check_part(item.config, part)


def check_part(config: pytest.Config, part: str) -> None:
    """Skips the running test when `part` is missing, or fails it when the part is required."""
    if PARTS[part]():
        return
    if part in required_parts():
        pytest.fail(f"{part} is missing, and GPUMEM_REQUIRE names it", pytrace=False)
    config.stash[NOT_RUN][part] = config.stash[NOT_RUN].get(part, 0) + 1
    pytest.skip(f"needs {part}")


def has_gpu() -> bool:
    """Whether NVML names at least one device."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()) > 0
    except pynvml.NVMLError:
        return False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    not_run = config.stash[NOT_RUN]
    if not_run:
        parts = ", ".join(f"{count} for want of {part}" for part, count in sorted(not_run.items()))
        terminalreporter.write_line(f"not run: {parts}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with tests/golden/name, or writes it under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.name} is not there yet: run pytest --update-golden and look at it", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            actual = path.with_name(path.name + ".actual")
            actual.write_text(text, encoding="utf-8")
        assert text == expected, f"{path} differs; the actual text lies beside it (.actual)"

    return compare


@pytest.fixture
def python() -> str:
    """The interpreter that runs the tests, for subprocesses."""
    return sys.executable
