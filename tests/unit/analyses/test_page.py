"""What a page draws, held to a plain model of the heap: curves, shares, flame graph, readings, how much there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses.page import find_page
from gpumem.analyses.page_curves import PageCurves, find_curves
from gpumem.analyses.page_detail import Detail
from gpumem.analyses.page_flame import FlameTree, find_flame
from gpumem.analyses.page_readings import thin_readings
from gpumem.analyses.page_shares import PeakStack, find_shares
from gpumem.analyses.page_sites import list_sites
from gpumem.trace.model import Frame, Trace
from gpumem.vocabulary import DeviceOrdinal, EventIndex, EventKind
from random_traces import CutEvents, PlainHeap, plain_states, traces
from trace_builder import GiB, MiB, TraceBuilder

CURVES = ("held_bytes", "pending_bytes", "reserved_bytes")


def levels_of(heap: PlainHeap) -> tuple[int, int, int]:
    return heap.held, heap.pending, heap.reserved


def rows(curves: PageCurves) -> list[tuple[int, ...]]:
    return list(zip(curves.event.tolist(), *(getattr(curves, name).tolist() for name in CURVES), strict=True))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_every_point_is_what_the_heap_was_then_and_few_events_are_all_drawn(drawn: tuple[Trace, int, bool]) -> None:
    trace, length, known = drawn
    states = plain_states(trace, known=known)
    found = find_curves(replace(trace, events=CutEvents(trace, length)), devices=None, buckets=400)
    assert set(found) == set(states)
    for device, curves in found.items():
        assert [point[1:] for point in rows(curves)] == [levels_of(states[device][row[0] + 1]) for row in rows(curves)]
        assert curves.device_events <= len(curves.event) - 1 or curves.device_events == 0
        assert (np.diff(curves.event) > 0).all()


@settings(max_examples=60, deadline=None)
@given(traces())
def test_no_extreme_is_lost_however_coarse_the_buckets(drawn: tuple[Trace, int, bool]) -> None:
    trace, length, known = drawn
    states = plain_states(trace, known=known)
    found = find_curves(replace(trace, events=CutEvents(trace, length)), devices=None, buckets=2)
    for device, curves in found.items():
        plain = np.array([levels_of(heap) for heap in states[device]])
        for column, name in enumerate(CURVES):
            assert getattr(curves, name).max() == plain[:, column].max()
            assert getattr(curves, name).min() == plain[:, column].min()
        assert (curves.held_bytes + curves.pending_bytes).max() == (plain[:, 0] + plain[:, 1]).max()


@settings(max_examples=60, deadline=None)
@given(traces())
def test_shares_add_up_to_what_is_held_at_every_counted_event(drawn: tuple[Trace, int, bool]) -> None:
    trace, length, known = drawn
    states = plain_states(trace, known=known)
    cut = replace(trace, events=CutEvents(trace, length))
    curves = find_curves(cut, devices=None, buckets=3)
    peaks = {device: EventIndex(int(of.event[of.held_bytes.argmax()])) for device, of in curves.items()}
    found = find_shares(cut, {device: of.highest_events for device, of in curves.items()}, peaks)
    for device, shares in found.items():
        held = [states[device][event + 1].held for event in shares.event.tolist()]
        sums = sum((one.held_bytes for one in shares.by_site), np.zeros(len(held), np.int64))
        assert sums.tolist() == held
        assert set(curves[device].highest_events.tolist()) | {peaks[device]} == set(shares.event.tolist())
        assert sum(one.held_bytes for one in shares.peak_stacks) == max(heap.held for heap in states[device])
        allocs = sum(one.alloc_count for one in shares.by_site)
        assert allocs == count_of(trace, device, EventKind.ALLOC)


def count_of(trace: Trace, device: DeviceOrdinal, kind: EventKind) -> int:
    batches = trace.event_batches(["kind", "device"])
    return sum(int(((batch["kind"] == kind) & (batch["device"] == device)).sum()) for batch in batches)


def test_a_spike_of_one_event_is_drawn_on_both_axes() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(200 * MiB)
    for number in range(3000):
        builder.alloc(f"b{number}", MiB, stack=[("/a.py", 1, "f")]).free(f"b{number}")
        if number == 1234:
            builder.alloc("spike", 150 * MiB, stack=[("/a.py", 2, "g")]).free("spike")
    trace = builder.build()
    (curves,) = find_curves(trace, devices=None, buckets=20).values()
    assert curves.held_bytes.max() == 150 * MiB
    assert len(curves.event) < 20 * 2 * 10
    (shares,) = find_shares(
        trace, {DeviceOrdinal(0): curves.highest_events}, {DeviceOrdinal(0): EventIndex(2471)}
    ).values()
    first = shares.by_site[0]
    assert (first.site, first.held_bytes_peak, first.alloc_count) == (Frame("/a.py", 2, "g"), 150 * MiB, 1)


def test_driver_and_out_of_memory_events_name_their_site() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB, "s").release("s").oom(5 * GiB, free=3 * MiB)
    trace = builder.build()
    (curves,) = find_curves(trace, devices=None, buckets=20).values()
    (shares,) = find_shares(
        trace, {DeviceOrdinal(0): curves.highest_events}, {DeviceOrdinal(0): EventIndex(-1)}
    ).values()
    assert [(one.kind, one.driver_bytes) for one in shares.driver_events] == [
        (EventKind.SEGMENT_ALLOC, 20 * MiB),
        (EventKind.SEGMENT_FREE, 20 * MiB),
    ]
    (oom,) = shares.oom_events
    assert (oom.event, oom.driver_bytes, oom.free_bytes, oom.site) == (2, 5 * GiB, 3 * MiB, None)


START = (Frame("/usr/lib/python3.12/runpy.py", 88, "_run_code"), Frame("/usr/lib/python3.12/runpy.py", 198, "run"))
MAIN, STEP, LIBRARY = (
    Frame("/w/train.py", 9, "main"),
    Frame("/w/train.py", 5, "step"),
    Frame("/x/site-packages/t.py", 1, "op"),
)


def stack(*frames: Frame, held: int, count: int = 1) -> PeakStack:
    """A stack given from the outside in."""
    return PeakStack((*frames[::-1], *START), frames[-1] if frames else None, held, count)


def shape(tree: FlameTree) -> list[tuple[int, str, int]]:
    return [(node.parent, node.frame.function if node.frame else "", node.held_bytes) for node in tree.nodes]


def test_flame_begins_where_the_user_s_code_does_and_adds_up() -> None:
    flame = find_flame([stack(MAIN, STEP, LIBRARY, held=70), stack(MAIN, STEP, held=20), stack(MAIN, held=10)], 0)
    assert shape(flame.own) == [(-1, "", 100), (0, "main", 100), (1, "step", 90)]
    assert shape(flame.full) == [(-1, "", 100), (0, "main", 100), (1, "step", 90), (2, "op", 70)]
    assert shape(flame.inverted) == [(-1, "", 100), (0, "step", 90), (1, "main", 90), (0, "main", 10)]
    assert flame.full.depth == 4


def test_flame_sums_up_what_is_too_small_and_what_has_no_stack() -> None:
    small = [stack(MAIN, Frame("/w/train.py", line, "f"), held=1) for line in range(5)]
    nameless = PeakStack((), None, 1000, 3)
    flame = find_flame([stack(MAIN, STEP, held=99_000), *small, nameless], 7)
    assert [(node.held_bytes, node.is_rest) for node in flame.own.nodes if node.frame is None] == [
        (100_012, False),
        (5, True),
        (1000, False),
        (7, True),
    ]
    children: dict[int, int] = {}
    for node in flame.full.nodes:
        children[node.parent] = children.get(node.parent, 0) + node.held_bytes
    assert all(held <= flame.full.nodes[parent].held_bytes for parent, held in children.items() if parent >= 0)


FLAME_FRAMES = [LIBRARY, *(Frame("/w/train.py", line, "f") for line in range(4))]
FLAME_STACKS = st.lists(
    st.builds(
        PeakStack,
        st.lists(st.sampled_from(FLAME_FRAMES), max_size=6).map(tuple),
        st.sampled_from([None, *FLAME_FRAMES[1:]]),
        st.integers(1, 100),
        st.integers(1, 5),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(FLAME_STACKS, st.integers(0, 50))
def test_flame_has_the_nodes_of_a_tree_made_stack_by_stack(stacks: list[PeakStack], rest_bytes: int) -> None:
    plain: dict[tuple[Frame | None, ...], list[PeakStack]] = {}
    stacks = [*stacks, PeakStack(FLAME_FRAMES[1:2], FLAME_FRAMES[1], 1, 1)]  # so short that no start is shared
    for one in stacks:
        calls = tuple(one.frames[::-1]) or (None,)
        for depth in range(1, len(calls) + 1):
            plain.setdefault(calls[:depth], []).append(one)
    root, *nodes = find_flame(stacks, rest_bytes).full.nodes
    assert (root.held_bytes, root.parent) == (rest_bytes + sum(one.held_bytes for one in stacks), -1)
    paths: list[tuple[Frame | None, ...]] = [()]
    for node in nodes:
        paths.append((*paths[node.parent], node.frame))
        if node.is_rest:
            assert (node.parent, node.held_bytes) == (0, rest_bytes)
            continue
        below = plain.pop(paths[-1])
        sites = {one.site for one in below}
        assert node.held_bytes == sum(one.held_bytes for one in below)
        assert node.block_count == sum(one.block_count for one in below)
        assert (node.has_site, node.site) == ((True, *sites) if len(sites) == 1 else (False, None))
    assert not plain


def test_readings_keep_every_extreme() -> None:
    builder = TraceBuilder()
    for number in range(500):
        builder.wait(10**6).reading(process_bytes=None if number == 7 else (900 if number == 321 else number % 9))
    trace = builder.build()
    thin = thin_readings(trace.readings, 0, duration_ns=trace.meta.duration_ns, buckets=10)
    assert (thin.reading_count, thin.process_bytes.max(), thin.process_bytes.min()) == (500, 900, -1)
    assert len(thin.event) <= 60
    assert (np.diff(thin.time_ns) >= 0).all()


def test_sites_are_listed_by_bytes_then_by_name() -> None:
    one, other, third = Frame("/a.py", 2, "f"), Frame("/a.py", 1, "f"), Frame("/b.py", 1, "f")
    sites = list_sites([(one, 5), (None, 5), (third, 9), (other, 5), (one, 0)])
    assert sites.sites == [third, other, one, None]
    assert sites.number(None) == 3


def test_page_names_every_site_that_its_figures_name() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    builder.alloc("a", MiB, stack=[("/a.py", 1, "f")]).free("a").alloc("b", 2 * MiB, stack=[("/a.py", 2, "g")])
    page = find_page([builder.build()])
    assert page.sites.sites == [Frame("/a.py", 2, "g"), Frame("/a.py", 1, "f"), None]
    (view,) = page.views
    assert [(row.peak_bytes, row.most_bytes, row.alloc_count) for row in view.site_rows] == [
        (2 * MiB, 2 * MiB, 1),
        (0, MiB, 1),
    ]


@pytest.mark.parametrize(
    ("views", "coarseness", "drawn", "buckets"),
    [(1, 1, 1, 700), (4, 1, 4, 700), (8, 1, 8, 350), (64, 1, 32, 87), (64, 4, 8, 87)],
)
def test_many_views_are_drawn_more_coarsely(views: int, coarseness: int, drawn: int, buckets: int) -> None:
    detail = Detail.of(views, coarseness)
    assert (detail.views, detail.buckets) == (drawn, buckets)


def test_of_too_many_views_those_that_reserved_the_most_are_drawn() -> None:
    traces = [TraceBuilder(rank=rank).segment((1 + rank % 3) * MiB).build() for rank in range(40)]
    page = find_page(traces, coarseness=8)
    assert [view.trace for view in page.views] == [2, 5, 8, 11]
    assert len(page.traces) == 40


def test_progress_is_told_part_by_part() -> None:
    told: list[tuple[str, int, int]] = []
    trace = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", MiB).build()
    find_page([trace, trace], progress=lambda part, number, count: told.append((part, number, count)))
    assert [number for _, number, _ in told] == list(range(8))
    assert {count for *_, count in told} == {8}
    assert told[3][0] == "train.4711.gpumem: sites"
