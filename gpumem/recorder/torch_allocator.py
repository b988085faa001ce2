"""Our allocator in PyTorch's place: plugged in at the end of `import torch`, its figures served where torch asks.

Owns: PyTorch's hooks for a pluggable allocator, and the functions on torch._C that every torch.cuda figure looks up
when it is called. Must not know: when that happens (torch_hook), how memory is found.

torch is passed in, never imported. The functions are replaced on torch._C and never on torch.cuda, so that names that a
program imported earlier follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpumem import abi
from gpumem.abi.allocator import answer_cache_info, let_peers_in, load_core, prepare_torch, serve_directly
from gpumem.abi.torch_release import behaviour_of
from gpumem.errors import TrackerUnavailable
from gpumem.recorder import own_allocators, torch_figures

_SETTERS = {
    "set_reset_fn": "gm_torch_empty_cache",
    "set_record_stream_fn": "gm_torch_record_stream",
    "set_memory_fraction_fn": "gm_torch_set_memory_fraction",
    "set_begin_allocate_to_pool": "gm_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "gm_torch_end_pool",
    "set_release_pool": "gm_torch_release_pool",
}
"""Hooks of torch's CUDAPluggableAllocator, and what they call."""

_REFUSED = (
    "_cuda_attach_out_of_memory_observer",
    "_cuda_getCheckpointState",
    "_cuda_setCheckpointPoolState",
    "_cuda_checkPoolLiveAllocations",
    "_cuda_beginAllocateCurrentThreadToPool",
)
_REFUSED_CLASSES = ("_MemPool",)
"""What a pluggable allocator cannot do, and cannot make: torch's own refusal gets a sentence more."""
HINT = "gpumem's allocator serves PyTorch in this run; use gpumem run --allocator native for what it cannot do."


def plug_in(torch: ModuleType, *, settings: str) -> str | None:
    """Makes ours PyTorch's allocator; a sentence on what will not work under it, None when nothing is known to fail.

    Raises UsageError for settings that are not the allocator's, TrackerUnavailable where this torch does not take an
    allocator, or has begun to use its own.
    """
    number = own_allocators.number_in_torch_place(settings)
    prepare_torch(settings, behaviour=behaviour_of(torch.__version__), number=number)
    core = torch._C
    if not hasattr(core, "_cuda_customAllocator"):
        raise TrackerUnavailable(f"gpumem's allocator cannot serve torch {torch.__version__}: it takes no other.")
    plugged = core._cuda_customAllocator(_address("gm_torch_malloc"), _address("gm_torch_free"))
    for setter, function in _SETTERS.items():
        if hasattr(plugged, setter):
            getattr(plugged, setter)(_address(function))
    try:
        core._cuda_changeCurrentAllocator(plugged)
    except RuntimeError as error:
        raise TrackerUnavailable(
            f"gpumem's allocator cannot serve PyTorch, which uses its own already ({_first_line(error)}); start the "
            "program with gpumem run --allocator gpumem."
        ) from None
    _kept.append(plugged)
    own_allocators.note_torch_served(settings, torch.__version__)
    _serve_figures(torch)
    serve_directly()  # where it cannot be, requests come by PyTorch's own, longer way and are served as well
    wrong_between_gpus = let_peers_in()
    return answer_cache_info() or wrong_between_gpus


_kept: list[object] = []
"""What torch refers to and does not keep itself."""


def _serve_figures(torch: ModuleType) -> None:
    core = torch._C
    figures = torch_figures.TorchFigures(core._cuda_setMemoryFraction)
    for name, function in figures.functions().items():
        if hasattr(core, name):
            setattr(core, name, function)
    for name in _REFUSED:
        if hasattr(core, name):
            setattr(core, name, _with_hint(getattr(core, name)))
    for name in _REFUSED_CLASSES:
        if hasattr(core, name):
            made = getattr(core, name)
            made.__init__ = _with_hint(made.__init__)


def _with_hint(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose "does not yet support" says also what to do about it."""

    @functools.wraps(function)
    def called(*arguments: object, **keywords: object) -> Any:
        try:
            return function(*arguments, **keywords)
        except RuntimeError as error:
            if "does not yet support" not in str(error):
                raise
            raise RuntimeError(f"{_first_line(error)} {HINT}") from error

    return called


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _address(name: str) -> int:
    load_core()
    return abi.function_address(name)
