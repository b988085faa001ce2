"""The ledger of a process's bytes: what is in it, what for evidence, and that it closes."""

from __future__ import annotations

from pathlib import Path

import pytest

from explained_traces import (
    CARD_BYTES,
    DRIVER_BYTES,
    LINEAR,
    RESERVE_BYTES,
    TRAIN,
    explained_trace,
    lay,
    read,
    unrecorded_trace,
)
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.explain_findings import FindingCode
from gpumem.analyses.ledger_parts import ComponentName, Evidence
from gpumem.simulate.opening import open_trace
from gpumem.trace.model import Frame
from gpumem.trace.moments import AtEvent, End, Peak
from gpumem.vocabulary import TraceSource
from read_ledgers import codes, finding, ledger_of, parts
from trace_builder import GiB, MiB, TraceBuilder

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NAMES = ("nine_steps", "nine_steps_cupy", "gpt2_train", "resnet50_train", "out_of_memory")


def test_ledger_names_every_part_of_the_process() -> None:
    ledger = ledger_of(explained_trace())
    assert ledger.process_bytes == (676 + 1162) * MiB
    assert parts(ledger) == {
        "cuda_context": 518 * MiB,
        "outside_allocator": 158 * MiB,
        "outside_allocator/mark:first kernel": 92 * MiB,
        "outside_allocator/mark:first product": 66 * MiB,
        "gpumem": 0,
        "allocator": 1162 * MiB,
        "allocator/live_requests": (3 + 18) * MiB + 4,
        "allocator/cublas_workspaces": 32 * MiB,
        "allocator/slack": 508,
        "allocator/pending": 2 * MiB,
        "allocator/releasable": 1 * GiB,
        "allocator/gaps": (2 + 15 + 46) * MiB - 512,
        "allocator/private_pools": 20 * MiB,
        "allocator/private_pools/live_requests": 5 * MiB,
        "allocator/private_pools/gaps": 15 * MiB,
    }
    assert ledger.unexplained_bytes == 0


def test_sums_by_evidence_are_the_process_s_bytes() -> None:
    ledger = ledger_of(explained_trace())
    assert ledger.sums.measured_bytes == (518 + 21 + 5) * MiB + 4
    assert ledger.sums.difference_bytes == 158 * MiB
    assert ledger.sums.sum_bytes == ledger.process_bytes


def test_card_stands_above_with_the_driver_s_reserve_and_what_belongs_to_no_process() -> None:
    ledger = ledger_of(explained_trace())
    used, reserve, free = ledger.card
    assert (used.name, reserve.name, free.name) == (
        ComponentName.USED,
        ComponentName.DRIVER_RESERVE,
        ComponentName.FREE,
    )
    assert used.held_bytes + reserve.held_bytes + free.held_bytes == CARD_BYTES
    assert [(one.name, one.held_bytes, one.evidence) for one in used.children] == [
        (ComponentName.THIS_PROCESS, 1838 * MiB, Evidence.MEASURED),
        (ComponentName.OTHER_PROCESSES, 0, Evidence.MEASURED),
        (ComponentName.NO_PROCESS, DRIVER_BYTES, Evidence.DIFFERENCE),
    ]
    assert finding(ledger, FindingCode.DRIVER_RESERVE).held_bytes == RESERVE_BYTES


def test_empty_cache_finding_says_what_returns_and_who_pins_the_rest() -> None:
    ledger = ledger_of(explained_trace())
    assert finding(ledger, FindingCode.EMPTY_CACHE).held_bytes == 1 * GiB
    pinned = finding(ledger, FindingCode.GAPS_PINNED)
    assert (pinned.held_bytes, pinned.count) == (63 * MiB - 512, 3)
    assert [
        (one.segment_bytes, one.gap_bytes, one.block_count, one.largest_bytes, one.largest_site)
        for one in pinned.pinned
    ] == [
        (64 * MiB, 46 * MiB, 1, 18 * MiB, Frame(TRAIN, 31, "load")),
        (20 * MiB, 15 * MiB, 2, 3 * MiB, Frame(TRAIN, 20, "step")),
        (2 * MiB, 2 * MiB - 512, 1, 512, Frame(TRAIN, 7, "main")),
    ]
    assert finding(ledger, FindingCode.PENDING).held_bytes == 2 * MiB
    assert finding(ledger, FindingCode.PRIVATE_POOLS).held_bytes == 15 * MiB


def test_unknown_block_bytes_leave_slack_and_gaps_together() -> None:
    ledger = ledger_of(explained_trace(block_bytes_known=False))
    found = parts(ledger)
    assert found["allocator/live_requests"] == 21 * MiB + 4
    assert found["allocator/releasable"] == 1 * GiB
    assert found["allocator/slack_and_idle"] == (2 + 15 + 46) * MiB - 4
    assert found["allocator/private_pools/slack_and_idle"] == 15 * MiB
    assert ledger.sums.sum_bytes == ledger.process_bytes
    assert FindingCode.BLOCKS_NOT_KNOWN in codes(ledger)
    assert FindingCode.GAPS_PINNED not in codes(ledger)
    assert finding(ledger, FindingCode.EMPTY_CACHE).held_bytes == 1 * GiB


def test_expandable_segments_of_unknown_blocks_do_not_say_what_returns() -> None:
    builder = TraceBuilder().map(20 * MiB).alloc("a", 1 * MiB)
    ledger = ledger_of(lay(builder, 518, 20).build())
    assert finding(ledger, FindingCode.EMPTY_CACHE).held_bytes is None


def test_block_in_no_known_segment_does_not_break_the_sum() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 100)
    builder.rows[0]["kind"] = 5  # the segment's own event is missing
    ledger = ledger_of(lay(builder, 518, 0).build())
    assert parts(ledger)["allocator/live_requests"] == 100
    assert parts(ledger)["allocator/slack_and_idle"] == -100
    assert finding(ledger, FindingCode.BLOCKS_NOT_KNOWN).count == 1
    assert ledger.sums.sum_bytes == ledger.process_bytes == 518 * MiB


def test_trace_without_nvml_explains_the_allocator_alone() -> None:
    builder = TraceBuilder(block_bytes_known=True, source=TraceSource.PYTORCH_SNAPSHOT)
    ledger = ledger_of(builder.segment(2 * MiB).alloc("a", 1 * MiB).build())
    assert (ledger.process_bytes, ledger.unexplained_bytes, list(ledger.card)) == (None, None, [])
    assert parts(ledger) == {"allocator": 2 * MiB, "allocator/live_requests": MiB, "allocator/gaps": MiB}
    assert finding(ledger, FindingCode.NO_PROCESS_FIGURE).source is TraceSource.PYTORCH_SNAPSHOT


def test_hidden_process_figure_gives_the_reason_instead_of_zero() -> None:
    reason = {"process_bytes": "process not listed (another pid namespace?)"}
    trace = TraceBuilder().segment(2 * MiB).alloc("a", 1).reading(used_bytes=5 * GiB, unavailable=reason).build()
    ledger = ledger_of(trace)
    assert ledger.process_bytes is None
    assert finding(ledger, FindingCode.NO_PROCESS_FIGURE).reason == reason["process_bytes"]
    (used,) = ledger.card
    assert (used.held_bytes, list(used.children)) == (5 * GiB, [])
    assert ledger.card_bytes == ledger.facts.capacity_bytes == 140 * GiB


def test_recording_without_nvml_gives_the_recorder_s_reason_and_lost_events_their_number() -> None:
    note = "There are no NVML readings: NVML: Driver Not Loaded."
    ledger = ledger_of(TraceBuilder(notes=(note,), records_lost=7).segment(2 * MiB).alloc("a", 1).build())
    assert finding(ledger, FindingCode.NO_PROCESS_FIGURE).reason == "NVML: Driver Not Loaded"
    assert finding(ledger, FindingCode.EVENTS_LOST).count == 7


def test_moment_before_cuda_has_no_figure_although_later_ones_have() -> None:
    reason = {"process_bytes": "process not listed: it has not started CUDA on this device"}
    builder = TraceBuilder().reading(used_bytes=0, unavailable=reason).wait(10**9).segment(2 * MiB).alloc("a", 1)
    assert ledger_of(lay(builder, 518, 2).build(), "start").process_bytes is None


def test_default_moment_is_the_peak_and_of_a_running_program_now() -> None:
    assert find_explanation(explained_trace()).moment == Peak()
    assert find_explanation(explained_trace(running=True)).moment == End()


def test_recording_without_an_allocator_says_so() -> None:
    builder = TraceBuilder(source=TraceSource.NONE).mark("start")
    ledger = ledger_of(read(builder, 5 * GiB).build())
    assert parts(ledger) == {"process_memory": 5 * GiB}
    assert (ledger.reserved_bytes, ledger.outside_bytes, ledger.unexplained_bytes) == (None, None, 0)
    assert (ledger.sums.measured_bytes, ledger.sums.difference_bytes) == (5 * GiB, 0)
    assert codes(ledger) == [FindingCode.ALLOCATOR_NOT_RECORDED, FindingCode.DRIVER_RESERVE]


def test_memory_of_a_process_without_a_recorded_allocator_is_told_by_marks_alone() -> None:
    trace = unrecorded_trace()
    found = find_explanation(trace)
    assert (found.moment, found.is_running) == (End(), False)
    assert parts(found.ledgers[0]) == {
        "process_memory": 800 * MiB,
        "process_memory/mark:start": 600 * MiB,
        "process_memory/mark:trained": 8400 * MiB,
        "process_memory/mark:saved": -8200 * MiB,
    }
    trained = ledger_of(trace, "mark:trained")
    assert (trained.process_bytes, parts(trained)["process_memory"]) == (9000 * MiB, 9000 * MiB)


def test_nothing_is_said_to_be_held_where_neither_nvml_nor_an_allocator_was_recorded() -> None:
    ledger = ledger_of(TraceBuilder(source=TraceSource.NONE).mark("start").build())
    assert (ledger.process_bytes, ledger.reserved_bytes, list(ledger.components)) == (None, None, [])
    assert codes(ledger) == [FindingCode.NO_PROCESS_FIGURE, FindingCode.ALLOCATOR_NOT_RECORDED]


@pytest.mark.parametrize(
    ("reason", "blocks", "expected"),
    [
        ("a call that first asked for its result", ("result", "workspace"), 32 * MiB),
        ("a block of these bytes alone", ("workspace",), 0),
        ("one that is freed again", ("result", "workspace", "free"), 0),
        ("a second one of the same thread and stream", ("result", "workspace", "result", "workspace"), 32 * MiB),
    ],
)
def test_workspace_is_told_by_bytes_call_and_life(reason: str, blocks: tuple[str, ...], expected: int) -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(200 * MiB).mark("start")
    lay(builder, 518, 200)
    for number, name in enumerate(blocks):
        if name == "free":
            builder.free(f"workspace {number - 1}")
        else:
            stack = LINEAR if name == "workspace" or len(blocks) > 1 else [(TRAIN, 40, "weights")]
            builder.alloc(f"{name} {number}", 32 * MiB if name == "workspace" else 3 * MiB, stack=stack)
    assert (
        parts(ledger_of(builder.build(), "event:3" if "free" in blocks else "end")).get(
            "allocator/cublas_workspaces", 0
        )
        == expected
    ), reason


def test_workspace_is_told_by_the_function_that_makes_it_whatever_its_bytes() -> None:
    stack = [
        ("??", 0, "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)"),
        ("??", 0, "at::cuda::setWorkspaceForHandle(cublasContext*, c10::cuda::CUDAStream)"),
        (TRAIN, 12, "main"),
    ]
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB).alloc("a", 7 * MiB, stack=stack)
    builder.alloc("b", 3 * MiB, stack=[("??", 0, "at::detail::empty_cuda()"), (TRAIN, 12, "main")])
    assert parts(ledger_of(builder.build()))["allocator/cublas_workspaces"] == 7 * MiB


def test_workspace_of_autograd_s_thread_is_the_only_block_of_its_bytes_there() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(200 * MiB).on(thread="pt_autograd_0").segment(200 * MiB)
    builder.alloc("gradient", 5 * MiB).alloc("workspace", 32 * MiB)
    assert parts(ledger_of(builder.build()))["allocator/cublas_workspaces"] == 32 * MiB
    builder.alloc("gradient of as many bytes", 32 * MiB)
    assert "allocator/cublas_workspaces" not in parts(ledger_of(builder.build()))


@pytest.mark.parametrize("name", NAMES)
def test_ledger_of_a_real_recording_closes_at_every_mark(name: str) -> None:
    trace = open_trace(SAMPLES / f"{name}.gpumem")
    assert len(trace.marks) >= 6
    for mark in trace.marks:
        moment = f"mark:{mark.name}" if mark.name else f"step:{mark.step}"
        ledger = ledger_of(trace, moment)
        assert ledger.process_bytes is not None
        assert ledger.sums.sum_bytes == ledger.process_bytes
        assert ledger.components[0].held_bytes == 518 * MiB
        assert ledger.reserved_bytes == next(
            one.held_bytes for one in ledger.components if one.name is ComponentName.ALLOCATOR
        )


def test_nine_steps_show_the_context_and_the_first_kernels() -> None:
    trace = open_trace(SAMPLES / "nine_steps.gpumem")
    started = ledger_of(trace, "mark:cuda started")
    assert (started.process_bytes, parts(started)) == (
        518 * MiB,
        {"cuda_context": 518 * MiB, "gpumem": 0, "allocator": 0},
    )
    for mark, process_mib, reserved_mib in (
        ("1 a on the GPU", 1636, 1026),
        ("3 b to the CPU", 2660, 2050),
        ("5 c on the GPU again", 3684, 3074),
        ("9 e to the GPU", 3684, 3074),
    ):
        ledger = ledger_of(trace, f"mark:{mark}")
        found = parts(ledger)
        assert (ledger.process_bytes, found["allocator"]) == (process_mib * MiB, reserved_mib * MiB)
        assert (found["cuda_context"], found["outside_allocator/mark:tiny tensor"]) == (518 * MiB, 92 * MiB)
        assert ledger.unexplained_bytes == 0


def test_out_of_memory_leaves_nothing_to_release_and_names_who_pins_the_gaps() -> None:
    ledger = ledger_of(open_trace(SAMPLES / "out_of_memory.gpumem"), "oom")
    assert finding(ledger, FindingCode.EMPTY_CACHE).held_bytes == 0
    pinned = finding(ledger, FindingCode.GAPS_PINNED)
    assert (pinned.held_bytes, pinned.count) == (334 * MiB, 15)
    assert [site.function for one in pinned.pinned[:2] if (site := one.largest_site)] == ["serve", "encode"]
    assert parts(ledger)["outside_allocator"] == 158 * MiB


def test_missing_readings_of_one_device_are_the_reason_there_alone() -> None:
    notes = ("NVML is mentioned.", "There are no NVML readings of device 1: NVML lists no device of UUID MIG-b.")
    builder = TraceBuilder(block_bytes_known=True, notes=notes).segment(20 * MiB).alloc("a", MiB)
    builder.on(device=1).segment(20 * MiB).alloc("b", MiB)
    trace = builder.build()
    reasons = [
        finding.reason
        for ledger in sorted(find_explanation(trace, AtEvent(3)).ledgers, key=lambda one: one.facts.device)
        for finding in ledger.findings
        if finding.code is FindingCode.NO_PROCESS_FIGURE
    ]
    assert reasons == [None, "NVML lists no device of UUID MIG-b"]
