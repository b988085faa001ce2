"""Whether the allocator as replayed decides what was recorded, and what no event says of the run.

Owns: the verdict on one device, the first difference, the sentences on what was not recorded. Must not know: layout,
other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumem.abi.policy import HeapColumns, ReplayAssumption, ReplayResult, U64Column
from gpumem.analyses.sites import SiteFinder
from gpumem.simulate.end_heap import find_heap_difference
from gpumem.simulate.replay import TraceReplay
from gpumem.trace.allocators import RecordedAllocator
from gpumem.trace.model import Frame, Trace
from gpumem.units import format_count
from gpumem.vocabulary import EventIndex, EventKind, StackId, TraceSource


@dataclass(frozen=True, slots=True)
class EventFacts:
    """An event as the allocator makes it; address and bytes 0 where they do not matter."""

    kind: EventKind
    address: int
    event_bytes: int
    stream: int
    """Raw handle."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where recording and replay part: `expected` was recorded (None: nothing more), `got` is the replay's."""

    event: EventIndex
    time_ns: int
    reason: str
    expected: EventFacts | None
    got: EventFacts | None
    site: Frame | None
    stack: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class HeapCheck:
    """The heap at the end against the source's own; `difference` is None when they are the same."""

    segment_count: int
    block_count: int
    difference: str | None


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The verdict on a device: `exact` is None where the run cannot be followed, `refusal` says why."""

    exact: bool | None
    refusal: str | None
    decision_count: int
    """Recorded events that the replayed allocator made, each to the byte."""
    event_count: int
    """Recorded events followed."""
    first_difference: FirstDifference | None
    heap: HeapCheck | None
    not_recorded: Sequence[str]


def check_run(
    trace: Trace,
    replay: TraceReplay,
    allocator: RecordedAllocator,
    device: int,
    *,
    end_heap: HeapColumns | None,
    pools_recorded: bool,
) -> RunCheck:
    """The verdict on one device of a run followed; `end_heap` is what the source says of the end."""
    result = replay.results.get(device)
    refusal = replay.refusals.get(device) or _find_refusal(allocator, result)
    if result is None or refusal:
        return RunCheck(None, refusal, 0, 0, None, None, ())
    heap = None if end_heap is None or not result.exact else _check_heap(replay.heaps[device], end_heap, trace, device)
    return RunCheck(
        exact=result.exact and (heap is None or heap.difference is None),
        refusal=None,
        decision_count=result.decisions,
        event_count=result.events,
        first_difference=None if result.exact else _first_difference(trace, result),
        heap=heap,
        not_recorded=(
            *_settings_assumed(allocator),
            *_not_recorded(trace, result, replay.empty_caches[device], device, pools_recorded),
        ),
    )


def _find_refusal(allocator: RecordedAllocator, result: ReplayResult | None) -> str | None:
    """Why a run whose events do not suffice cannot be followed."""
    if allocator.is_several:
        return "More allocators with settings of their own were recorded than can be told apart."
    if result is None or result.exact or result.reserved_bytes_peak or result.device_allocs:
        return None
    if result.expected_kind == EventKind.ALLOC and result.got_kind in (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP):
        return "The recording holds no segment events; without them no decision can be checked."
    return None


def _check_heap(replayed: HeapColumns, recorded: HeapColumns, trace: Trace, device: int) -> HeapCheck:
    begins_late = any(block.device == device for block in trace.initial_blocks)
    difference = find_heap_difference(replayed, recorded, last_requests=not begins_late)
    return HeapCheck(len(recorded.segments.address), len(recorded.blocks.address), difference)


def _first_difference(trace: Trace, result: ReplayResult) -> FirstDifference:
    event = result.difference_position
    rows = list(trace.event_batches(["time_ns", "stack"], first_event=event, end_event=event + 1))
    time_ns = int(rows[0]["time_ns"][0]) if rows else trace.meta.duration_ns
    stack = StackId(int(rows[0]["stack"][0]) if rows else 0)
    return FirstDifference(
        event=EventIndex(event),
        time_ns=time_ns,
        reason=result.reason,
        expected=_facts(result.expected_kind, result.expected_address, result.expected_bytes, result.expected_stream),
        got=_facts(result.got_kind, result.got_address, result.got_bytes, result.got_stream),
        site=SiteFinder(trace).site(stack),
        stack=trace.stack_frames(stack),
    )


def _facts(kind: int, address: int, event_bytes: int, stream: int) -> EventFacts | None:
    return EventFacts(EventKind(kind), address, event_bytes, stream) if kind else None


def _settings_assumed(allocator: RecordedAllocator) -> Iterator[str]:
    if allocator.settings is None:
        yield "The allocator's settings are not in the recording: PyTorch's default ones were assumed."


def _not_recorded(
    trace: Trace, result: ReplayResult, empty_caches: U64Column, device: int, pools_recorded: bool
) -> Iterator[str]:
    """What no event says and the replay had to be told by something else, as sentences."""
    assumed = result.assumptions
    if assumed & ReplayAssumption.EMPTY_CACHE:
        count = len(empty_caches)
        yield (
            f"Calls of empty_cache are not recorded: {format_count(count)} that released memory no request asked for "
            f"{'were' if count > 1 else 'was'} inferred, the first before event {format_count(int(empty_caches[0]))}."
        )
    if any(block.device == device for block in trace.initial_blocks):
        yield (
            "The history begins in mid-run: what was live then is known from its frees and the end; peaks, hits and "
            "splits before it are not counted."
        )
    if _may_have_private_pools(trace) or assumed & (ReplayAssumption.POOLS | ReplayAssumption.LOST_POOLS):
        which = "" if pools_recorded else ", nor (before PyTorch 2.12) which one a request went to"
        yield (
            "Of private pools it is not recorded whether they split blocks (no_split) or lend them (use_on_oom), nor "
            f"when they were given up{which}: the blocks' bytes and places tell it."
        )
    for flag, sentence in _SENTENCES.items():
        if assumed & flag:
            yield sentence


_SENTENCES = {
    ReplayAssumption.LOST_POOLS: (
        "A private pool was gone before the end, and no event names it: segments into which a request of the default "
        "pools would have fitted were taken for its own."
    ),
    ReplayAssumption.GARBAGE: (
        "Which segments garbage collection took is read from the recording, not predicted: that takes the memory limit "
        "and the ages of blocks from the start."
    ),
    ReplayAssumption.DRIVER_REFUSED: "The driver refused memory below the limit; why is not recorded.",
    ReplayAssumption.SETTINGS_CHANGED: (
        "expandable_segments was switched during the run, and only the last settings are recorded: the kind of each "
        "segment tells what was in force."
    ),
    ReplayAssumption.SLACK: (
        "How much larger than their requests some blocks from before the history are (1 MiB at most each) never came "
        "to light."
    ),
    ReplayAssumption.RELEASE: (
        "The memory limit is not recorded: a release before a request was an empty_cache call, or a retry after a "
        "refusal; the heap is the same either way, retries may be more than counted."
    ),
}


def _may_have_private_pools(trace: Trace) -> bool:
    return trace.meta.source is TraceSource.PYTORCH_SNAPSHOT and len(trace.pools) > 1
