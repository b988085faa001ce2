"""The words for what follows from a verdict on an out-of-memory error: what to do, what a figure means.

Owns: a sentence for each finding, and the commands to paste. Must not know: how findings are found, layout.
"""

from __future__ import annotations

import shlex

from gpumem.analyses.oom_facts import OomCode, OomFinding, OomVerdict, Verdict
from gpumem.analyses.oom_findings import is_card_short
from gpumem.render.oom_words import OWNERS, verdict_word
from gpumem.render.text import printable
from gpumem.trace.oom_message import OomOrigin
from gpumem.units import format_bytes

EXPANDABLE_SETTING = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
XLA_SHARE_SETTING = "export XLA_PYTHON_CLIENT_MEM_FRACTION=.90"
XLA_GROW_SETTING = "export XLA_PYTHON_CLIENT_PREALLOCATE=false"
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
        OomCode.XLA_SHARE_CARD: XLA_GROW_SETTING,
        OomCode.XLA_RAISE_SHARE: XLA_SHARE_SETTING,
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
    OomCode.XLA_RESERVES: (
        "JAX and TensorFlow allocate by XLA's own allocator, which no setting of PyTorch's reaches. JAX reserves 75 % "
        "of the card at its first operation and TensorFlow nearly all of it, so that nvidia-smi shows the reserve and "
        "not what is in use; jax.profiler.save_device_memory_profile says that. gpumem does not record what "
        "they allocate."
    ),
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
    OomCode.XLA_SHARE_CARD: (
        "Where other programs use the card, or the error comes at the start: have JAX take memory as it needs it, or "
        "give each program its share (XLA_PYTHON_CLIENT_MEM_FRACTION=.40). Memory fragments more then. In TensorFlow: "
        "tf.config.experimental.set_memory_growth(gpu, True)."
    ),
    OomCode.XLA_RAISE_SHARE: (
        "Where JAX has the card to itself: let it reserve more than 75 % of it, and leave its libraries the rest "
        "(recent releases call the variable XLA_CLIENT_MEM_FRACTION)."
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
        OomCode.XLA_SHARE_CARD, OomCode.XLA_RAISE_SHARE,
        OomCode.RAISE_LIMIT, OomCode.FIND_LIMIT, OomCode.LEAVE_ROOM, OomCode.LOOK_AT_PROCESS, OomCode.NEED_LESS,
        OomCode.FIND_HIDDEN_PROCESSES, OomCode.CUT_OWN_OUTSIDE, OomCode.FREE_GRAPHS, OomCode.STOP_SPILLING,
        OomCode.IMPOSSIBLE_REQUEST, OomCode.FIND_FIGURES, OomCode.WATCH_DRIVER, OomCode.RECORD, OomCode.ALSO_FRAGMENTED,
    }
)  # fmt: skip
