"""Requests of a recording served again and again by the allocator's policy: events that replay can follow to the end.

Repeating recorded events would not do: from the second time on no allocator would answer like that. Each round frees
what it leaves, every eighth asks for other sizes; once eight rounds answer as the eight before, they are repeated as
they are.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpumem.abi import CEvent
from gpumem.abi.policy import NO_LIMIT, load_core
from gpumem.trace.model import EVENT_COLUMNS, ColumnEvents, DeviceFacts, StreamRow, Trace
from gpumem.vocabulary import EventKind

OTHER_SIZES_EVERY = 8
MEMORY_BYTES = 140 << 30
ServedRows = npt.NDArray[np.void]
SERVED = np.dtype(
    [
        ("kind", np.uint8),
        ("stream", np.uint64),
        ("address", np.uint64),
        ("requested_bytes", np.uint64),
        ("row", np.int64),
    ]
)
"""An event as it was served, and the row of the request that caused it."""


class COptions(ctypes.Structure):
    """gm_policy_options."""

    _fields_ = (
        ("settings", c_char_p), ("memory_bytes", c_uint64), ("limit_bytes", c_uint64), ("seed", c_uint64),
        ("behaviour", c_uint32), ("address_order", c_uint32),
    )  # fmt: skip


class CAllocation(ctypes.Structure):
    """gm_policy_allocation."""

    _fields_ = (
        ("address", c_uint64), ("block_bytes", c_uint64), ("split_bytes", c_uint64), ("flags", c_uint64),
    )  # fmt: skip


LISTENER = ctypes.CFUNCTYPE(None, c_void_p, POINTER(CEvent))


class Server:
    """The policy on a simulated card, its events collected."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int, int]] = []
        self.row = 0
        self._core = load_core()
        self._handle = c_void_p()
        self._listener = LISTENER(self._listen)  # the core keeps only its address
        core = self._core
        core.gm_policy_create.argtypes = (
            POINTER(COptions), LISTENER, c_void_p, POINTER(c_void_p), c_char_p, c_size_t,
        )  # fmt: skip
        core.gm_policy_alloc.argtypes = (c_void_p, c_uint64, c_uint64, c_uint64, POINTER(CAllocation))
        core.gm_policy_free.argtypes = (c_void_p, c_uint64)
        core.gm_policy_empty_cache.argtypes = (c_void_p,)
        for name in ("create", "alloc", "free", "empty_cache"):
            getattr(core, f"gm_policy_{name}").restype = c_int32
        options = COptions(b"", MEMORY_BYTES, NO_LIMIT, 0, 0, 0)
        error = ctypes.create_string_buffer(256)
        assert core.gm_policy_create(byref(options), self._listener, None, byref(self._handle), error, 256) == 0

    def alloc(self, request_bytes: int, stream: int) -> int:
        allocation = CAllocation()
        assert self._core.gm_policy_alloc(self._handle, request_bytes, stream, 0, byref(allocation)) == 0
        return int(allocation.address)

    def free(self, address: int) -> None:
        assert self._core.gm_policy_free(self._handle, address) == 0

    def empty_cache(self) -> None:
        assert self._core.gm_policy_empty_cache(self._handle) == 0

    def take(self) -> ServedRows:
        """The events since the last call."""
        rows = np.array(self.events, SERVED)
        self.events.clear()
        return rows

    def _listen(self, _: object, event: ctypes._Pointer[CEvent]) -> None:
        one = event.contents
        if one.kind != EventKind.SEGMENT_REQUEST:
            self.events.append((one.kind, one.stream, one.address, one.requested_bytes, self.row))


def serve_again(
    kinds: npt.NDArray[np.uint8], addresses: npt.NDArray[np.uint64], asked: npt.NDArray[np.uint64],
    streams: npt.NDArray[np.uint64], event_count: int,
) -> ServedRows:  # fmt: skip
    """At least `event_count` events of rounds of these requests (allocs and frees by row), all memory returned at the
    end.
    """
    server = Server()
    requests = list(zip(kinds.tolist(), addresses.tolist(), asked.tolist(), streams.tolist(), strict=True))
    pieces: list[ServedRows] = []
    served_count = 0
    last: list[ServedRows] = []
    while served_count < event_count:
        period = [serve_round(server, requests, 7 * (number == 7)) for number in range(OTHER_SIZES_EVERY)]
        pieces += period
        count = sum(map(len, period))
        served_count += count
        if last and all(np.array_equal(one, other) for one, other in zip(last, period, strict=True)):
            repetitions = -(-(event_count - served_count) // count)
            pieces += period * max(0, repetitions)
            break
        last = period
    server.empty_cache()
    return np.concatenate([*pieces, server.take()])


def make_served_trace(sample: Trace, event_count: int) -> Trace:
    """A trace of at least `event_count` events: the sample's requests on one stream served again and again, each event
    with the stack and thread of its request.
    """
    batches = list(sample.event_batches(list(EVENT_COLUMNS)))
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in EVENT_COLUMNS}
    chosen = (columns["device"] == 0) & np.isin(columns["kind"], [EventKind.ALLOC, EventKind.FREE])
    once = {name: column[chosen] for name, column in columns.items()}
    streams = np.zeros(len(once["kind"]), np.uint64)
    served = serve_again(once["kind"], once["address"], once["requested_bytes"], streams, event_count)
    made = {name: np.zeros(len(served), dtype) for name, dtype in EVENT_COLUMNS.items()}
    for name in ("kind", "address", "requested_bytes"):
        made[name] = served[name].astype(EVENT_COLUMNS[name])
    for name in ("stack", "thread"):
        made[name] = once[name][served["row"]]
    row = served["row"]
    step = np.abs(np.diff(once["time_ns"], prepend=once["time_ns"][:1]))[row]
    made["time_ns"] = np.cumsum(np.where(row == np.append(-1, row[:-1]), 200, np.maximum(step, 1)))
    made["stream"][:] = 1
    facts = (DeviceFacts(0, capacity_bytes=MEMORY_BYTES),)
    meta = replace(sample.meta, devices=facts, settings="", versions={"torch": "2.11.0"}, block_bytes_known=False)
    return replace(
        sample, meta=meta, events=ColumnEvents(made), marks=(), readings=(), initial_blocks=(),
        streams=[StreamRow(0, 0, 0), StreamRow(1, 0, 0)],
    )  # fmt: skip


def serve_round(server: Server, requests: list[tuple[int, int, int, int]], added_sixteenths: int) -> ServedRows:
    """The events of one round; its allocs ask for so many sixteenths more, in whole KiB."""
    live: dict[int, int] = {}
    for row, (kind, address, request_bytes, stream) in enumerate(requests):
        server.row = row
        if kind == EventKind.ALLOC:
            more = request_bytes * added_sixteenths // 16 & ~1023
            live[address] = server.alloc(request_bytes + more, stream)
        elif kind in (EventKind.FREE, EventKind.FREE_REQUESTED) and address in live:
            server.free(live.pop(address))
    for address in list(live.values()):
        server.free(address)
    return server.take()
