"""The words for a verdict on an out-of-memory error, the same wherever it is shown: terminal, JSON, page.

Owns: a sentence for each verdict and finding, and the commands to paste. Must not know: how a verdict is found, layout.
Numbers of figures that were printed with two decimals are written as exactly as they are known.
"""

from __future__ import annotations

import shlex

from gpumem.analyses.oom_findings import is_card_short, is_without_figures
from gpumem.analyses.oom_rule import OomCode, OomFinding, OomVerdict, Verdict, is_held_elsewhere
from gpumem.render.text import printable
from gpumem.trace.oom_message import IMPOSSIBLE_BYTES, Figure, OomOrigin
from gpumem.units import format_bytes

EXPANDABLE_SETTING = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
EXPANDABLE_ARGUMENT = 'gpumem.Allocator("cuda", settings="expandable_segments:True")'
MAX_SPLIT_SETTING = "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"
_LESS = "a smaller batch, shorter sequences, activation checkpointing, lower precision or sharded optimizer states"

_LIMITS = {
    OomOrigin.TORCH: (
        "torch.cuda.set_per_process_memory_fraction in your code or your framework's, or per_process_memory_fraction "
        "in PYTORCH_CUDA_ALLOC_CONF"
    ),
    OomOrigin.CUPY: "set_limit of CuPy's memory pool, or CUPY_GPU_MEMORY_LIMIT",
    OomOrigin.GPUMEM: "memory_bytes of gpumem.Allocator, or per_process_memory_fraction in its settings",
}
OWNERS = {
    OomOrigin.TORCH: "PyTorch",
    OomOrigin.TORCH_ASYNC: "PyTorch",
    OomOrigin.CUPY: "CuPy",
    OomOrigin.GPUMEM: "gpumem",
    OomOrigin.LIBRARY: "the allocator",
    OomOrigin.TRACE: "the allocator",
}


def verdict_text(found: OomVerdict) -> str:
    """The verdict in one or two sentences, with the figures it turns on."""
    return {
        Verdict.CAPACITY: _capacity,
        Verdict.FRAGMENTATION: _fragmentation,
        Verdict.LIMIT: _limit,
        Verdict.OUTSIDE: _outside,
        Verdict.PRIVATE_POOLS: _private_pools,
        Verdict.SPILL: _spill,
        Verdict.UNKNOWN: _unknown,
    }[found.verdict](found)


def verdict_word(verdict: Verdict) -> str:
    """`private pools`."""
    return verdict.value.replace("_", " ")


def finding_text(finding: OomFinding, found: OomVerdict) -> str:
    """What a finding says or advises."""
    owner = OWNERS[found.facts.origin]
    amount = "" if finding.byte_count is None else format_bytes(finding.byte_count)
    text = _TEXTS[finding.code]
    if finding.code is OomCode.NEED_LESS:
        text = _need_less(found, finding)
    elif finding.code is OomCode.WITHIN_ROUNDING:
        others = " or ".join(verdict_word(verdict) for verdict in found.also_possible)
        text = f"The figures are rounded to two decimals, and within that the verdict could also be {others}."
    elif finding.code is OomCode.FIND_HIDDEN_PROCESSES:
        text = _hidden(found, amount)
    elif finding.code is OomCode.LIMIT_NOT_NAMED:
        text = _limit_not_named(found)
    elif finding.code is OomCode.RECORD and found.facts.allocated is not None:
        text = (
            f"See which lines of your program hold the {format_bytes(found.facts.allocated.byte_count)}: record a run."
        )
    elif finding.code is OomCode.RAISE_LIMIT:
        text = f"Raise the limit: {_LIMITS.get(found.facts.origin, _LIMITS[OomOrigin.TORCH])}."
        if is_card_short(found):
            text += " That alone does not help: the card has only {amount} free."
    elif finding.code is OomCode.SEGMENT_ROUNDED:
        text = _segment_rounded(found)
    return text.format(amount=amount, pid=finding.pid, owner=owner)


def finding_command(
    finding: OomFinding, recording: str | None = None, *, origin: OomOrigin = OomOrigin.TORCH
) -> str | None:
    """The commands to paste for a finding, a line each; None where there is none. `recording`: what was looked at."""
    name = "run.gpumem" if recording is None else shlex.quote(printable(recording))
    setting = EXPANDABLE_SETTING if origin is not OomOrigin.GPUMEM else EXPANDABLE_ARGUMENT
    record = "" if recording is not None else "gpumem run -o run.gpumem train.py\n"
    commands = {
        OomCode.SET_EXPANDABLE: setting,
        OomCode.SET_MAX_SPLIT: MAX_SPLIT_SETTING,
        OomCode.TRY_REPLAY: f"{record}gpumem replay {name} --set expandable_segments=True",
        OomCode.ALSO_FRAGMENTED: setting,
        OomCode.LOOK_AT_PROCESS: f"gpumem explain --pid {finding.pid}",
        OomCode.FIND_HIDDEN_PROCESSES: "gpumem explain",
        OomCode.CUT_OWN_OUTSIDE: f"{record}gpumem explain {name} --at oom",
        OomCode.RECORD: f"{record}gpumem summary {name}\ngpumem report {name}",
        OomCode.WATCH_DRIVER: "nvidia-smi",
    }
    return commands.get(finding.code)


def is_advice(code: OomCode) -> bool:
    """Whether a finding says what to do, and not what a figure means."""
    return code in _ADVICE


def asked_text(found: OomVerdict) -> str:
    """What the program itself asked for, where that is known: `a request of 1 to 10 MiB`; else ""."""
    span, facts = found.request_range, found.facts
    if span is None or facts.asked is None:
        return ""
    least, most = span
    if least == most:
        return "" if most == facts.asked.byte_count else f"a segment for a request of {format_bytes(most)}"
    if least <= 1:
        return f"a segment for a request of up to {format_bytes(most)}"
    if format_bytes(least) == format_bytes(most) or facts.asked.rounding_bytes:
        return "a segment, the request rounded up to 2 MiB"
    return f"a segment for a request of {format_bytes(least)} to {format_bytes(most)}"


def is_rough(figure: Figure) -> bool:
    """Whether a figure is so rough that this has to be said: its rounding is more than 2 % of it."""
    return figure.rounding_bytes * 50 > figure.byte_count


def is_more_than_rounding(figure: Figure) -> bool:
    """Whether a difference is more than the rounding of the figures it comes from, or exact."""
    return figure.byte_count > figure.rounding_bytes or not figure.rounding_bytes


def _bytes(figure: Figure | None) -> str:
    if figure is None:
        return "an unknown number of bytes"
    return f"about {format_bytes(figure.byte_count)}" if is_rough(figure) else format_bytes(figure.byte_count)


def _reach(found: OomVerdict) -> str:
    """`187.94 MiB free on the card and 335.07 MiB idle in PyTorch's reserve make 523.01 MiB`."""
    facts = found.facts
    idle = f"{_bytes(facts.idle)} idle in {_owners(facts.origin)} reserve"
    pools = f" and {_bytes(facts.private_idle)} idle in private pools" if found.has_private_in_reach else ""
    return f"{_bytes(facts.free)} free on the card and {idle}{pools} make {_bytes(found.within_reach)}"


def _owners(origin: OomOrigin) -> str:
    owner = OWNERS[origin]
    return f"{owner}'s"


def _capacity(found: OomVerdict) -> str:
    facts = found.facts
    if facts.asked is not None and facts.asked.byte_count >= IMPOSSIBLE_BYTES:
        return "Capacity: more than 1 EiB (2^60 bytes) were asked for, which no memory has."
    if facts.idle is None or found.short is None:
        return (
            f"Capacity: {_bytes(facts.asked)} were asked for in one piece, more than the card's {_bytes(facts.card)}."
        )
    return (
        f"Capacity: {_bytes(found.short)} too little, and no setting can help. {_bytes(facts.asked)} were asked for; "
        f"{_reach(found)}."
    )


def _fragmentation(found: OomVerdict) -> str:
    return (
        f"Fragmentation: the bytes were there, but not in one piece. {_bytes(found.facts.asked)} were asked for; "
        f"{_reach(found)}."
    )


def _limit(found: OomVerdict) -> str:
    facts, owner = found.facts, OWNERS[found.facts.origin]
    if facts.is_preemptive:
        return (
            f"A limit: PyTorch refused {_bytes(facts.asked)} before it asked the driver, for they would exceed its "
            "per-process memory fraction."
        )
    if facts.limit is not None and facts.reserved is not None:
        free = "" if facts.free is None else f", with {_bytes(facts.free)} free on the card"
        return (
            f"A limit: {owner} may hold {_bytes(facts.limit)}, held {_bytes(facts.reserved)} and asked for "
            f"{_bytes(facts.asked)} more{free}."
        )
    return (
        f"A limit that is not named: {_bytes(facts.asked)} were refused although {_bytes(facts.free)} were free on the "
        "card."
    )


def _outside(found: OomVerdict) -> str:
    return (
        f"Outside {OWNERS[found.facts.origin]}: {_bytes(found.short)} too little, while {_bytes(found.outside)} of "
        f"the card's {_bytes(found.facts.card)} are neither free nor {_owners(found.facts.origin)}. "
        f"{_bytes(found.facts.asked)} were asked for; {_reach(found)}."
    )


def _private_pools(found: OomVerdict) -> str:
    return (
        f"Private pools: {_bytes(found.facts.private_idle)} lie idle in the pools of CUDA graphs or a MemPool, which "
        f"alone may use them. {_bytes(found.facts.asked)} were asked for; {_reach(found)}."
    )


def _spill(found: OomVerdict) -> str:
    facts = found.facts
    held = facts.reserved if facts.reserved is not None else facts.allocated
    return (
        f"Spill: {OWNERS[facts.origin]} holds {_bytes(held)} on a card of {_bytes(facts.card)}: the driver lends host "
        "memory, which is slow, and had no more to lend."
    )


def _unknown(found: OomVerdict) -> str:
    facts = found.facts
    if facts.origin is OomOrigin.LIBRARY:
        return "Unknown: memory was refused, and this error gives no figures of the card."
    if is_without_figures(facts):
        return "Unknown: PyTorch's error begins like this, but the figures that follow there are missing here."
    if facts.asked is not None and facts.free is None:
        return f"Unknown: {_bytes(facts.asked)} were refused, and the error does not say what was free on the card."
    if facts.asked is not None and facts.idle is None:
        return (
            f"Unknown: {_bytes(facts.asked)} were refused with {_bytes(facts.free)} free on the card, and the error is "
            f"cut off before it says what lay idle in {_owners(facts.origin)} reserve."
        )
    if is_held_elsewhere(facts):
        return (
            f"Unknown: {OWNERS[facts.origin]} counts {_bytes(facts.reserved)} as its own, but this process holds "
            f"{_bytes(facts.process)} of the card's {_bytes(facts.card)}."
        )
    return "Unknown: the figures of this error contradict one another."


def _need_less(found: OomVerdict, finding: OomFinding) -> str:
    if found.verdict is Verdict.SPILL:
        return f"Need {{amount}} less, so that all of it fits the card: {_LESS}."
    if finding.byte_count is None:
        return f"Or need less: {_LESS}."
    if is_card_short(found):
        return f"Need {{amount}} less: {_LESS}."
    if found.verdict is Verdict.CAPACITY:
        return f"Need {{amount}} less: {_LESS}; or a card with that much more."
    return f"Or need {{amount}} less: {_LESS}."


def _hidden(found: OomVerdict, amount: str) -> str:
    if found.facts.origin is OomOrigin.CUPY:
        return "See what else holds memory on the card: CuPy's error does not say what was free."
    if found.own_outside is None:
        return (
            f"{amount} of the card are neither free nor {{owner}}'s: this process's CUDA context (0.3 to 1 GiB) and "
            "libraries, and whatever else runs there. See which."
        )
    return (
        f"{amount} of the card belong to processes that the error does not list (another container's, another user's)."
    )


def _limit_not_named(found: OomVerdict) -> str:
    least, below = found.implied_limit or (0, 0)
    text = f"A limit of {{owner}}'s own that explains this lies from {format_bytes(least)} to {format_bytes(below)}"
    if found.implied_fraction is None:
        return f"{text}."
    return f"{text}: a per-process fraction of {found.implied_fraction:.2f} does."


def _segment_rounded(found: OomVerdict) -> str:
    least, most = found.request_range or (0, 0)
    return (
        "What was asked for is a segment: the request rounded up to a multiple of 2 MiB, so the tensor has between "
        f"{format_bytes(least)} and {format_bytes(most)}."
    )


_TEXTS = {
    OomCode.SEGMENT_SMALL: (
        "2 MiB is the segment for any request of up to 1 MiB: the tensor may be tiny, and the memory full to the last."
    ),
    OomCode.SEGMENT_LARGE: (
        "20 MiB is the segment for any request above 1 MiB and below 10 MiB (or 18 to 20 MiB): not the tensor's bytes."
    ),
    OomCode.SEGMENT_ROUNDED: "",
    OomCode.WITHIN_ROUNDING: "",
    OomCode.IMPOSSIBLE_REQUEST: (
        "Look at the shape that the line at fault computes: a size went negative, overflowed, or multiplied where it "
        "should not have."
    ),
    OomCode.LARGER_THAN_CARD: "The one request is larger than the whole card ({amount}): look at its shape first.",
    OomCode.SETTING_CANNOT_HELP: (
        "The error's own advice, expandable_segments, cannot help: it makes use of idle bytes, and there are {amount}."
    ),
    OomCode.LIMIT_NOT_NAMED: "",
    OomCode.PROCESS_IS_THIS_ONE: (
        "Process {pid}, listed with {amount}, is most likely this one: in a container its number is another."
    ),
    OomCode.HELD_ELSEWHERE: (
        "{owner} counts more than the {amount} that this process holds on the card: something gave memory back behind "
        "its allocator (a sleep mode, torch_memory_saver), and its figures cannot be relied on."
    ),
    OomCode.FIGURES_CONTRADICT: (
        "{amount} free on a smaller card: on an integrated GPU the driver counts host memory, and its figures mix both."
    ),
    OomCode.MESSAGE_CUT: "The error is cut off: with all of its figures the verdict would be surer.",
    OomCode.PAST_THE_ALLOCATOR: (
        "The request went past PyTorch's allocator straight to the driver, which has only what PyTorch leaves it: what "
        "lies idle in PyTorch's reserve is no use to it. CUDA reports errors late: the line named may not be at fault "
        "(CUDA_LAUNCH_BLOCKING=1 moves the error to its line)."
    ),
    OomCode.LARGEST_GAP: "The largest idle block that this request could have had is {amount}.",
    OomCode.OTHER_STREAMS: "{amount} of what lies idle are in other streams' segments, which this request cannot use.",
    OomCode.ALSO_FRAGMENTED: (
        "Or make use of the {amount} that lie idle in the reserve in smaller pieces; expandable segments may join them."
    ),
    OomCode.SET_EXPANDABLE: (
        "Turn on expandable segments (on Linux, from PyTorch 2.1 on), so that idle memory can be moved to where it is "
        "asked for: {amount} of it would do."
    ),
    OomCode.EXPANDABLE_IS_ON: (
        "Expandable segments are on already: what lies idle are parts of pages, or other streams' blocks. Make "
        "long-lived tensors before short-lived ones; use fewer streams; torch.cuda.empty_cache() between phases."
    ),
    OomCode.EXPANDABLE_REFUSED: "This platform has no expandable segments, as PyTorch's own warning in the log says.",
    OomCode.SET_MAX_SPLIT: (
        "Keep large blocks whole, so that they fit again: max_split_size_mb, tried from 512 down to 64. Better: on "
        "Linux, PyTorch 2.1 or newer with expandable segments."
    ),
    OomCode.TRY_REPLAY: ("See whether that setting would be enough: replay a recorded run under it."),
    OomCode.RETRY: (
        "Try again: an idle block of {amount} is there now, which came back from another stream after the last search. "
        "Or synchronise before large requests."
    ),
    OomCode.RAISE_LIMIT: "",
    OomCode.FIND_LIMIT: (
        "Look for a limit: torch.cuda.set_per_process_memory_fraction in your code or framework, a vGPU or container "
        "quota, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. On Windows the driver keeps memory back for other programs."
    ),
    OomCode.LEAVE_ROOM: (
        "Leave the driver room: it cannot hand out the last bytes it counts as free, and libraries (cuBLAS, cuDNN, "
        "NCCL) live on what PyTorch leaves. torch.cuda.set_per_process_memory_fraction(0.95), or a smaller batch."
    ),
    OomCode.LOOK_AT_PROCESS: "Process {pid} holds {amount} of the card: see what it is, and end it if it is left over.",
    OomCode.FIND_HIDDEN_PROCESSES: "",
    OomCode.CUT_OWN_OUTSIDE: (
        "{amount} of this process are not {owner}'s: CUDA's context (0.3 to 1 GiB), NCCL's buffers, other libraries. "
        "A recording says what appeared when."
    ),
    OomCode.FREE_GRAPHS: (
        "Give the pools up, or keep them smaller: drop graphs that are not replayed and call torch.cuda.empty_cache(), "
        "capture fewer batch sizes into one pool, or run without them (torch.compile without reduce-overhead, "
        "enforce_eager in vLLM)."
    ),
    OomCode.STOP_SPILLING: (
        "Make the driver refuse at the card's end instead, where the program is still fast: NVIDIA Control Panel, "
        "CUDA - Sysmem Fallback Policy, Prefer No Sysmem Fallback."
    ),
    OomCode.NEED_LESS: "",
    OomCode.WATCH_DRIVER: "Look at the card at the time of the error: what is free, and who holds the rest.",
    OomCode.FIND_FIGURES: (
        "Find the whole error and give that: after these words PyTorch says what it tried to allocate and what was "
        "free. Look further down in the log of the process that failed. Where a framework passes the first words on "
        "alone, print the exception itself, or use a newer release of it and of PyTorch."
    ),
    OomCode.RECORD: "See which lines of your program hold memory: record a run.",
}
_ADVICE = frozenset(
    {
        OomCode.SET_EXPANDABLE, OomCode.EXPANDABLE_IS_ON, OomCode.SET_MAX_SPLIT, OomCode.TRY_REPLAY, OomCode.RETRY,
        OomCode.RAISE_LIMIT, OomCode.FIND_LIMIT, OomCode.LEAVE_ROOM, OomCode.LOOK_AT_PROCESS, OomCode.NEED_LESS,
        OomCode.FIND_HIDDEN_PROCESSES, OomCode.CUT_OWN_OUTSIDE, OomCode.FREE_GRAPHS, OomCode.STOP_SPILLING,
        OomCode.IMPOSSIBLE_REQUEST, OomCode.FIND_FIGURES, OomCode.WATCH_DRIVER, OomCode.RECORD, OomCode.ALSO_FRAGMENTED,
    }
)  # fmt: skip
