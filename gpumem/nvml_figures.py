"""What NVML's figures mean: memory with the driver's reserve, processes over several lists, and what is not to be had.

Owns: the figures, and every rule by which they follow from what NVML says. Must not know: how NVML is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

NOT_AVAILABLE = (1 << 64) - 1
"""NVML's way of saying that a figure is not to be had."""
_FAR_BYTES = (1 << 63) - 1
"""No sum or difference of memory figures is further from 0."""
NOT_STARTED = "process not listed: it has not started CUDA on this device"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A figure that could not be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Device memory: total = used + free + reserved, where `reserved_bytes` is the driver's own share."""

    total_bytes: int | Unavailable
    used_bytes: int | Unavailable
    free_bytes: int | Unavailable
    reserved_bytes: int | Unavailable


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What NVML attributes to one process on a device, and to all others together."""

    process_bytes: int | Unavailable
    other_processes_bytes: int | Unavailable


class ProcessKind(Enum):
    """In which of NVML's lists a process stands."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process on a device as NVML lists it, once however many lists it stands in; None where bytes are hidden."""

    pid: int
    held_bytes: int | None
    kinds: frozenset[ProcessKind]


@dataclass(frozen=True, slots=True)
class RawProcess:
    """A process in one of NVML's lists; `list_index` is the list's position in LISTS."""

    pid: int
    held_bytes: int
    """NOT_AVAILABLE where the driver hides it."""
    list_index: int


@dataclass(frozen=True, slots=True)
class RawFigures:
    """What NVML's C functions said of a device: the memory call of version 2, each process list, and their codes."""

    memory_code: int
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int
    list_codes: tuple[int, ...]
    """By position in LISTS; where the first list was refused the others were not asked for."""
    processes: tuple[RawProcess, ...]


class Part(Enum):
    """Which figure of ProcessFigures a listed process counts for; none where another list says the same."""

    NONE = 0
    OWN = 1
    OTHERS = 2


@dataclass(frozen=True, slots=True)
class ReserveRule:
    """How `used` without the driver's reserve comes about, and within which bounds that stays so.

    It stays so while total and reserve are the same.
    """

    subtracted_bytes: int
    used_bytes_least: int
    rest_bytes_least: int
    """Of total - free - used."""
    rest_bytes_most: int


LISTS = (ProcessKind.COMPUTE, ProcessKind.GRAPHICS, ProcessKind.MPS)
"""NVML's process lists, in the order in which they are asked for."""


def measure_memory(total: object, used: object, free: object, reserved: object) -> MemoryFigures:
    """Device memory by the four figures of version 2 of NVML's call."""
    figures = tuple(known_figure(value) for value in (total, used, free, reserved))
    total_bytes, used_bytes, free_bytes, reserved_bytes = figures
    if (
        isinstance(total_bytes, int)
        and isinstance(used_bytes, int)
        and isinstance(free_bytes, int)
        and isinstance(reserved_bytes, int)
    ):
        rule = _find_reserve_rule(total_bytes, used_bytes, free_bytes, reserved_bytes)
        used_bytes -= rule.subtracted_bytes
    return MemoryFigures(total_bytes, used_bytes, free_bytes, reserved_bytes)


def merge_lists(rows: Iterable[tuple[ProcessKind, int, int | None]]) -> list[ListedProcess]:
    """Each process once, out of the rows (list, pid, bytes) of all lists; of several figures the last one known."""
    found: dict[int, ListedProcess] = {}
    for kind, pid, figure in rows:
        # A process can stand in several lists, with the same figure in each.
        is_known = figure is not None and figure != NOT_AVAILABLE
        before = found.get(pid, ListedProcess(pid, None, frozenset()))
        held_bytes = figure if is_known else before.held_bytes
        found[pid] = ListedProcess(pid, held_bytes, before.kinds | {kind})
    return list(found.values())


def merge_raw_lists(raw: RawFigures) -> list[ListedProcess]:
    """As merge_lists, of what the C functions said."""
    return merge_lists((LISTS[one.list_index], one.pid, one.held_bytes) for one in raw.processes)


def measure_processes(held: dict[int, int | None], own_pids: frozenset[int], *, own_expected: bool) -> ProcessFigures:
    """Splits bytes by pid into this process and all others, with a reason where that cannot be done."""
    if len(own_pids & held.keys()) > 1:
        unsure = Unavailable("several processes listed may be this one, by its pids in several namespaces")
        return ProcessFigures(unsure, unsure)
    parts = _find_parts(held, own_pids)
    others = [figure for pid, figure in held.items() if parts[pid] is Part.OTHERS]
    hidden = sum(figure is None for figure in others)
    others_bytes: int | Unavailable = sum(figure for figure in others if figure is not None)
    if hidden:
        others_bytes = Unavailable(f"the driver hides the memory of {hidden} of {len(others)} other processes")
    for pid, part in parts.items():
        if part is Part.OWN:
            own_bytes = held[pid]
            hides = Unavailable("the driver hides the memory of this process")
            return ProcessFigures(hides if own_bytes is None else own_bytes, others_bytes)
    if not own_expected:
        return ProcessFigures(Unavailable(NOT_STARTED), others_bytes)
    missing = Unavailable("process not listed (another pid namespace?)")
    if others:
        # One of the pids listed may be this very process under its name in another namespace.
        return ProcessFigures(missing, Unavailable("this process cannot be told apart from the others"))
    return ProcessFigures(missing, others_bytes)


def find_parts(raw: RawFigures, own_pids: frozenset[int]) -> list[Part]:
    """Which figure each row of `raw.processes` counts for, as long as the same processes are listed and hidden."""
    counted = {one.pid: row for row, one in enumerate(raw.processes) if one.held_bytes != NOT_AVAILABLE}
    parts = _find_parts([one.pid for one in raw.processes], own_pids)
    return [parts[one.pid] if counted.get(one.pid) == row else Part.NONE for row, one in enumerate(raw.processes)]


def find_reserve_rule(raw: RawFigures) -> ReserveRule | None:
    """By which rule the driver's reserve is in `used` or not; None where nothing of lasting use can be said."""
    figures = (raw.total_bytes, raw.used_bytes, raw.free_bytes, raw.reserved_bytes)
    return None if raw.memory_code or NOT_AVAILABLE in figures else _find_reserve_rule(*figures)


def _find_parts(pids: Iterable[int], own_pids: frozenset[int]) -> dict[int, Part]:
    """By pid; of several of this process's own names none counts: all but one are other processes."""
    listed = list(dict.fromkeys(pids))
    own = Part.OWN if len(own_pids.intersection(listed)) == 1 else Part.NONE
    return {pid: own if pid in own_pids else Part.OTHERS for pid in listed}


def _find_reserve_rule(total_bytes: int, used_bytes: int, free_bytes: int, reserved_bytes: int) -> ReserveRule:
    """Some drivers count their reserve as used, so that total = used + free: it is taken out then."""
    rest_bytes = total_bytes - free_bytes - used_bytes
    half_bytes = reserved_bytes // 2
    if reserved_bytes <= 0:
        return ReserveRule(0, 0, -_FAR_BYTES, _FAR_BYTES)
    if rest_bytes >= half_bytes:
        return ReserveRule(0, 0, half_bytes, _FAR_BYTES)
    if used_bytes >= reserved_bytes:
        return ReserveRule(reserved_bytes, reserved_bytes, -_FAR_BYTES, half_bytes - 1)
    # Less used than reserved: that says nothing of the figures to come.
    return ReserveRule(0, 0, _FAR_BYTES, -_FAR_BYTES)


def known_figure(value: object) -> int | Unavailable:
    """`value`, unless NVML says by it that there is none."""
    if not isinstance(value, int) or value == NOT_AVAILABLE:
        return Unavailable("NVML says that the figure is not available")
    return value
