"""A ledger in words: the names of its components, and a sentence or two for each finding.

Owns: the wording that terminal, JSON and page share. Must not know: layouts, how anything was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpumem.analyses.explain_findings import Finding, FindingCode
from gpumem.analyses.explain_heap import PinnedSegment
from gpumem.analyses.ledger_parts import Component, ComponentName
from gpumem.render.text import printable
from gpumem.trace.moments import AtEvent, Start, format_moment
from gpumem.units import counted, format_bytes
from gpumem.vocabulary import EventIndex, TraceSource

MOMENT_CHARACTERS_MAX = 40
"""Of a moment inside a sentence."""
MOMENT_CHARACTERS_LEAST = 10
"""Less than that of a name tells nobody anything."""

_LABELS = {
    ComponentName.CUDA_CONTEXT: "CUDA context",
    ComponentName.OUTSIDE_ALLOCATOR: "outside the allocator",
    ComponentName.PROCESS_MEMORY: "not told apart",
    ComponentName.GPUMEM: "gpumem itself",
    ComponentName.ALLOCATOR: "allocator: reserved",
    ComponentName.CHANGE_AT_READING: "change at the reading",
    ComponentName.LIVE_REQUESTS: "live requests",
    ComponentName.WORKSPACES: "cuBLAS workspaces",
    ComponentName.SLACK: "slack",
    ComponentName.PENDING: "pending",
    ComponentName.RELEASABLE: "releasable",
    ComponentName.GAPS: "gaps",
    ComponentName.NOT_TOLD_APART: "slack and idle",
    ComponentName.PRIVATE_POOLS: "private pools",
    ComponentName.USED: "used",
    ComponentName.THIS_PROCESS: "this process",
    ComponentName.OTHER_PROCESSES: "other processes",
    ComponentName.NO_PROCESS: "no process",
    ComponentName.DRIVER_RESERVE: "driver's reserve",
    ComponentName.FREE: "free",
}


def component_label(component: Component, characters_max: int) -> str:
    """The component's name as a reader sees it; a part of what came outside by the moment at which it was seen."""
    for word, moment in (("by ", component.moment), ("after ", component.after)):
        if moment is not None:
            return word + moment_text(moment, component.moment_event, characters_max - len(word))
    return _LABELS[component.name]


def moment_text(moment: str, event: EventIndex | None, characters_max: int) -> str:
    """The moment as `--at` takes it; where that cannot be shown whole, by its event, and as much as fits."""
    shown = printable(moment)
    if event is None or (shown == moment and len(moment) <= characters_max):
        return shown
    exact = format_moment(Start() if event < 0 else AtEvent(event))
    room = characters_max - len(exact) - 2
    if room < MOMENT_CHARACTERS_LEAST:
        return exact
    return f"{exact}, {shown if len(shown) <= room else shown[: room - 3] + '...'}"


def component_name(component: Component) -> str:
    """The component's name as scripts know it: a fixed word, or the moment in the grammar of `--at`."""
    if component.moment is not None:
        return component.moment
    return f"after {component.after}" if component.after is not None else component.name.value


def pinned_text(pinned: PinnedSegment) -> str:
    """A segment and the blocks that pin it, without the site of the largest."""
    largest = format_bytes(pinned.largest_bytes)
    blocks = f"a block of {largest}"
    if pinned.block_count > 1:
        blocks = f"{counted(pinned.block_count, 'block')}, the largest of {largest}"
    return f"{format_bytes(pinned.gap_bytes)} of a {format_bytes(pinned.segment_bytes)} segment are pinned by {blocks}"


def finding_text(finding: Finding) -> str:
    """The finding in a sentence or two, without its list of pinned segments."""
    plain = _PLAIN.get(finding.code)
    if plain is not None:
        return plain.format(held=_held(finding))
    return _WRITERS[finding.code](finding)


_PLAIN = {
    FindingCode.PENDING: (
        "{held} are pending: freed by the program, but another stream uses them still; they become idle then."
    ),
    FindingCode.PRIVATE_POOLS: (
        "{held} are idle in private pools and stay there as long as their CUDA graph or MemPool lives: neither "
        "empty_cache() nor other requests get them."
    ),
    FindingCode.IDLE_CONTEXT: (
        "This process holds {held} on a device where it allocated nothing: a context that some call made there, as in "
        "ranks that use CUDA before torch.cuda.set_device. CUDA_VISIBLE_DEVICES keeps a process off a device."
    ),
    FindingCode.OTHER_PROCESSES: (
        "Other processes held {held} of this device; gpumem explain, without a trace, names those of now."
    ),
    FindingCode.UNLISTED: (
        "{held} are used by no process that NVML lists: managed memory, processes of other containers, or the driver."
    ),
    FindingCode.DRIVER_RESERVE: (
        "The driver keeps {held} of the card for itself: CUDA, and the other reports, count the card without it. "
        "nvidia-smi leaves it out of what is used; tools that ask NVML's first memory call count it in, and show as "
        "much more."
    ),
}


def _held(finding: Finding) -> str:
    return "" if finding.held_bytes is None else format_bytes(finding.held_bytes)


def _more_or_less(finding: Finding) -> str:
    """`2.00 MiB more`, `2.00 MiB less`."""
    held = finding.held_bytes or 0
    return f"{format_bytes(abs(held))} {'more' if held > 0 else 'less'}"


def _gaps_pinned(finding: Finding) -> str:
    segments = f" in {counted(finding.count, 'segment')}" if finding.count else ""
    return f"It cannot return {_held(finding)} of gaps{segments}: blocks in use lie beside them."


def _workspaces(finding: Finding) -> str:
    blocks = counted(finding.count or 0, "block")
    return (
        f"{_held(finding)} in {blocks} of the allocator are cuBLAS's workspaces, told by their bytes and the calls "
        "that asked for them: one for each thread and stream that multiplies matrices, kept to the end."
    )


def _grown_outside(finding: Finding) -> str:
    most = ""
    if finding.moment is not None:
        most = f", most of it by {moment_text(finding.moment, finding.moment_event, MOMENT_CHARACTERS_MAX)}"
    return (
        f"{_held(finding)} came outside the allocator after the context{most}: kernels that load at their first use, "
        "and memory that libraries (cuBLAS, cuDNN, NCCL) take themselves. It stays, and is no leak unless it goes on "
        "growing."
    )


def _unexplained(finding: Finding) -> str:
    return (
        f"The rest: when NVML was read, {_more_or_less(finding)} lay outside the allocator than is told apart here. It "
        "was read after the moment, or while segments came and went."
    )


def _change_at_reading(finding: Finding) -> str:
    return (
        f"NVML was read after another event, when the allocator had reserved {_more_or_less(finding)}; that is a line "
        "of its own."
    )


def _not_recorded(finding: Finding) -> str:
    why = "" if finding.reason is None else f" {printable(finding.reason)}"
    return (
        "No allocator was recorded, so what the process holds is not told apart: its CUDA context, the blocks of its "
        f"allocators and the memory that libraries take.{why} gpumem doctor says what recording needs here."
    )


def _no_process_figure(finding: Finding) -> str:
    if finding.source is TraceSource.PYTORCH_SNAPSHOT:
        return (
            "A snapshot of PyTorch's holds no NVML reading, so this is the allocator's part alone; gpumem run records "
            "NVML beside it."
        )
    so = "" if finding.source is TraceSource.NONE else ", so this is the allocator's part alone"
    if finding.reason is None:
        return f"The recording has no NVML reading of this device{so}."
    return f"There is no NVML figure of this process{so}: {printable(finding.reason)}."


def _empty_cache(finding: Finding) -> str:
    if finding.held_bytes is None:
        return "What empty_cache() would return now cannot be told without the bytes of each block."
    if not finding.held_bytes:
        return "empty_cache() would return nothing now: no segment is wholly free."
    return f"empty_cache() would return {format_bytes(finding.held_bytes)} now, all that is wholly free."


def _events_lost(finding: Finding) -> str:
    return (
        f"{counted(finding.count or 0, 'event')} of the recording are lost: what they reserved or returned is counted "
        "on the wrong side of the allocator's border."
    )


def _blocks_not_known(finding: Finding) -> str:
    if finding.count:
        lie = "lies" if finding.count == 1 else "lie"
        return (
            f"{counted(finding.count, 'block')} in use {lie} in segments that the recording does not know, so slack "
            "and idle bytes cannot be told apart."
        )
    return (
        "The recording does not say how large each block was, so slack and idle bytes are not told apart; once the "
        "program has ended, gpumem import fills that in."
    )


_WRITERS: Mapping[FindingCode, Callable[[Finding], str]] = {
    FindingCode.ALLOCATOR_NOT_RECORDED: _not_recorded,
    FindingCode.NO_PROCESS_FIGURE: _no_process_figure,
    FindingCode.EVENTS_LOST: _events_lost,
    FindingCode.EMPTY_CACHE: _empty_cache,
    FindingCode.GAPS_PINNED: _gaps_pinned,
    FindingCode.WORKSPACES: _workspaces,
    FindingCode.GROWN_OUTSIDE: _grown_outside,
    FindingCode.UNEXPLAINED: _unexplained,
    FindingCode.CHANGE_AT_READING: _change_at_reading,
    FindingCode.BLOCKS_NOT_KNOWN: _blocks_not_known,
}
