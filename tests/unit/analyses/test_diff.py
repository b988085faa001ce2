"""What changed between two traces, in numbers: pairing of stacks and sites, sums, devices, bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from explained_traces import unrecorded_trace
from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_findings import BeforeAfter, Change, DeviceDiff, GroupDiff, Held
from gpumem.analyses.diff_headline import HeadlineKind, check_growth, find_headline
from gpumem.errors import AllocatorNotRecorded
from gpumem.trace.model import Trace
from gpumem.trace.moments import AtMark, End, Start
from gpumem.vocabulary import Basis, BlockState, DeviceOrdinal, TraceSource
from trace_builder import GiB, KiB, MiB, TraceBuilder
from training_trace import training_trace

HOME = "/home/anna/work"
OTHER = "/mnt/runs/checkout-7"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"

Line = tuple[str, int, str]


def script(
    line: int, *, bottom: int = 60, home: str = HOME, file: str = "train.py", within: str = "main"
) -> list[Line]:
    """A stack of a script: a line of its function, and the line at the bottom that calls it."""
    return [(f"{home}/{file}", line, within), (f"{home}/{file}", bottom, "<module>")]


def held(*blocks: tuple[Sequence[Line], int], known: bool = True, device: int = 0) -> Trace:
    """A trace that ends with these blocks allocated: the stack and the bytes of each."""
    builder = TraceBuilder(block_bytes_known=known).on(device=device).segment(16 * GiB)
    for number, (stack, requested_bytes) in enumerate(blocks):
        builder.alloc(f"block {number}", requested_bytes, stack=stack)
    return builder.build()


def only_device(before: Trace, after: Trace) -> DeviceDiff:
    (device,) = compare_traces(before, after).devices
    return device


def told(groups: Sequence[GroupDiff]) -> list[tuple[str, int | None, int | None, int]]:
    """Of each changed group: what became of it, its line before and after, and by how much in MiB."""
    return [
        (
            group.change.value,
            group.before_site and group.before_site.line,
            group.after_site and group.after_site.line,
            group.delta_bytes // MiB,
        )
        for group in groups
        if group.change is not Change.SAME
    ]


def test_same_stack_that_grows_from_one_to_four_gib_is_one_site_that_grew() -> None:
    before = held((script(41, within="build_cache"), 1 * GiB))
    after = held(*[(script(41, within="build_cache"), 1 * GiB)] * 4)
    device = only_device(before, after)
    (site,) = device.by_site
    assert (site.change, site.before_bytes, site.after_bytes) == (Change.GROWN, 1 * GiB, 4 * GiB)
    assert (site.before_count, site.after_count, site.has_moved) == (1, 4, False)
    assert device.held_bytes == device.allocated_bytes == BeforeAfter(1 * GiB, 4 * GiB)
    assert device.held_bytes.delta == 3 * GiB


def test_identical_runs_differ_by_nothing() -> None:
    for known in (True, False):
        trace = training_trace(block_bytes_known=known)
        found = compare_traces(trace, replace(trace))
        (device,) = found.devices
        assert not found.settings
        assert not device.changed_sites
        assert all(group.change is Change.SAME and not group.has_moved for group in (*device.by_stack, *device.by_site))
        assert device.reserved_bytes.delta == device.held_bytes.delta == 0


def test_lines_that_moved_down_still_match() -> None:
    linear = (f"{TORCH}/nn/modules/linear.py", 98, "forward")
    before = held((script(10), 1 * MiB), (script(11), 1 * MiB), ([linear, *script(30)], 64 * MiB))
    after = held(
        (script(11, bottom=61), 1 * MiB),
        (script(12, bottom=61), 1 * MiB),
        ([linear, *script(31, bottom=61)], 96 * MiB),
    )
    device = only_device(before, after)
    assert told(device.by_site) == [("grown", 30, 31, 32)]
    assert [(one.before_site and one.before_site.line, one.after_site and one.after_site.line)
            for one in device.by_site if one.change is Change.SAME] == [(10, 11), (11, 12)]  # fmt: skip
    assert all(one.has_moved for one in device.by_site)


def test_line_added_between_moves_those_below_and_is_new() -> None:
    before = held((script(20), 10 * MiB), (script(30), 30 * MiB))
    after = held((script(20, bottom=63), 10 * MiB), (script(25, bottom=63), 7 * MiB), (script(33, bottom=63), 30 * MiB))
    assert told(only_device(before, after).by_site) == [("new", None, 25, 7)]


def test_other_branch_of_an_unmoved_script_is_new_and_gone() -> None:
    before = held((script(10), 1 * MiB), (script(20), 10 * MiB))
    after = held((script(10), 1 * MiB), (script(30), 12 * MiB))
    assert told(only_device(before, after).by_site) == [("new", None, 30, 12), ("gone", 20, None, -10)]


def test_checkout_in_another_folder_and_another_python_match() -> None:
    def stack(home: str, python: str) -> list[Line]:
        return [(f"/{python}/site-packages/torch/nn/modules/linear.py", 98, "forward"),
                (f"{home}/model/net.py", 12, "Net.forward"), *script(30, home=home)]  # fmt: skip

    before = held((stack(HOME, "opt/a/lib/python3.11"), 10 * MiB))
    after = held((stack(OTHER, "usr/lib/python3.12"), 15 * MiB))
    device = only_device(before, after)
    (site,) = device.by_site
    assert told(device.by_site) == told(device.by_stack) == [("grown", 12, 12, 5)]
    assert site.before_site is not None
    assert site.after_site is not None
    assert (site.before_site.file, site.after_site.file) == (f"{HOME}/model/net.py", f"{OTHER}/model/net.py")
    assert site.has_moved


def test_renamed_script_matches_by_its_functions() -> None:
    before = held((script(30), 10 * MiB))
    after = held((script(33, bottom=65, file="train_v2.py"), 15 * MiB))
    assert told(only_device(before, after).by_site) == [("grown", 30, 33, 5)]


def test_callers_may_differ_but_frames_within_the_site_may_not() -> None:
    linear, conv = ((f"{TORCH}/nn/modules/{name}.py", 9, "forward") for name in ("linear", "conv"))
    site = (f"{HOME}/net.py", 12, "Net.forward")
    before = held(([linear, site, (f"{HOME}/a.py", 3, "old")], 10 * MiB))
    assert told(only_device(before, held(([linear, site, (f"{HOME}/a.py", 9, "other")], 10 * MiB))).by_stack) == []
    swapped = only_device(before, held(([conv, site, (f"{HOME}/a.py", 3, "old")], 11 * MiB)))
    assert [one[0] for one in told(swapped.by_stack)] == ["new", "gone"]
    assert told(swapped.by_site) == [("grown", 12, 12, 1)]


def test_optimizer_swap_in_an_edited_script_stays_at_the_site_of_its_step() -> None:
    def stack(name: str, line: int, bottom: int) -> list[Line]:
        return [(f"{TORCH}/optim/{name}.py", 80, "step"), *script(line, bottom=bottom)]

    before = held((script(10), 8 * MiB), (stack("sgd", 41, 60), 10 * MiB))
    after = held((script(10, bottom=62), 8 * MiB), (stack("adamw", 43, 62), 20 * MiB))
    assert told(only_device(before, after).by_site) == [("grown", 41, 43, 10)]


def test_recursion_of_another_depth_matches_at_its_site() -> None:
    def stack(depth: int) -> list[Line]:
        return [(f"{HOME}/tree.py", 5, "grow")] * depth + script(30)

    device = only_device(held((stack(3), 1 * MiB)), held((stack(3), 1 * MiB), (stack(9), 2 * MiB)))
    assert told(device.by_stack) == [("new", None, 5, 2)]
    assert told(device.by_site) == [("grown", 5, 5, 2)]


def test_blocks_without_a_stack_and_lost_events_have_rows_of_their_own() -> None:
    before = TraceBuilder(records_lost=1).segment(2 * MiB).alloc("a", 100, stack=script(1))
    before.blocks["a"].live = False  # its free was lost
    before.alloc("b", 30)
    after = TraceBuilder().segment(2 * MiB).alloc("a", 40)
    device = only_device(before.build(), after.build())
    assert {one.held: (one.before_bytes, one.after_bytes) for one in device.by_site} == {
        Held.WITHOUT_STACK: (30, 40),
        Held.EVENTS_LACKING: (100, 0),
    }
    assert sum(one.delta_bytes for one in device.by_stack) == device.held_bytes.delta == -90


def test_pending_blocks_are_not_held() -> None:
    before = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 1 * MiB, stack=script(1))
    trace = before.build()
    after = before.free_requested("a").build()
    found = compare_traces(trace, after, before_moment=End(), after_moment=End())
    assert told(found.devices[0].by_site) == [("gone", 1, None, -1)]
    assert found.devices[0].reserved_bytes.delta == 0


def test_requests_are_compared_where_one_side_knows_no_blocks() -> None:
    before, after = (held((script(1), 700 * KiB + 1), known=known) for known in (True, False))
    found = compare_traces(before, after)
    (device,) = found.devices
    assert found.basis is device.basis is Basis.REQUESTED
    assert device.allocated_bytes is None
    assert device.held_bytes == device.requested_bytes == BeforeAfter(700 * KiB + 1, 700 * KiB + 1)
    assert device.held_bytes_peak.delta == 0


def test_devices_of_one_number_belong_together() -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 1 * MiB, stack=script(1))
    before = builder.build()
    builder.on(device=1).segment(4 * MiB).alloc("b", 3 * MiB, stack=script(2))
    one, other = compare_traces(before, builder.build()).devices
    assert (one.device, one.held_bytes.delta, other.device, other.held_bytes.delta) == (0, 0, 1, 3 * MiB)
    assert (other.before_device, other.after_device) == (None, 1)
    assert other.reserved_bytes == BeforeAfter(0, 4 * MiB)
    (chosen,) = compare_traces(before, builder.build(), devices=[DeviceOrdinal(1)]).devices
    assert chosen.by_site == other.by_site


def test_only_devices_belong_together_whatever_their_numbers() -> None:
    device = only_device(held((script(1), 1 * MiB)), held((script(1), 1 * MiB), device=3))
    assert (device.before_device, device.after_device) == (0, 3)
    assert not device.changed_sites


def test_empty_traces_have_no_devices() -> None:
    empty = TraceBuilder().build()
    assert compare_traces(empty, empty).devices == []
    device = only_device(empty, held((script(1), 1 * MiB)))
    assert told(device.by_site) == [("new", None, 1, 1)]


def test_moments_of_one_trace_are_compared_and_settings_left_alone() -> None:
    builder = TraceBuilder(settings="expandable_segments:True").segment(20 * MiB).alloc("a", 2 * MiB, stack=script(1))
    trace = builder.mark("loaded").alloc("b", 3 * MiB, stack=script(1)).free("a").segment(2 * MiB).build()
    found = compare_traces(trace, trace, before_moment=AtMark("loaded"), after_moment=End())
    assert found.is_one_trace
    assert not found.settings
    (device,) = found.devices
    assert (device.held_bytes, device.reserved_bytes.delta) == (BeforeAfter(2 * MiB, 3 * MiB), 2 * MiB)
    assert device.held_bytes_peak == BeforeAfter(5 * MiB, 5 * MiB)
    (start,) = compare_traces(trace, trace, before_moment=Start(), after_moment=End()).devices
    assert told(start.by_site) == [("new", None, 1, 3)]


def test_initial_blocks_count_and_peaks_are_not_known_where_recording_began_in_mid_run() -> None:
    builder = TraceBuilder(history_truncated=True).initial("old", 9 * MiB, stack=script(1))
    builder.initial("gone", 1 * MiB, state=BlockState.FREE)
    trace = builder.build()
    device = only_device(trace, held((script(1), 9 * MiB), known=False))
    assert told(device.by_site) == []
    assert device.held_bytes_peak == BeforeAfter(None, 9 * MiB)
    assert device.held_bytes_peak.delta is None


def test_settings_that_differ_are_named_with_both_values() -> None:
    before = TraceBuilder(settings="", versions={"torch": "2.10", "python": "3.12"}, command_line=("train.py", "-b 8"))
    before.device_facts(memory_limit_bytes=10 * GiB)
    after = TraceBuilder(settings="expandable_segments:True", versions={"torch": "2.11", "python": "3.12"})
    after.device_facts(name="NVIDIA A100")
    found = compare_traces(before.build(), after.build()).settings
    assert [(one.name, one.before, one.after) for one in found] == [
        ("allocator settings", None, "expandable_segments:True"),
        ("command line", "train.py '-b 8'", "train.py"),
        ("torch", "2.10", "2.11"),
        ("device 0", "NVIDIA H200", "NVIDIA A100"),
        ("device 0 memory limit", 10 * GiB, None),
    ]


def test_ends_that_differ_and_what_nvml_saw_stand_beside() -> None:
    before = TraceBuilder().segment(2 * MiB).alloc("a", 1 * MiB).reading(process_bytes=700 * MiB).free("a")
    after = TraceBuilder(ended_by="exit 1").segment(2 * MiB).alloc("a", 1 * MiB)
    found = compare_traces(before.build(), after.build())
    assert [(one.name, one.before, one.after) for one in found.settings] == [("ended by", "exit", "exit 1")]
    assert found.devices[0].nvml_process_bytes == BeforeAfter(700 * MiB, None)


def test_facts_that_one_side_does_not_know_are_no_difference() -> None:
    before = TraceBuilder(versions={"torch": "2.11"}, command_line=("train.py",)).device_facts(memory_limit_bytes=1)
    after = TraceBuilder(source=TraceSource.PYTORCH_SNAPSHOT).device_facts(name=None, capacity_bytes=None)
    trace = replace(after.build(), meta=replace(after.build().meta, program=""))
    assert [one.name for one in compare_traces(before.build(), trace).settings] == ["recorded from"]


def test_growth_from_or_to_a_run_without_a_recorded_allocator_is_not_checked() -> None:
    recorded = TraceBuilder().segment(2 * MiB).alloc("a", 1 * MiB).build()
    assert find_headline(compare_traces(recorded, unrecorded_trace())).kind is HeadlineKind.UNRECORDED
    with pytest.raises(AllocatorNotRecorded, match="holds no allocator's events, so growth cannot be checked"):
        check_growth(compare_traces(recorded, unrecorded_trace()), 0)
    with pytest.raises(AllocatorNotRecorded):
        check_growth(compare_traces(unrecorded_trace(), recorded), 0)
