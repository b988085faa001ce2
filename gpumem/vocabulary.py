"""The words of a trace as types: ids, kinds, flags, sources.

Owns: enums and id types that every layer may use. Must not know: files, devices, reports.
Values of EventKind and EventFlag are those of gpumem/native/include/gpumem.h (a test compares them).
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import NewType

StackId = NewType("StackId", int)
"""Row of the stacks table; 0 is "no Python stack"."""
FrameId = NewType("FrameId", int)
"""Row of the frames table."""
ScopeId = NewType("ScopeId", int)
"""Row of the scopes table; 0 is "no scope"."""
StreamId = NewType("StreamId", int)
"""Row of the streams table; 0 is "no stream"."""
PoolId = NewType("PoolId", int)
"""Row of the pools table; 0 is the default pools (or not known)."""
EventIndex = NewType("EventIndex", int)
"""Position of an event in the trace, from 0; -1 is "before the first event"."""
DeviceOrdinal = NewType("DeviceOrdinal", int)
"""The program's own number of a device (after CUDA_VISIBLE_DEVICES)."""

NO_DEVICE = 255
"""The device of events that belong to none: marks and steps."""


class EventKind(IntEnum):
    """What happened; the state of the heap is the one after it."""

    ALLOC = 1
    FREE = 2
    FREE_REQUESTED = 3
    FREE_COMPLETED = 4
    SEGMENT_REQUEST = 5
    SEGMENT_ALLOC = 6
    SEGMENT_FREE = 7
    SEGMENT_MAP = 8
    SEGMENT_UNMAP = 9
    EMPTY_CACHE = 10
    OOM = 11
    MARK = 12
    STEP = 13
    SNAPSHOT = 14


class EventFlag(IntFlag):
    """What else happened inside the event."""

    CACHE_HIT = 1
    SPLIT = 2
    RETRIED = 4
    GARBAGE_COLLECTED = 8
    MERGED_PREVIOUS = 16
    MERGED_NEXT = 32
    OWN_ALLOCATOR = 64
    """gpumem's own allocator did it, whatever else serves the program."""


NUMBER_SHIFT = 8
"""Of an event of gpumem's own allocator the bits of flags from this one on are the allocator's number, 0 to 255."""
NUMBERS_SHARED = 255
"""The number of all allocators beyond those that can be told apart."""


class BlockState(Enum):
    """State of a block at a moment."""

    ALLOCATED = "allocated"
    PENDING = "pending"
    FREE = "free"


class TraceSource(Enum):
    """What produced a trace."""

    NATIVE = "native"
    """PyTorch's own allocator, heard through the trace tracker."""
    GPUMEM = "gpumem"
    """Our own instrumented allocator."""
    PYTORCH_SNAPSHOT = "pytorch_snapshot"
    """A snapshot that PyTorch wrote itself."""
    NONE = "none"
    """No allocator was recorded: readings and marks only."""


class AllocatorChoice(Enum):
    """Which allocator serves a program that is recorded."""

    AUTO = "auto"
    """The program's own where it can be heard, as PyTorch's; else ours, as for CuPy."""
    NATIVE = "native"
    """The program's own, whether it can be heard or not."""
    GPUMEM = "gpumem"
    """Ours, for PyTorch and CuPy."""


class MarkKind(Enum):
    """What set a mark."""

    MARK = "mark"
    STEP = "step"


class Basis(Enum):
    """Which bytes a report adds up: blocks as handed out, or requests where blocks are not known."""

    ALLOCATED = "allocated"
    REQUESTED = "requested"
