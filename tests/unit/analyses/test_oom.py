"""Why memory ran out: the verdict on errors in every shape, and its arithmetic."""

from __future__ import annotations

import pytest

from gpumem.analyses.oom import explain_log
from gpumem.analyses.oom_rule import OomVerdict, Verdict
from gpumem.importers.oom_log import read_oom_text
from oom_messages import classic, modern
from trace_builder import MiB

HUNDREDTH_GIB = 10737419 // 2 + 1  # half a hundredth of a GiB, rounded up


def verdict_on(text: str) -> OomVerdict:
    (message,) = explain_log(read_oom_text(text)).messages
    return message.verdict


CASES: dict[str, tuple[str, Verdict, float | None]] = {
    # Reported in public, in their figures: MiB that are missing where the verdict is capacity or outside.
    "vllm 7721: the hint is wrong": (
        modern(
            "16.00 GiB", of="44.53 GiB", free="187.94 MiB", process="44.34 GiB", used="43.67 GiB", idle="335.07 MiB"
        ),
        Verdict.CAPACITY,
        16384 - 187.94 - 335.07,
    ),
    "kaito 976: the reserve would do": (
        modern("546.00 MiB", of="15.77 GiB", free="514.19 MiB", used="14.10 GiB", idle="736.86 MiB", pools="46.00 MiB"),
        Verdict.FRAGMENTATION,
        None,
    ),
    "pytorch 111363: a fraction that is not named": (
        modern(
            "64.00 MiB", of="79.15 GiB", free="38.09 GiB", process="41.06 GiB", used="39.10 GiB", idle="427.46 MiB",
            release="2.1",
        ),
        Verdict.LIMIT,
        None,
    ),
    "iPASSR 9: more allocated than the card has": (
        classic("20.00 MiB", of="8.00 GiB", used="17.20 GiB", free="0 bytes", reserved="17.53 GiB"),
        Verdict.SPILL,
        None,
    ),
    "meshgen 7: more allocated than the card has": (
        modern("1.50 GiB", of="8.00 GiB", free="0 bytes", used="13.98 GiB", idle="190.00 MiB", release="2.3"),
        Verdict.SPILL,
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_verdict_is_right(name: str) -> None:
    text, verdict, missing_mib = CASES[name]
    found = verdict_on(text)
    assert found.verdict is verdict
    assert found.also_possible == ()
    if missing_mib is None:
        assert found.short is None
    else:
        assert found.short is not None
        assert found.short.byte_count / MiB == pytest.approx(missing_mib, abs=0.01)
