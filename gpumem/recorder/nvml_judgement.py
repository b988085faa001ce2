"""Carries NVML's figures from the native core to those who judge them, and the judgement back.

Owns: which judgement lasts, so that the core may record readings of the same kind without asking. Must not know: what
NVML's figures mean, when readings are taken.
"""

from __future__ import annotations

from gpumem.abi.nvml import JudgedDevice, NvmlSampling, Part, TakenFigures
from gpumem.nvml import MemoryFigures, Nvml, ProcessFigures, Unavailable
from gpumem.nvml_figures import RawFigures, RawProcess, ReserveRule, find_parts, find_reserve_rule

_ANY_MEMORY = ReserveRule(0, 0, 0, 0)
"""Where memory figures are refused nothing is looked at."""


def open_sampling(nvml: Nvml) -> NvmlSampling | None:
    """NVML's functions for the core to call; None where the library does not give them away."""
    calls = nvml.find_calls()
    return None if calls is None else NvmlSampling(calls.read_memory, calls.list_processes, calls.memory_version)


def raw_figures(taken: TakenFigures) -> RawFigures:
    """The core's figures, as nvml.py judges them."""
    return RawFigures(
        memory_code=taken.memory_code,
        total_bytes=taken.total_bytes,
        used_bytes=taken.used_bytes,
        free_bytes=taken.free_bytes,
        reserved_bytes=taken.reserved_bytes,
        list_codes=taken.list_codes,
        processes=tuple(RawProcess(*row) for row in taken.processes),
    )


def find_lasting_judgement(
    handle: object,
    ordinal: int,
    taken: TakenFigures,
    memory: MemoryFigures,
    processes: ProcessFigures,
    own_pids: frozenset[int],
) -> JudgedDevice | None:
    """How figures like `taken` become readings from now on; None where each must be judged."""
    raw = raw_figures(taken)
    memory_figures = (memory.total_bytes, memory.used_bytes, memory.free_bytes, memory.reserved_bytes)
    are_refused = all(isinstance(figure, Unavailable) for figure in memory_figures)
    rule = _ANY_MEMORY if raw.memory_code and are_refused else find_reserve_rule(raw)
    if rule is None:
        return None
    figures = (*memory_figures, processes.process_bytes, processes.other_processes_bytes)
    return JudgedDevice(
        handle=handle,
        figures=taken,
        ordinal=ordinal,
        subtracted_bytes=rule.subtracted_bytes,
        used_bytes_least=rule.used_bytes_least,
        rest_bytes_least=rule.rest_bytes_least,
        rest_bytes_most=rule.rest_bytes_most,
        parts=[Part(part.value) for part in find_parts(raw, own_pids)],
        unavailable=sum(1 << bit for bit, figure in enumerate(figures) if isinstance(figure, Unavailable)),
    )
