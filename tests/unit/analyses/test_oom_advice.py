"""What is advised after an out-of-memory error, and in which order."""

from __future__ import annotations

import pytest

from gpumem.analyses.oom import find_oom_verdict
from gpumem.analyses.oom_facts import OomCode, OomFacts
from gpumem.trace.oom_message import Figure, OomOrigin
from judged_errors import (
    CASES,
    FRAGMENTATION,
    codes_of,
    verdict_on,
)
from trace_builder import GiB, MiB


def test_other_processes_come_first_and_the_largest_of_them() -> None:
    found = verdict_on(CASES["2.3, two other processes"][0])
    first, second, *_ = found.findings
    assert (first.code, first.pid, first.byte_count) == (OomCode.LOOK_AT_PROCESS, 7, 12 * GiB)
    assert (second.code, second.pid) == (OomCode.LOOK_AT_PROCESS, 8)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("vllm 7721", OomCode.NEED_LESS),
        ("kaito 976", OomCode.SET_EXPANDABLE),
        ("pytorch 111363", OomCode.FIND_LIMIT),
        ("iPASSR 9", OomCode.NEED_LESS),
        ("EasyR1 9", OomCode.HELD_ELSEWHERE),
        ("1.4, in pieces", OomCode.SET_MAX_SPLIT),
        ("2.9, a limit", OomCode.RAISE_LIMIT),
        ("2.1, own libraries", OomCode.CUT_OWN_OUTSIDE),
        ("2.3, processes that are not listed", OomCode.FIND_HIDDEN_PROCESSES),
        ("2.4, private pools", OomCode.FREE_GRAPHS),
        ("2.1, refused with 42 MiB free", OomCode.LEAVE_ROOM),
        ("cuBLAS", OomCode.LEAVE_ROOM),
        ("CuPy, a limit", OomCode.RAISE_LIMIT),
        ("PyTorch, absurd", OomCode.IMPOSSIBLE_REQUEST),
        ("gpumem, absurd", OomCode.IMPOSSIBLE_REQUEST),
    ],
)
def test_most_useful_advice_comes_first(name: str, first: OomCode) -> None:
    assert codes_of(verdict_on(CASES[name][0]))[0] is first


def test_advice_names_the_bytes_it_turns_on() -> None:
    by_code = {finding.code: finding.byte_count for finding in verdict_on(CASES["kaito 976"][0]).findings}
    assert by_code[OomCode.SET_EXPANDABLE] == 546 * MiB - round(514.19 * MiB)
    spill = {finding.code: finding.byte_count for finding in verdict_on(CASES["iPASSR 9"][0]).findings}
    assert spill[OomCode.NEED_LESS] == round(17.53 * GiB) - 8 * GiB


def test_hint_of_the_error_is_contradicted_where_it_cannot_help() -> None:
    assert OomCode.SETTING_CANNOT_HELP in codes_of(verdict_on(CASES["vllm 7721"][0]))
    assert OomCode.SET_EXPANDABLE not in codes_of(verdict_on(CASES["vllm 7721"][0]))


@pytest.mark.parametrize(
    "line",
    [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        "export PYTORCH_ALLOC_CONF='garbage_collection_threshold:0.8,expandable_segments:True'",
        '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}',
        "INFO: setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "os.environ['PYTORCH_HIP_ALLOC_CONF'] = 'expandable_segments:True'",
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_setting_that_is_on_already_is_not_advised(line: str, is_before: bool) -> None:
    text = CASES["kaito 976"][0]
    found = verdict_on(f"{line}\n{text}\n" if is_before else f"{text}\n{line}\n")
    assert found.verdict is FRAGMENTATION
    assert codes_of(found)[0] is OomCode.EXPANDABLE_IS_ON
    assert OomCode.SET_EXPANDABLE not in codes_of(found)


@pytest.mark.parametrize(
    "line",
    [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
        "hint: try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "You may consider setting `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
        "is large try setting\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    ],
)
def test_setting_that_is_only_spoken_of_is_advised(line: str) -> None:
    assert codes_of(verdict_on(f"{line}\n{CASES['kaito 976'][0]}"))[0] is OomCode.SET_EXPANDABLE


def test_platform_without_expandable_segments_is_not_advised_to_use_them() -> None:
    warning = "UserWarning: expandable_segments not supported on this platform (Triggered internally at …)"
    found = verdict_on(f"{warning}\n{CASES['kaito 976'][0]}")
    assert codes_of(found)[:2] == [OomCode.EXPANDABLE_REFUSED, OomCode.SET_MAX_SPLIT]


def test_block_that_came_back_too_late_asks_for_another_try() -> None:
    facts = OomFacts(
        OomOrigin.TRACE, asked=Figure(20 * MiB), request=Figure(4 * MiB), free=Figure(0), idle=Figure(30 * MiB),
        allocated=Figure(GiB), largest_gap_bytes=4 * MiB,
    )  # fmt: skip
    assert codes_of(find_oom_verdict(facts))[0] is OomCode.RETRY


@pytest.mark.parametrize(
    "text",
    [
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "ResourceExhaustedError: OOM when allocating tensor with shape[9] on device:GPU:0 by allocator GPU_0_bfc",
    ],
)
def test_error_of_xla_gets_advice_on_xla_s_reserve_and_none_on_pytorch_s_settings(text: str) -> None:
    found = verdict_on(text)
    assert codes_of(found) == [
        OomCode.XLA_SHARE_CARD, OomCode.XLA_RAISE_SHARE, OomCode.NEED_LESS, OomCode.WATCH_DRIVER, OomCode.XLA_RESERVES,
    ]  # fmt: skip
