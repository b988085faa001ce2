"""Why memory ran out: the verdict on errors in every shape, and its arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.analyses.oom import explain_log, find_oom_verdict
from gpumem.analyses.oom_facts import OomCode, OomFacts, Verdict
from gpumem.analyses.oom_rule import segment_bytes_of
from gpumem.importers.oom_log import read_oom_text
from gpumem.render.oom_advice import finding_text
from gpumem.render.oom_words import verdict_text
from gpumem.trace.oom_message import Figure, OomOrigin
from judged_errors import (
    CASES,
    FRAGMENTATION,
    LIMIT,
    OUTSIDE,
    SPILL,
    UNKNOWN,
    G,
    codes_of,
    verdict_on,
)
from oom_messages import classic, modern
from trace_builder import GiB, KiB, MiB


@pytest.mark.parametrize("name", list(CASES))
def test_verdict_and_its_arithmetic_are_right(name: str) -> None:
    text, verdict, together_mib, missing_mib = CASES[name]
    found = verdict_on(text)
    assert found.verdict is verdict
    assert found.also_possible == ()
    for figure, mib in ((found.within_reach, together_mib), (found.short, missing_mib)):
        if mib is None:
            assert figure is None or (figure is found.within_reach and verdict in (SPILL, UNKNOWN))
        else:
            assert figure is not None
            assert figure.byte_count / MiB == pytest.approx(mib, abs=0.01)


def test_figures_are_intervals_of_what_two_decimals_leave_open() -> None:
    facts = verdict_on(CASES["vllm 7721"][0]).facts
    assert facts.free == Figure(round(187.94 * MiB), 5243)
    assert facts.card == Figure(round(44.53 * GiB), 5368710)
    assert facts.asked == Figure(16 * GiB, 5368710)
    assert verdict_on(CASES["kaito 976"][0]).facts.asked == Figure(546 * MiB, 0)
    for printed, rounding_bytes in (("1024.00 MiB", 0), ("1.00 GiB", 5368710)):
        text = modern(printed, of="44.53 GiB", free="187.94 MiB", used="43.67 GiB", idle="335.07 MiB")
        assert verdict_on(text).facts.asked == Figure(1 * GiB, rounding_bytes)


def test_blocks_idle_in_private_pools_are_not_in_use() -> None:
    facts = verdict_on(CASES["2.4, private pools"][0]).facts
    assert facts.allocated is not None
    assert facts.reserved is not None
    assert facts.allocated.byte_count / MiB == pytest.approx((38.10 - 6.20) * G, abs=0.01)
    assert facts.reserved.byte_count / MiB == pytest.approx(38.10 * G + 412, abs=0.01)


def test_verdict_that_rounding_leaves_open_says_so() -> None:
    found = verdict_on(modern("3.00 GiB", of="23.65 GiB", free="1.00 GiB", used="18.00 GiB", idle="2.00 GiB"))
    assert found.verdict is FRAGMENTATION
    assert found.also_possible == (OUTSIDE,)
    assert OomCode.WITHIN_ROUNDING in codes_of(found)
    less = verdict_on(modern("3.00 GiB", of="23.65 GiB", free="1.02 GiB", used="18.00 GiB", idle="2.00 GiB"))
    assert less.also_possible == ()


def test_open_comparison_that_changes_nothing_leaves_the_verdict_decided() -> None:
    found = verdict_on(CASES["2.9, AMD, a limit"][0])
    assert found.facts.limit is not None
    assert found.facts.reserved is not None
    assert (
        abs(found.facts.reserved.byte_count + 2 * MiB - found.facts.limit.byte_count) < found.facts.limit.rounding_bytes
    )
    assert (found.verdict, found.also_possible) == (LIMIT, ())


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("2.00 MiB", 1, 1 * MiB),
        ("20.00 MiB", 1 * MiB + 1, 10 * MiB - 1),
        ("10.00 MiB", 8 * MiB + 1, 10 * MiB),
        ("22.00 MiB", 20 * MiB + 1, 22 * MiB),
        ("546.00 MiB", 544 * MiB + 1, 546 * MiB),
        ("1024.00 MiB", 1022 * MiB + 1, 1024 * MiB),
        ("16.00 GiB", 16 * GiB - 5368710 - 2 * MiB + 1, 16 * GiB + 5368710),
    ],
)
def test_what_was_asked_for_is_a_segment_not_the_tensor(asked: str, least: int, most: int) -> None:
    found = verdict_on(modern(asked, of="23.65 GiB", free="0 bytes", used="23.00 GiB", idle="1.00 MiB"))
    assert found.request_range == (least, most)


@pytest.mark.parametrize("request_bytes", [1, 512, MiB, MiB + 512, 10 * MiB - 512, 10 * MiB, 10 * MiB + 512, 3 * GiB])
def test_segment_that_a_request_needs_lies_in_the_range_told_from_it(request_bytes: int) -> None:
    asked = Figure(segment_bytes_of(request_bytes))
    span = find_oom_verdict(OomFacts(OomOrigin.TORCH, asked=asked, free=Figure(0), idle=Figure(0))).request_range
    assert span is not None
    assert span[0] <= request_bytes <= span[1]


def test_request_that_was_printed_exactly_is_no_segment() -> None:
    assert verdict_on(CASES["cudaMallocAsync, full"][0]).request_range is None
    odd = modern("721.15 MiB", of="23.65 GiB", free="0 bytes", used="23.00 GiB", idle="0 bytes")
    assert verdict_on(odd).request_range is None


def test_fraction_that_is_not_named_is_told_from_where_it_refused() -> None:
    found = verdict_on(CASES["pytorch 111363"][0])
    assert found.implied_fraction == 0.5
    assert OomCode.LIMIT_NOT_NAMED in codes_of(found)
    assert verdict_on(CASES["2.3, AMD, most of the card free"][0]).implied_fraction is None


def test_limit_on_a_full_card_is_no_matter_of_the_limit_alone() -> None:
    found = verdict_on(CASES["2.9, a limit that joined idle blocks would break too"][0])
    first, *others = found.findings
    assert first.code is OomCode.NEED_LESS
    assert first.byte_count == pytest.approx((7.00 + 0.5 + 2.00 - 8.00) * GiB, abs=MiB)
    (raising,) = (one for one in others if one.code is OomCode.RAISE_LIMIT)
    assert finding_text(first, found).startswith("Need 1.50 GiB less: ")
    assert finding_text(raising, found).endswith(" That alone does not help: the card has only 1.60 GiB free.")
    ordinary = verdict_on(CASES["2.9, a limit"][0])
    assert ordinary.findings[0].code is OomCode.RAISE_LIMIT
    assert "alone" not in finding_text(ordinary.findings[0], ordinary)


def test_process_of_a_container_is_known_by_what_it_holds() -> None:
    found = verdict_on(CASES["2.3, in a container"][0])
    assert found.own_outside is not None
    assert found.own_outside.byte_count / MiB == pytest.approx((43.59 - 38.33 - 4.95) * G, abs=0.01)
    assert OomCode.PROCESS_IS_THIS_ONE in codes_of(found)
    assert OomCode.LOOK_AT_PROCESS not in codes_of(found)


def test_smallest_of_units_are_read() -> None:
    found = verdict_on(classic("2.00 MiB", of="1.96 GiB", used="1.24 GiB", free="576.00 KiB", reserved="1.25 GiB"))
    assert found.facts.free == Figure(576 * KiB, 6)


def test_document_names_every_verdict() -> None:
    text = (Path(__file__).parents[3] / "docs" / "out_of_memory.md").read_text(encoding="utf-8")
    assert all(f"| `{verdict.value}` |" in text for verdict in Verdict)


@pytest.mark.parametrize("text", ["CUDA out of memory.", "HIP out of memory", "ray: CUDA out of memory in generate()"])
def test_first_words_of_pytorch_s_error_are_not_a_library_s_and_lead_to_the_whole_of_it(text: str) -> None:
    found = explain_log(read_oom_text(text)).worst
    assert (found.found.message.origin, found.verdict.verdict) == (OomOrigin.TORCH, Verdict.UNKNOWN)
    assert [one.code for one in found.verdict.findings] == [
        OomCode.FIND_FIGURES,
        OomCode.WATCH_DRIVER,
        OomCode.RECORD,
    ]
    assert "PyTorch's error begins like this" in verdict_text(found.verdict)


def test_error_of_the_driver_is_not_said_to_be_a_library_s() -> None:
    found = explain_log(read_oom_text("RuntimeError: CUDA error: out of memory")).worst
    said = "Unknown: memory was refused, and this error gives no figures of the card."
    assert (found.found.message.origin, verdict_text(found.verdict)) == (OomOrigin.LIBRARY, said)
