"""PyTorch's caching allocator under its default settings in plain Python, to measure the native one against.

Owns: rounding, two pools a stream, best fit, splits and merges, new segments at descending addresses. It knows no
limit, no private pools, no deferred frees. Written for reading and speed of the interpreter alike: what somebody who
writes a replayer of a memory snapshot in an afternoon would have.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

MIB = 1 << 20
SMALL_REQUEST_MAX = MIB
UNIT = 512


class Block:
    """A block in a segment, linked to its neighbours."""

    __slots__ = ("address", "bytes", "is_free", "key", "next", "previous")

    def __init__(self, address: int, block_bytes: int, key: tuple[int, bool]) -> None:
        self.address, self.bytes, self.key = address, block_bytes, key
        self.is_free = True
        self.previous: Block | None = None
        self.next: Block | None = None


class PlainReplayer:
    """Serves allocs and frees by recorded address; `reserved_bytes_peak` is all that it is asked for."""

    def __init__(self) -> None:
        self.free_lists: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self.free_blocks: dict[int, Block] = {}
        self.live: dict[int, Block] = {}
        self.next_segment = 1 << 46
        self.reserved_bytes_peak = 0

    def serve(self, requests: Iterable[tuple[bool, int, int, int]]) -> int:
        """Serves (is_alloc, recorded address, requested bytes, stream); how many there were."""
        count = 0
        for is_alloc, recorded, requested_bytes, stream in requests:
            count += 1
            if is_alloc:
                self.live[recorded] = self.alloc(requested_bytes, stream)
            else:
                block = self.live.pop(recorded, None)
                if block is not None:
                    self.free(block)
        return count

    def alloc(self, requested_bytes: int, stream: int) -> Block:
        rounded = max(UNIT, (requested_bytes + UNIT - 1) // UNIT * UNIT)
        is_small = rounded <= SMALL_REQUEST_MAX
        key = (stream, is_small)
        free_list = self.free_lists.setdefault(key, [])
        place = bisect_left(free_list, (rounded, 0))
        if place < len(free_list):
            block = self.free_blocks.pop(free_list.pop(place)[1])
        else:
            block = self.new_segment(rounded, key)
        block.is_free = False
        rest = block.bytes - rounded
        if rest >= UNIT if is_small else rest > SMALL_REQUEST_MAX:
            self.split(block, rounded)
        return block

    def new_segment(self, rounded: int, key: tuple[int, bool]) -> Block:
        if key[1]:
            segment_bytes = 2 * MIB
        elif rounded < 10 * MIB:
            segment_bytes = 20 * MIB
        else:
            segment_bytes = (rounded + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        self.next_segment -= segment_bytes
        self.reserved_bytes_peak += segment_bytes
        return Block(self.next_segment, segment_bytes, key)

    def split(self, block: Block, rounded: int) -> None:
        rest = Block(block.address + rounded, block.bytes - rounded, block.key)
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next, block.bytes = rest, rounded
        self.keep(rest)

    def free(self, block: Block) -> None:
        before, after = block.previous, block.next
        if after is not None and after.is_free:
            self.drop(after)
            block.bytes += after.bytes
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        if before is not None and before.is_free:
            self.drop(before)
            block.address = before.address
            block.bytes += before.bytes
            block.previous = before.previous
            if before.previous is not None:
                before.previous.next = block
        block.is_free = True
        self.keep(block)

    def keep(self, block: Block) -> None:
        insort(self.free_lists[block.key], (block.bytes, block.address))
        self.free_blocks[block.address] = block

    def drop(self, block: Block) -> None:
        free_list = self.free_lists[block.key]
        del free_list[bisect_left(free_list, (block.bytes, block.address))]
        del self.free_blocks[block.address]
