"""The import direction of docs/architecture.md, read from the sources themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BASE = {"errors", "vocabulary", "units"}

# What each part of gpumem may import from gpumem, at module level or inside functions.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "vocabulary": set(),
    "units": {"errors"},
    "abi": BASE,
    "nvml": BASE,
    "machine": BASE | {"nvml"},
    "trace": BASE,
    "recorder": BASE | {"abi", "nvml", "machine", "trace"},
    "importers": BASE | {"trace", "abi"},
    "heap": BASE | {"trace"},
    "simulate": BASE | {"trace", "importers", "heap", "abi"},
    "seal": BASE | {"trace", "importers", "heap", "abi", "simulate"},
    "analyses": BASE | {"trace", "heap", "simulate", "machine", "nvml", "abi", "recorder"},
    "render": BASE | {"trace", "heap", "analyses", "machine"},
}
ONLY_IN = {
    "click": ("gpumem_cli",),
    "rich": ("gpumem.render.terminal", "gpumem_cli"),
    "plotly": ("gpumem.render.html",),
    "pynvml": ("gpumem.nvml",),
    "ctypes": ("gpumem.abi", "gpumem.machine.file_systems", "gpumem.recorder.torch_tracker", "gpumem.seal.linux"),
}
HEAVY = ("numpy", "pyarrow", "plotly", "torch")


def python_files() -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) of every Python source of the product."""
    for top, package in ((ROOT, "gpumem"), (ROOT / "cli", "gpumem_cli")):
        for path in sorted((top / package).rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


def imported_names(path: Path) -> Iterator[str]:
    """Every absolute module name that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = list(python_files())


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_module_imports_only_what_its_layer_may(module: str, path: Path) -> None:
    parts = module.split(".")
    layer = parts[1] if parts[0] == "gpumem" and len(parts) > 1 else None
    for name in imported_names(path):
        target = name.split(".")
        if (
            layer in ALLOWED
            and target[0] == "gpumem"
            and len(target) > 1
            and (ROOT / "gpumem").joinpath(target[1]).exists()
        ):
            assert target[1] == layer or target[1] in ALLOWED[layer], f"{module} imports {name}"
        if target[0] in ONLY_IN:
            assert module.startswith(ONLY_IN[target[0]]), f"{module} imports {name}"
        if parts[0] == "gpumem" and module != "gpumem.__main__":
            assert target[0] != "gpumem_cli", f"{module} imports {name}"


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_every_file_opens_with_what_it_owns(module: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{module} has no opening docstring"


def test_no_module_bears_the_name_of_a_public_function() -> None:
    top_level = {path.stem for path in (ROOT / "gpumem").iterdir()}
    assert not top_level & {"record", "mark", "scope", "step", "open", "Allocator"}


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, contextlib\n"
        "from gpumem_cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
