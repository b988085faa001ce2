"""cuBLAS's workspaces among the blocks that PyTorch's allocator handed out.

Owns: the evidence that tells one. Must not know: readings, ledgers, text.

Where stacks have C++ frames, they name it: PyTorch's functions that make a workspace for a handle. Where they have
Python frames alone: PyTorch takes one from its own allocator at the first matrix product of each thread and stream, and
keeps it. So a block is taken for one when all of this holds: its bytes are those of a workspace; the same call had just
asked for another block (its result), or it is the only one of these bytes on an autograd thread, which has no Python
stack; it is not freed in the trace; and no earlier block of its thread and stream is like that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import read_in_pieces
from gpumem.heap.live import LiveTable, find_last_rows
from gpumem.trace.model import Trace
from gpumem.trace.stack_links import walk_stacks
from gpumem.vocabulary import DeviceOrdinal, EventKind, FrameId, StackId

WORKSPACE_BYTES = (8_519_680, 33_554_432, 34_078_720)
"""What PyTorch asks for: 4 MiB x 2 + 16 KiB x 8, on Hopper 32 MiB, or four times the first."""
_MAKERS = ("CUDABlasHandle", "WorkspaceForHandle", "getNewWorkspace", "CUDABlasLtWorkspace")
_LOOKED_BACK = 16
"""Events before an alloc among which the call's other request must be."""
_BLOCK_KINDS = (EventKind.ALLOC, EventKind.FREE, EventKind.FREE_REQUESTED)
_COLUMNS = ("kind", "device", "address", "requested_bytes", "stack", "thread", "stream")
_OTHER_CALLS = ("/torch/optim/", "/torch/nn/modules/module.py", "/torch/serialization.py", "/torch/storage.py")
"""Code of PyTorch that asks for blocks and multiplies nothing."""


class WorkspaceFinder:
    """The workspaces among a device's blocks, at as many moments as are asked for: the trace is read once."""

    def __init__(self, trace: Trace, device: DeviceOrdinal) -> None:
        self._trace, self._device = trace, device
        self._lasting = _find_lasting(trace, device)
        self._makers = _find_makers(trace)
        self._in_passing: dict[int, bool] = {}

    def find(self, blocks: LiveTable) -> npt.NDArray[np.bool_]:
        """Which rows of `blocks` are workspaces; they carry columns `stack`, `thread` and `stream`."""
        found = _find_named(self._trace, self._makers, blocks)
        rows = np.flatnonzero(np.isin(blocks.event, self._lasting.events) & ~blocks.pending)
        taken: set[tuple[int, int]] = set()
        for row in sorted(rows.tolist(), key=lambda one: int(blocks.event[one])):
            place = (int(blocks["thread"][row]), int(blocks["stream"][row]))
            if place not in taken and self._is_alone(blocks, row) and self._is_asked_in_passing(blocks, row):
                taken.add(place)
                found[row] = True
        return found

    def _is_alone(self, blocks: LiveTable, row: int) -> bool:
        """Whether a block without a stack is the only one of its bytes on its thread."""
        key = (int(blocks["thread"][row]), int(blocks["requested_bytes"][row]))
        return bool(blocks["stack"][row]) or self._lasting.stackless_counts.get(key) == 1

    def _is_asked_in_passing(self, blocks: LiveTable, row: int) -> bool:
        event = int(blocks.event[row])
        known = self._in_passing.get(event)
        if known is None:
            known = self._in_passing[event] = _is_asked_in_passing(self._trace, self._device, blocks, row)
        return known


def _find_makers(trace: Trace) -> set[FrameId]:
    """The frames of functions that make workspaces."""
    return {
        FrameId(row)
        for row, function in enumerate(trace.frames.functions)
        if function.startswith("at::cuda::") and any(word in function for word in _MAKERS)
    }


def _find_named(trace: Trace, makers: set[FrameId], blocks: LiveTable) -> npt.NDArray[np.bool_]:
    """The blocks whose stacks have one of these frames."""
    stacks = np.unique(blocks["stack"]) if makers else np.zeros(0, np.int64)
    frames, depths = walk_stacks(trace.stacks, stacks)
    named = np.repeat(stacks, depths)[np.isin(frames, list(makers))]
    return np.isin(blocks["stack"], named) & ~blocks.pending


@dataclass(frozen=True, slots=True)
class _Call:
    """The request of an event and the call it came from."""

    stack: StackId
    thread: int
    stream: int


@dataclass(frozen=True, slots=True)
class _Lasting:
    """Allocs of a workspace's bytes that are not freed in the trace, and how many have no stack by thread and bytes."""

    events: npt.NDArray[np.int64]
    stackless_counts: Mapping[tuple[int, int], int]


def _find_lasting(trace: Trace, device: DeviceOrdinal) -> _Lasting:
    """What the one pass over the events tells; a free names the bytes that its alloc asked for."""
    events, addresses, are_allocs = np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.bool_)
    stackless: Counter[tuple[int, int]] = Counter()
    for batch in read_in_pieces(trace, _COLUMNS):
        alike = np.isin(batch["requested_bytes"], WORKSPACE_BYTES) & (batch["device"] == device)
        rows = np.flatnonzero(alike & np.isin(batch["kind"], _BLOCK_KINDS))
        if not len(rows):
            continue
        is_alloc = batch["kind"][rows] == EventKind.ALLOC
        events = np.concatenate([events, batch.first_event + rows])
        addresses = np.concatenate([addresses, batch["address"][rows].astype(np.uint64)])
        are_allocs = np.concatenate([are_allocs, is_alloc])
        last = np.sort(find_last_rows(addresses))
        events, addresses, are_allocs = events[last], addresses[last], are_allocs[last]
        without = rows[is_alloc & (batch["stack"][rows] == 0)]
        stackless.update(
            zip(batch["thread"][without].tolist(), batch["requested_bytes"][without].tolist(), strict=True)
        )
    return _Lasting(events[are_allocs], stackless)


def _is_asked_in_passing(trace: Trace, device: DeviceOrdinal, blocks: LiveTable, row: int) -> bool:
    stack = StackId(int(blocks["stack"][row]))
    if not stack:
        thread = trace.threads[int(blocks["thread"][row])].name if len(trace.threads) > blocks["thread"][row] else ""
        return thread.startswith("pt_autograd")
    innermost = trace.stack_frames(stack)[0].file.replace("\\", "/")
    if any(place in innermost for place in _OTHER_CALLS):
        return False
    call = _Call(stack, int(blocks["thread"][row]), int(blocks["stream"][row]))
    return _previous_call(trace, device, int(blocks.event[row]), call.thread) == call


def _previous_call(trace: Trace, device: DeviceOrdinal, event: int, thread: int) -> _Call | None:
    """The call of the alloc before `event` on the same thread."""
    previous: _Call | None = None
    for batch in trace.event_batches(_COLUMNS, first_event=event - _LOOKED_BACK, end_event=event):
        chosen = (batch["device"] == device) & (batch["kind"] == EventKind.ALLOC) & (batch["thread"] == thread)
        for row in np.flatnonzero(chosen)[-1:].tolist():
            previous = _Call(StackId(int(batch["stack"][row])), thread, int(batch["stream"][row]))
    return previous
