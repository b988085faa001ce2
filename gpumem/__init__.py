"""gpumem tells people where their GPU memory goes.

Owns: the lazy public names. Must not import numpy, pyarrow, torch or anything heavy at import time.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["Allocator", "OutOfMemoryError", "__version__", "mark", "open", "record", "scope", "step"]

_HOMES = {
    "record": "gpumem.recorder.session",
    "mark": "gpumem.recorder.marks",
    "scope": "gpumem.recorder.marks",
    "step": "gpumem.recorder.marks",
    "Allocator": "gpumem.allocator",
    "OutOfMemoryError": "gpumem.errors",
}

# typing's own constant would cost an import in every process that is armed.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpumem.allocator import Allocator
    from gpumem.errors import OutOfMemoryError
    from gpumem.recorder.marks import mark, scope, step
    from gpumem.recorder.session import record
    from gpumem.simulate.opening import open_trace as open


def __getattr__(name: str) -> object:
    """The public name `name`, imported at first use."""
    import importlib

    if name == "open":
        return importlib.import_module("gpumem.simulate.opening").open_trace
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gpumem' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
