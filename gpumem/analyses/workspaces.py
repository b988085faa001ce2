"""cuBLAS's workspaces among the blocks that PyTorch's allocator handed out.

Owns: the evidence that tells one. Must not know: readings, ledgers, text.

Where stacks have C++ frames, they name it: PyTorch's functions that make a workspace for a handle. Where they have
Python frames alone: PyTorch takes one from its own allocator at the first matrix product of each thread and stream, and
keeps it. So a block is taken for one when all of this holds: its bytes are those of a workspace; the same call had just
asked for another block (its result), or it is the only one of these bytes on an autograd thread, which has no Python
stack; it is not freed in the trace; and no earlier block of its thread and stream is like that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.heap.levels import read_in_pieces
from gpumem.heap.live import LiveTable
from gpumem.trace.model import EventBatch, Trace
from gpumem.vocabulary import DeviceOrdinal, EventKind, FrameId, StackId

WORKSPACE_BYTES = (8_519_680, 33_554_432, 34_078_720)
"""What PyTorch asks for: 4 MiB x 2 + 16 KiB x 8, on Hopper 32 MiB, or four times the first."""
_MAKERS = ("CUDABlasHandle", "WorkspaceForHandle", "getNewWorkspace", "CUDABlasLtWorkspace")
_LOOKED_BACK = 16
"""Events before an alloc among which the call's other request must be."""
_COLUMNS = ("kind", "device", "address", "requested_bytes", "stack", "thread", "stream")
_OTHER_CALLS = ("/torch/optim/", "/torch/nn/modules/module.py", "/torch/serialization.py", "/torch/storage.py")
"""Code of PyTorch that asks for blocks and multiplies nothing."""


def find_workspaces(trace: Trace, device: DeviceOrdinal, blocks: LiveTable) -> npt.NDArray[np.bool_]:
    """Which rows of `blocks` are workspaces; they carry columns `stack`, `thread` and `stream`."""
    found = _find_named(trace, blocks)
    rows = np.flatnonzero(np.isin(blocks["requested_bytes"], WORKSPACE_BYTES) & ~blocks.pending & (blocks.event >= 0))
    if not len(rows):
        return found
    lasting = _find_lasting(trace, device, blocks, rows)
    taken: set[tuple[int, int]] = set()
    for row in sorted(rows[lasting].tolist(), key=lambda one: int(blocks.event[one])):
        place = (int(blocks["thread"][row]), int(blocks["stream"][row]))
        if place not in taken and _is_asked_in_passing(trace, device, blocks, row):
            taken.add(place)
            found[row] = True
    return found


def _find_named(trace: Trace, blocks: LiveTable) -> npt.NDArray[np.bool_]:
    """The blocks whose stacks have one of the functions that make workspaces."""
    makers = {
        FrameId(row)
        for row, function in enumerate(trace.frames.functions)
        if function.startswith("at::cuda::") and any(word in function for word in _MAKERS)
    }
    stacks = np.unique(blocks["stack"]) if makers else np.zeros(0, np.int64)
    named = [stack for stack in stacks.tolist() if makers & set(trace.stacks.frames_of(StackId(stack)))]
    return np.isin(blocks["stack"], named) & ~blocks.pending


@dataclass(frozen=True, slots=True)
class _Call:
    """The request of an event and the call it came from."""

    stack: StackId
    thread: int
    stream: int


def _find_lasting(
    trace: Trace, device: DeviceOrdinal, blocks: LiveTable, rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Which of `rows` are not freed in the trace and, without a stack, alone of their bytes on their thread."""
    addresses = blocks.address[rows]  # sorted, as the table is
    last_free = np.full(len(rows), -1, np.int64)
    stackless: dict[int, int] = {}
    for batch in read_in_pieces(trace, _COLUMNS):
        of_device = batch["device"] == device
        kind = batch["kind"]
        is_free = (kind == EventKind.FREE) | (kind == EventKind.FREE_REQUESTED)
        frees = np.flatnonzero(of_device & is_free & np.isin(batch["address"], addresses))
        np.maximum.at(
            last_free,
            np.searchsorted(addresses, batch["address"][frees].astype(np.uint64)),
            batch.first_event + frees.astype(np.int64),
        )
        alike = of_device & (kind == EventKind.ALLOC) & (batch["stack"] == 0)
        alike &= np.isin(batch["requested_bytes"], WORKSPACE_BYTES)
        for key, count in zip(*np.unique(_place_and_bytes(batch, alike), return_counts=True), strict=True):
            stackless[int(key)] = stackless.get(int(key), 0) + int(count)
    chosen = np.zeros(len(blocks), np.bool_)
    chosen[rows] = True
    alone = np.array([stackless.get(int(key), 0) == 1 for key in _place_and_bytes(blocks, chosen)], np.bool_)
    is_lasting: npt.NDArray[np.bool_] = (last_free < blocks.event[rows]) & ((blocks["stack"][rows] != 0) | alone)
    return is_lasting


def _place_and_bytes(table: EventBatch | LiveTable, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Thread and request of the chosen rows in one number."""
    thread = table["thread"][chosen].astype(np.uint64)
    return (thread << np.uint64(32)) | table["requested_bytes"][chosen].astype(np.uint64)


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
