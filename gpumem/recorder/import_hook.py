"""Calls back at the end of the program's own `import torch`, whenever and however that happens.

Owns: the finder on sys.meta_path and the one loader instance it changes. Must not know: what is done then. torch is
never imported from here: the program may still set environment variables before it does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportHook:
    """A finder that lets the others find `module_name` and has `act` called once its module has been executed.

    Only the loader instance of that one spec gets an exec_module of its own, taken away again as it runs: a loader
    of ours in its place would show in importlib.util.find_spec.
    """

    def __init__(self, module_name: str, act: Callable[[ModuleType], None]) -> None:
        self._module_name = module_name
        self._act = act
        self._searching = threading.local()

    def install(self) -> None:
        """Puts the hook before every other finder."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Takes the hook away again; harmless when it is gone."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, its loader hooked; None for every other module."""
        if name != self._module_name or getattr(self._searching, "is_under_way", False):
            return None
        self._searching.is_under_way = True
        try:
            spec = self._find_by_others(name, path, target)
        finally:
            self._searching.is_under_way = False
        if spec is not None:
            self._hook_loader(spec)
        return spec

    def _find_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _hook_loader(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return
        before = vars(loader).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            if before is not None:  # another's hook, which leaves in its turn
                vars(loader)["exec_module"] = before
            loader.exec_module(module)
            self.remove()
            self._act(module)

        vars(loader)["exec_module"] = exec_module
