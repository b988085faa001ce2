"""Comparisons of random programs: sums hold on both sides, whatever is paired with what."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as some

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_findings import Change, DeviceDiff, GroupDiff
from gpumem.trace.model import Trace
from gpumem.trace.moments import End
from trace_builder import MiB, TraceBuilder

Line = tuple[str, int, str]
FOLDERS = (
    "/home/a/project",
    "/mnt/copy",
    "/opt/lib/python3.11/site-packages/torch",
    "/usr/lib/python3.12/dist-packages/torch",
)

frames = some.tuples(
    some.builds("{}/{}.py".format, some.sampled_from(FOLDERS), some.sampled_from("ab")),
    some.integers(1, 6),
    some.sampled_from(("f", "g", "<module>")),
)
blocks = some.tuples(
    some.lists(frames, max_size=4),
    some.integers(1, 5000),
    some.integers(0, 1),
    some.sampled_from(("kept", "freed", "pending")),
)
programs = some.lists(blocks, max_size=25)


def run(program: Sequence[tuple[Sequence[Line], int, int, str]], *, known: bool, lost: bool = False) -> Trace:
    """The program's allocations, some of them freed; `lost`: the frees of those leave no event."""
    builder = TraceBuilder(block_bytes_known=known, records_lost=int(lost))
    for device in (0, 1):
        builder.on(device=device).segment(2 * MiB)
    for number, (stack, requested_bytes, device, fate) in enumerate(program):
        name = f"block {number}"
        builder.on(device=device).alloc(name, requested_bytes, stack=stack)
        if fate == "pending":
            builder.free_requested(name)
        elif fate == "freed" and lost:
            builder.blocks[name].live = False
        elif fate == "freed":
            builder.free(name)
    return builder.build()


def check_sums(device: DeviceDiff) -> None:
    for groups in (device.by_site, device.by_stack):
        assert sum(group.before_bytes for group in groups) == device.held_bytes.before
        assert sum(group.after_bytes for group in groups) == device.held_bytes.after
        assert sum(group.delta_bytes for group in groups) == device.held_bytes.delta
    for name in ("before_count", "after_count"):
        counts = [sum(getattr(group, name) for group in groups) for groups in (device.by_site, device.by_stack)]
        assert counts[0] == counts[1]


def sites(groups: Sequence[GroupDiff], side: str) -> list[Line]:
    found = [getattr(group, f"{side}_site") for group in groups]
    return [(site.file, site.line, site.function) for site in found if site is not None]


@settings(deadline=None, max_examples=50)
@given(programs, programs, some.booleans(), some.booleans(), some.booleans())
def test_sums_hold_and_every_site_is_there_once(
    one: list[tuple[list[Line], int, int, str]],
    other: list[tuple[list[Line], int, int, str]],
    known_before: bool,
    known_after: bool,
    lost: bool,
) -> None:
    before, after = run(one, known=known_before, lost=lost), run(other, known=known_after)
    for device in compare_traces(before, after, before_moment=End(), after_moment=End()).devices:
        check_sums(device)
        for side in ("before", "after"):
            named = sites(device.by_site, side)
            assert len(named) == len(set(named))
    for device in compare_traces(before, after).devices:
        check_sums(device)


@settings(deadline=None, max_examples=50)
@given(programs, some.booleans())
def test_same_program_differs_by_nothing(program: list[tuple[list[Line], int, int, str]], known: bool) -> None:
    found = compare_traces(run(program, known=known), run(program, known=known))
    for device in found.devices:
        for group in (*device.by_site, *device.by_stack):
            assert group.change is Change.SAME
            assert not group.has_moved


@settings(deadline=None, max_examples=50)
@given(programs, some.integers(1, 9))
def test_program_below_added_lines_differs_by_nothing(
    program: list[tuple[list[Line], int, int, str]], added: int
) -> None:
    """Every line of every file moves by as much."""
    moved = [([(file, line + added, name) for file, line, name in stack], *rest) for stack, *rest in program]
    found = compare_traces(run(program, known=True), run(moved, known=True))  # type: ignore[arg-type]
    for device in found.devices:
        assert not device.changed_sites
        assert all(group.change is Change.SAME for group in device.by_stack)
