"""The import hook's manners towards other finders and other hooks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpumem.recorder.import_hook import ImportHook

NAME = "gpumem_pretended_module"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An importable module, forgotten again afterwards."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_two_hooks_hear_the_same_import_once_each() -> None:
    heard: list[str] = []
    hooks = [
        ImportHook(NAME, lambda module, number=number: heard.append(f"{number} {module.value}")) for number in (1, 2)
    ]
    for hook in hooks:
        hook.install()
    found = importlib.import_module(NAME)
    assert sorted(heard) == ["1 1", "2 1"]
    assert not set(hooks) & set(sys.meta_path)
    assert found.__spec__ is not None
    assert "exec_module" not in vars(found.__spec__.loader)
    sys.modules.pop(NAME)


def test_hook_that_was_removed_hears_nothing() -> None:
    heard: list[ModuleType] = []
    hook = ImportHook(NAME, heard.append)
    hook.install()
    hook.remove()
    hook.remove()
    importlib.import_module(NAME)
    sys.modules.pop(NAME)
    assert heard == []
