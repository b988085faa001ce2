"""House style that a machine can hold: sizes, types, formats, words that do not belong here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted(
    path
    for folder in ("gpumem", "cli")
    for ending in ("*.py", "*.h", "*.cpp", "*.js", "*.css")
    for path in (ROOT / folder).rglob(ending)
)
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
NATIVE = sorted(
    path for folder in ("gpumem", "tests") for ending in ("*.h", "*.cpp") for path in (ROOT / folder).rglob(ending)
)

FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
UNCLEAR_MODULES = {"utils", "common", "helpers", "manager", "base", "misc"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_file_is_short_enough_to_hold_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES_MAX
    assert path.stem not in UNCLEAR_MODULES


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, f"{node.name} is too long"


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_nothing_is_swallowed_and_nothing_left_undone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"except( Exception| BaseException)?:\n\s+pass", text)
    assert not re.search(r"\b(TODO|FIXME|XXX)\b|NotImplementedError", text)


def test_types_hold_strictly() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_finds_nothing(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("clang-format")
def test_native_code_is_formatted() -> None:
    import clang_format

    program = Path(clang_format.__file__).parent / "data" / "bin" / "clang-format"
    done = subprocess.run([program, "--dry-run", "--Werror", *NATIVE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
