"""What NVML read and when: growth outside the allocator, contexts in the making, readings amid segments."""

from __future__ import annotations

from explained_traces import (
    lay,
    read,
)
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.explain_findings import FindingCode
from gpumem.analyses.ledger_parts import ComponentName, Evidence
from gpumem.heap.instants import find_instant
from gpumem.trace.moments import parse_moment
from read_ledgers import codes, finding, ledger_of, parts
from trace_builder import GiB, MiB, TraceBuilder


def test_reading_at_another_event_is_compared_with_what_was_reserved_then() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).segment(20 * MiB).alloc("a", 15 * MiB).segment(2 * GiB).wait(10**9)
    trace = lay(builder, 518, 20 + 2048).build()
    ledger = ledger_of(trace, "event:2")
    found = parts(ledger)
    assert (found["allocator"], ledger.process_bytes) == (20 * MiB, 518 * MiB)
    assert found["reserved_change_at_reading"] == -20 * MiB
    assert ledger.unexplained_bytes == 0
    assert finding(ledger, FindingCode.CHANGE_AT_READING).held_bytes == -20 * MiB


def test_growth_seen_only_after_the_moment_is_the_rest() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).wait(10**9).segment(20 * MiB).alloc("a", 15 * MiB).mark("early").wait(10**6).mark("late")
    ledger = ledger_of(lay(builder, 600, 20).build(), "mark:early")
    assert ledger.process_bytes == 620 * MiB
    assert ledger.unexplained_bytes == 82 * MiB
    assert ledger.sums.sum_bytes == ledger.process_bytes
    assert finding(ledger, FindingCode.UNEXPLAINED).held_bytes == 82 * MiB


def test_segment_that_came_while_nvml_was_read_is_no_growth() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).segment(2 * MiB).alloc("a", 100)
    builder.wait(-900_000)  # the next event falls into the time that the reading takes
    lay(builder, 518, 2 + 20).wait(-900_000).segment(20 * MiB).wait(10**9)
    ledger = ledger_of(lay(builder, 518, 22).build())
    assert "outside_allocator" not in parts(ledger)
    during = ledger_of(builder.build(), "event:2")
    assert during.process_bytes == 540 * MiB
    assert parts(during)["reserved_change_at_reading"] == 20 * MiB
    assert during.unexplained_bytes == 0


def test_reading_amid_segments_that_fits_no_moment_of_them_is_no_evidence() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).segment(2 * MiB).alloc("a", 100)
    lay(builder, 518, 2 + 13).wait(-900_000).segment(20 * MiB).wait(10**9)
    trace = lay(builder, 518, 22).build()
    assert "outside_allocator" not in parts(ledger_of(trace))
    during = ledger_of(trace, "event:2")
    assert (during.process_bytes, during.unexplained_bytes) == (533 * MiB, 13 * MiB)
    assert during.sums.sum_bytes == during.process_bytes


def test_context_in_the_making_is_not_taken_for_the_context() -> None:
    builder = TraceBuilder(block_bytes_known=True)
    read(builder, 30 * MiB).wait(10**7).segment(2 * MiB).alloc("a", 100)
    ledger = ledger_of(lay(builder, 518, 2).build())
    assert parts(ledger)["cuda_context"] == 518 * MiB
    assert ledger.components[0].evidence is Evidence.DIFFERENCE


def test_context_in_the_making_after_a_mark_on_another_device_is_not_taken_for_the_context() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 100).mark("first device")
    reason = {"process_bytes": "process not listed: it has not started CUDA on this device"}
    builder.on(device=1).reading(used_bytes=0, unavailable=reason).wait(7 * 10**7)
    read(builder, 14 * MiB).wait(5 * 10**7).segment(96 * MiB).alloc("b", 96 * MiB)
    lay(builder, 518, 96).wait(10**6).mark("second device")
    ledger = ledger_of(lay(builder, 610, 96).build(), device=1)
    assert parts(ledger)["cuda_context"] == 518 * MiB
    assert parts(ledger)["outside_allocator/mark:second device"] == 92 * MiB


def test_growth_without_marks_is_one_line() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(2 * MiB).alloc("a", 100)
    lay(builder, 518, 2).wait(10**9).free("a").wait(10**9)
    ledger = ledger_of(lay(builder, 600, 2).build())
    (grown,) = [one for one in ledger.components if one.name is ComponentName.OUTSIDE_ALLOCATOR]
    assert (grown.held_bytes, list(grown.children)) == (82 * MiB, [])


def test_growth_after_the_last_mark_is_told_from_the_growth_before() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("start")
    lay(builder, 518, 0).segment(2 * MiB).alloc("a", 100).step()
    lay(builder, 610, 2).wait(10**9).free("a")
    found = parts(ledger_of(lay(builder, 608, 2).build()))
    assert found["outside_allocator/step:0"] == 92 * MiB
    assert found["outside_allocator/after step:0"] == -2 * MiB
    assert found["outside_allocator"] == 90 * MiB


def test_growth_by_marks_of_one_name_is_named_by_the_very_mark() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("loss")
    lay(builder, 518, 0).segment(2 * MiB).alloc("a", 100).mark("loss")
    lay(builder, 610, 2).mark("loss")
    trace = lay(builder, 670, 2).mark("loss").build()
    (grown,) = [one for one in ledger_of(trace).components if one.name is ComponentName.OUTSIDE_ALLOCATOR]
    named = [(one.moment, one.moment_event, one.held_bytes) for one in grown.children]
    assert named == [("mark:loss:2", 3, 92 * MiB), ("mark:loss:3", 4, 60 * MiB)]
    for name, event, _ in named:
        assert name is not None
        assert find_instant(trace, parse_moment(name)).event == event


def test_context_on_a_device_without_allocations_is_a_finding() -> None:
    builder = TraceBuilder().on(device=1).segment(2 * MiB).alloc("a", 100)
    lay(builder, 518, 2).on(device=0)
    trace = read(builder, 500 * MiB, others=2 * GiB).build()
    explanation = find_explanation(trace)
    assert [one.facts.device for one in explanation.ledgers] == [1, 0]
    idle = explanation.ledgers[1]
    assert finding(idle, FindingCode.IDLE_CONTEXT).held_bytes == 500 * MiB
    assert finding(idle, FindingCode.OTHER_PROCESSES).held_bytes == 2 * GiB
    assert FindingCode.IDLE_CONTEXT not in codes(explanation.ledgers[0])
