"""What an out-of-memory error says, as figures: the facts that a verdict is made of, whoever wrote them down.

Owns: figures that are only as exact as they were printed, and the fields of a message. Must not know: text
(importers/oom_text.py), what follows from the figures (analyses/oom.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

IMPOSSIBLE_BYTES = 1 << 60
"""No memory has as many. Allocators refuse such a request at once; and 2^64 - 1 bytes are printed for "not known"."""


class OomOrigin(Enum):
    """Whose error it is."""

    TORCH = "torch"
    """PyTorch's caching allocator."""
    TORCH_ASYNC = "torch_async"
    """PyTorch on the driver's pools (backend:cudaMallocAsync)."""
    CUPY = "cupy"
    GPUMEM = "gpumem"
    """`gpumem.OutOfMemoryError`."""
    XLA = "xla"
    """The allocator of JAX and TensorFlow, which reserves most of a card at its start."""
    LIBRARY = "library"
    """CUDA, cuBLAS, cuDNN, NCCL: a request that went to the driver past any allocator with figures."""
    TRACE = "trace"
    """An event of a recording: the figures are exact."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A byte count that is within `rounding_bytes` of the true one; exact where that is 0."""

    byte_count: int
    rounding_bytes: int = 0

    @property
    def low(self) -> int:
        return self.byte_count - self.rounding_bytes

    @property
    def high(self) -> int:
        return self.byte_count + self.rounding_bytes

    def __add__(self, other: Figure) -> Figure:
        return Figure(self.byte_count + other.byte_count, self.rounding_bytes + other.rounding_bytes)

    def __sub__(self, other: Figure) -> Figure:
        return Figure(self.byte_count - other.byte_count, self.rounding_bytes + other.rounding_bytes)

    def floored(self) -> Figure:
        """The figure, or 0 where it is negative: a difference of rounded figures may be."""
        return self if self.byte_count >= 0 else Figure(0, self.rounding_bytes)


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """What another process holds on the card; `pid` is None for several taken together."""

    pid: int | None
    used: Figure | None
    """None where the driver does not say (Windows, WSL)."""


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one out-of-memory error; None where it does not say.

    `allocated` and `idle` are as printed. PyTorch counts what lies idle in private pools (`private_idle`) as allocated.
    """

    origin: OomOrigin
    asked: Figure | None = None
    """Of PyTorch's own allocator the segment it wanted from the driver, not the tensor."""
    device: int | None = None
    device_name: str | None = None
    free: Figure | None = None
    card: Figure | None = None
    allocated: Figure | None = None
    idle: Figure | None = None
    reserved: Figure | None = None
    """Of messages that print it; of the others it is allocated + idle."""
    private_idle: Figure | None = None
    limit: Figure | None = None
    process: Figure | None = None
    """The whole of this process, as NVML sees it."""
    other_processes: Sequence[ProcessShare] = ()
    versions: str | None = None
    """The PyTorch releases that print this shape: `2.1 to 2.2`, `2.4 or newer`."""
    wording: str | None = None
    """Of an error without figures: its own words."""
    is_preemptive: bool = False
    """Refused by PyTorch before the driver was asked, for the limit alone."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """An out-of-memory message where it stood in a log."""

    message: OomMessage
    line: int
    """From 1; the first place it was seen."""
    rank: int | None = None
    worker: str | None = None
    """The line's own name for who wrote it, where it is no rank: `RayWorker pid=4711`."""
    repeats: int = 1
    """How many times it stood in the log: an error is printed again as it is passed on."""


@dataclass(frozen=True, slots=True)
class OomLog:
    """What a text said of out-of-memory errors."""

    name: str
    messages: Sequence[FoundMessage]
    lines: int
    left_out_count: int = 0
    """Messages beyond the most that are kept, counted only."""
    settings: str | None = None
    """The last allocator settings that the text shows in force; None where it shows none."""
    has_expandable_refused: bool = False
    """Whether PyTorch warned that this platform has no expandable segments."""
