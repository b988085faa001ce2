"""The heap that a filled trace ends with, and whether a replay ended with the same.

Owns: that heap as columns, comparing two heaps. Must not know: how a replay works, reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gpumem.abi.policy import HeapColumns
from gpumem.errors import TraceTruncated
from gpumem.heap.state import DeviceHeap, heap_at
from gpumem.simulate.start_heap import heap_of_blocks
from gpumem.trace.model import InitialBlock, Trace
from gpumem.vocabulary import BlockState, DeviceOrdinal, EventIndex, StackId, TraceSource

SEGMENT_FIELDS = ("address", "bytes", "stream", "pool_first", "pool_second", "is_small", "is_expandable")
BLOCK_FIELDS = ("address", "bytes", "state", "requested_bytes")


def end_heaps_of_filled(trace: Trace, devices: Collection[DeviceOrdinal]) -> Mapping[int, HeapColumns]:
    """The heaps at the end of a PyTorch snapshot's trace whose blocks are filled in, where private pools need them.

    A pool that does not split its blocks tells so by the blocks it has at the end alone.
    """
    is_filled = trace.meta.source is TraceSource.PYTORCH_SNAPSHOT and trace.meta.block_bytes_known
    if not is_filled or len(trace.pools) < 2 or not trace.event_count:
        return {}
    try:
        heaps = heap_at(trace, EventIndex(trace.event_count - 1), devices=devices)
    except TraceTruncated:
        return {}
    return {heap.device: heap_of_blocks(list(_blocks(heap)), trace) for heap in heaps if not heap.unplaced_blocks}


def find_heap_difference(replayed: HeapColumns, recorded: HeapColumns, *, last_requests: bool) -> str | None:
    """Where two heaps differ first, as a sentence; None when they are the same.

    `last_requests`: free blocks must have been asked for the same, too; before a history begins nobody knows that.
    """
    for noun, fields, found, wanted in (
        ("segment", SEGMENT_FIELDS, replayed.segments, recorded.segments),
        ("block", BLOCK_FIELDS, replayed.blocks, recorded.blocks),
    ):
        if len(found.address) != len(wanted.address):
            return f"{len(wanted.address)} {noun}s are in the file, {len(found.address)} in the replay."
        for name in fields:
            left, right = getattr(found, name), getattr(wanted, name)
            differs = left != right
            if name == "requested_bytes" and not last_requests:
                differs &= recorded.blocks.state != 0
            if differs.any():
                row = int(differs.argmax())
                return (
                    f"The {noun} at 0x{int(wanted.address[row]):x} has {name} {int(right[row])} in the file, "
                    f"{int(left[row])} in the replay."
                )
    return None


def _blocks(heap: DeviceHeap) -> Iterator[InitialBlock]:
    for state in heap.segments:
        segment = state.segment
        for block in state.blocks:
            yield InitialBlock(
                device=heap.device,
                segment_address=segment.address,
                segment_bytes=segment.segment_bytes,
                stream=segment.stream,
                pool=segment.pool,
                expandable=segment.expandable,
                address=block.address,
                block_bytes=block.block_bytes or 0,
                requested_bytes=block.requested_bytes or 0,
                state=block.state if block.block_bytes else BlockState.FREE,
                stack=StackId(0),
            )
