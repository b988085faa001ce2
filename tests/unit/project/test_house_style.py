"""House style that a machine can hold: sizes, types, formats, words that do not belong here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("gpumem", "cli")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "sample_traces")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for ending in ("*.py", "*.h", "*.cpp", "*.c", "*.js", "*.css")
    for path in (ROOT / folder).rglob(ending)
)
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
NATIVE = [path for path in SOURCES if path.suffix in (".h", ".cpp", ".c")]

FILE_LINES_MAX = 400
BODY_LINES_MAX = 40
"""Of a function, without its signature and docstring."""
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
            has_more = ast.get_docstring(node) is not None and len(node.body) > 1
            first = node.body[1 if has_more else 0]
            assert node.end_lineno is not None
            assert node.end_lineno - first.lineno < BODY_LINES_MAX, f"{node.name} is too long"


@pytest.mark.parametrize("path", NATIVE, ids=name)
def test_native_functions_fit_a_screen(path: Path) -> None:
    for opening, line_count in native_bodies(path.read_text(encoding="utf-8").splitlines()):
        assert line_count <= BODY_LINES_MAX, f"{opening} is too long"


def native_bodies(lines: list[str]) -> Iterator[tuple[str, int]]:
    """A function's first line and how many lines its body has, in code that clang-format has formatted: it ends with
    the first brace that stands no deeper than where it began.
    """
    for number, line in enumerate(lines):
        if not re.search(r"\)[^=;]*\{$", line):
            continue
        start, text = number, line
        while start and text.count(")") > text.count("("):
            start -= 1
            text = lines[start] + text
        indent = len(text) - len(text.lstrip())
        if indent > 4 or re.match(r"\s*(\}|(if|for|while|switch|else|catch|return)\b)", text):
            continue
        ends = (below for below in range(number + 1, len(lines)) if re.match(rf" {{0,{indent}}}}}", lines[below]))
        yield lines[start].strip(), next(ends, number) - number - 1


def test_bodies_of_native_functions_are_found() -> None:
    lines = [
        "int f(int a,",
        "      int b) const {",
        "  if (a) {",
        "    b();",
        "  }",
        "}",
        "class C {",
        "  int g() {",
        "  }",
    ]
    assert list(native_bodies(lines)) == [("int f(int a,", 3), ("int g() {", 0)]


@pytest.mark.parametrize("path", [path for path in PYTHON if path.parts[len(ROOT.parts)] in PRODUCT], ids=name)
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
