"""A trace's requests served by the allocator under other settings, on a pretended card.

Owns: what of a trace is served, and that it is served with new segments in several orders of addresses. Must not know:
files, reports, which settings are worth trying.

Where the driver would put segments nobody knows, and equal blocks make addresses decide: figures are had for each order
of AddressOrder. What was live before the history began is placed anew, as requests in the order of addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from gpumem.abi.policy import NO_BEHAVIOUR, Behaviour, EventColumns, U64Column
from gpumem.abi.what_if import AddressOrder, WhatIf, WhatIfOptions, WhatIfResult
from gpumem.simulate.replay import REPLAY_COLUMNS, replay_events
from gpumem.simulate.start_heap import handles_by_row, pools_by_row
from gpumem.trace.model import InitialBlock, Trace
from gpumem.vocabulary import BlockState, EventKind


@dataclass(frozen=True, slots=True)
class PretendedCard:
    """The settings to try, and the memory that the allocator may take of one device."""

    settings: str
    memory_bytes: int
    limit_bytes: int
    """NO_LIMIT: none, or what the settings' fraction says."""
    behaviour: Behaviour = NO_BEHAVIOUR


@dataclass(frozen=True, slots=True)
class WhatIfRun:
    """How a device's requests went with segments in one order; events refused, -1 for a block from before the first."""

    order: AddressOrder
    result: WhatIfResult
    oom_events: Sequence[int]


def serve_trace(
    trace: Trace,
    cards: Mapping[int, PretendedCard],
    *,
    pools_recorded: bool,
    empty_caches: Mapping[int, U64Column],
) -> dict[int, list[WhatIfRun]]:
    """Each device's requests on its card, once for every order; `empty_caches` are calls that a replay inferred."""
    handles, pools = handles_by_row(trace), pools_by_row(trace)
    with ExitStack() as opened:
        runs: dict[int, list[WhatIf]] = {}
        first_events: dict[int, int] = {}
        for device, card in cards.items():
            start = _requests_of(sorted(_blocks_of(trace, device), key=lambda block: block.address))
            first_events[device] = len(start.kind)
            runs[device] = []
            for order in AddressOrder:
                options = WhatIfOptions(
                    card.settings, card.memory_bytes, card.limit_bytes, device, order, behaviour=card.behaviour
                )
                run = opened.enter_context(WhatIf(options))
                run.add_streams(handles)
                run.add_pools(*pools)
                run.add_empty_caches(empty_caches.get(device, np.zeros(0, np.uint64)) + np.uint64(len(start.kind)))
                run.feed(start)
                runs[device].append(run)
        for batch in trace.event_batches(REPLAY_COLUMNS):
            events = replay_events(batch, pools_recorded=pools_recorded)
            for run in (run for device_runs in runs.values() for run in device_runs):
                run.feed(events)
        return {
            device: [_finished(order, run, first_events[device]) for order, run in zip(AddressOrder, made, strict=True)]
            for device, made in runs.items()
        }


def _finished(order: AddressOrder, run: WhatIf, first_event: int) -> WhatIfRun:
    positions = run.oom_positions().astype(np.int64) - first_event
    return WhatIfRun(order, run.result(), np.maximum(positions, -1).tolist())


def _blocks_of(trace: Trace, device: int) -> list[InitialBlock]:
    return [block for block in trace.initial_blocks if block.device == device and block.state is not BlockState.FREE]


def _requests_of(blocks: Sequence[InitialBlock]) -> EventColumns:
    """The requests that lead to these blocks: an alloc each, and the free of those that are pending."""
    rows = [(EventKind.ALLOC, block) for block in blocks]
    rows += [(EventKind.FREE_REQUESTED, block) for block in blocks if block.state is BlockState.PENDING]
    return EventColumns(
        np.array([kind for kind, _ in rows], np.uint8),
        np.array([block.device for _, block in rows], np.uint8),
        np.array([block.stream for _, block in rows], np.uint16),
        np.array([block.pool for _, block in rows], np.uint16),
        np.array([block.address for _, block in rows], np.uint64),
        np.array([block.requested_bytes for _, block in rows], np.uint64),
    )
