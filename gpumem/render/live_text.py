"""Findings on running processes in words, each with the command that shows more of it. No command here ends a process.

Owns: the wording that terminal and JSON share. Must not know: layouts, how anything was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpumem.analyses.live import LiveCode, LiveFinding
from gpumem.render.text import printable
from gpumem.units import counted, format_bytes, format_count

LOOK_AT_FILES = "fuser -v /dev/nvidia*"
PIDS_SHOWN = 8
"""In a sentence; JSON has all."""

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting",
    "T": "stopped",
    "t": "traced",
    "Z": "defunct",
    "X": "dead",
    "I": "idle",
}


def state_text(state: str) -> str:
    """A process's state in a word."""
    return _STATES.get(state, printable(state))


def live_finding_text(finding: LiveFinding) -> str:
    """The finding in a sentence or two."""
    return _WRITERS[finding.code](finding)


def live_finding_next(finding: LiveFinding) -> str | None:
    """The command to look further with; None where there is none."""
    if finding.code in (LiveCode.SURVIVING_CHILD, LiveCode.DEFUNCT, LiveCode.STRAY_CONTEXT, LiveCode.MPS):
        return f"ps -o pid,ppid,pgid,stat,user,etime,args -p {','.join(map(str, finding.pids))}"
    if finding.code in (LiveCode.UNLISTED_HOLDER, LiveCode.UNLISTED, LiveCode.LIST_UNAVAILABLE):
        return LOOK_AT_FILES
    if finding.code is LiveCode.HIDDEN_FILES:
        return f"sudo {LOOK_AT_FILES}"
    if finding.code is LiveCode.RECORDED:
        return f"gpumem explain --pid {finding.pids[0]}"
    return None


def _pids(finding: LiveFinding) -> str:
    """`process 12`, `processes 12 and 13`; of many the first few."""
    shown = [str(pid) for pid in finding.pids[:PIDS_SHOWN]]
    if len(finding.pids) > PIDS_SHOWN:
        return f"processes {', '.join(shown)} and {format_count(len(finding.pids) - PIDS_SHOWN)} more"
    return f"process {shown[0]}" if len(shown) == 1 else f"processes {', '.join(shown[:-1])} and {shown[-1]}"


def _by_number(finding: LiveFinding, one: str, several: str) -> str:
    return one if len(finding.pids) == 1 else several


def _started(text: str) -> str:
    return text[0].upper() + text[1:]


def _held(finding: LiveFinding) -> str:
    return "memory of unknown size" if finding.held_bytes is None else format_bytes(finding.held_bytes)


def _surviving_child(finding: LiveFinding) -> str:
    program = "" if finding.parent_pid is None else f" (process {finding.parent_pid})"
    outlived = _by_number(finding, "the program that started it", "the program that started them")
    holds = _by_number(finding, "still holds", "still hold")
    return f"{_started(_pids(finding))} outlived {outlived}{program} and {holds} {_held(finding)}."


def _unlisted_holder(finding: LiveFinding) -> str:
    left = ""
    if finding.count:
        left = _by_number(finding, " It outlived", f" {format_count(finding.count)} of them outlived")
        left += _by_number(finding, " the program that started it.", " the program that started them.")
    return (
        f"{_started(_pids(finding))} {_by_number(finding, 'has', 'have')} the GPU's device files open as programs that "
        f"use CUDA do, but NVML does not list {_by_number(finding, 'it', 'them')}: memory may be held there under no "
        f"name.{left}"
    )


def _defunct(finding: LiveFinding) -> str:
    waits = _by_number(finding, "has ended and waits", "have ended and wait")
    return f"{_started(_pids(finding))} {waits} to be collected by the parent; NVML still lists {_held(finding)}."


def _hidden_processes(finding: LiveFinding) -> str:
    return (
        f"NVML lists {_pids(finding)}, with {_held(finding)}, which cannot be seen from here: of another pid namespace "
        "(the host or another container), or just ended."
    )


def _hidden_figures(finding: LiveFinding) -> str:
    return (
        f"The driver hides how much {_pids(finding)} {_by_number(finding, 'holds', 'hold')} of device "
        f"{finding.device}, as it does on WSL and in some containers: not zero, but not known."
    )


def _list_unavailable(finding: LiveFinding) -> str:
    return f"Device {finding.device}: NVML does not list its processes: {printable(finding.reason or '')}."


def _memory_unavailable(finding: LiveFinding) -> str:
    return f"Device {finding.device}: how much is used is not known: {printable(finding.reason or '')}."


def _own_namespace(finding: LiveFinding) -> str:
    return (
        "This is a pid namespace of its own, as in a container: NVML may leave out processes that are outside it, "
        "or list them by pids that are not known here."
    )


def _proc_foreign(finding: LiveFinding) -> str:
    return (
        "/proc belongs to another pid namespace than this command, so its processes cannot be matched with those that "
        "NVML lists: mount this namespace's own (unshare --pid --fork --mount-proc does)."
    )


def _unlisted(finding: LiveFinding) -> str:
    return (
        f"{_held(finding)} of device {finding.device} are used by no process that NVML lists: managed memory, "
        "processes of other containers, a child left behind, or the driver."
    )


def _stray_context(finding: LiveFinding) -> str:
    return (
        f"{_started(_pids(finding))} {_by_number(finding, 'has', 'have')} no more than a context on device "
        f"{finding.device} ({_held(finding)}), and most on another: a rank that used CUDA before "
        "torch.cuda.set_device. CUDA_VISIBLE_DEVICES prevents it."
    )


def _mps(finding: LiveFinding) -> str:
    return (
        f"MPS serves {_pids(finding)}: the contexts of its clients lie in the server, so a client's own figure is "
        "smaller than without it."
    )


def _hidden_files(finding: LiveFinding) -> str:
    return (
        f"The open files of {counted(finding.count or 0, 'other program')} are hidden from this user: one that holds a "
        "device and is not listed would not be found."
    )


def _not_a_holder(finding: LiveFinding) -> str:
    uses = " It has the GPU's device files open as programs that use CUDA do." if finding.count else ""
    return f"NVML lists {_pids(finding)} on no device.{uses}"


def _recorded(finding: LiveFinding) -> str:
    return f"{_started(_pids(finding))} is being recorded ({printable(finding.reason or '')})."


def _not_recorded(finding: LiveFinding) -> str:
    return (
        f"{_started(_pids(finding))} is not being recorded, so its bytes cannot be split up: context, kernels and "
        "allocator are one figure. gpumem run records a program from its start."
    )


def _driver_reserve(finding: LiveFinding) -> str:
    cards = "the card" if finding.count == 1 else f"{format_count(finding.count or 0)} cards"
    return (
        f"The driver keeps {_held(finding)} of {cards} for itself. nvidia-smi leaves it out of what is "
        "used; tools that ask NVML's first memory call count it in, and show as much more."
    )


_WRITERS: Mapping[LiveCode, Callable[[LiveFinding], str]] = {
    LiveCode.SURVIVING_CHILD: _surviving_child,
    LiveCode.UNLISTED_HOLDER: _unlisted_holder,
    LiveCode.DEFUNCT: _defunct,
    LiveCode.HIDDEN_PROCESSES: _hidden_processes,
    LiveCode.HIDDEN_FIGURES: _hidden_figures,
    LiveCode.LIST_UNAVAILABLE: _list_unavailable,
    LiveCode.MEMORY_UNAVAILABLE: _memory_unavailable,
    LiveCode.OWN_NAMESPACE: _own_namespace,
    LiveCode.PROC_FOREIGN: _proc_foreign,
    LiveCode.UNLISTED: _unlisted,
    LiveCode.STRAY_CONTEXT: _stray_context,
    LiveCode.MPS: _mps,
    LiveCode.HIDDEN_FILES: _hidden_files,
    LiveCode.NOT_A_HOLDER: _not_a_holder,
    LiveCode.RECORDED: _recorded,
    LiveCode.NOT_RECORDED: _not_recorded,
    LiveCode.DRIVER_RESERVE: _driver_reserve,
}
