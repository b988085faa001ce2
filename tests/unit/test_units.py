"""Bytes, durations and shares as text, and back."""

from __future__ import annotations

import pytest

from gpumem.errors import UsageError
from gpumem.units import (
    GIB,
    MIB,
    TIB,
    format_bytes,
    format_bytes_apart,
    format_bytes_delta,
    format_duration,
    format_share,
    format_ticks,
    parse_bytes,
    parse_capacity,
)


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (-2 * MIB, "-2.00 MiB"),
        (1 << 40, "1.00 TiB"),
        (MIB - 1, "1.00 MiB"),
        (GIB - 1, "1.00 GiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_rounds_to_one_or_more(byte_count: int, text: str) -> None:
    assert format_bytes(byte_count) == text


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        (1216 * MIB, 1218 * MIB, ("1216.00 MiB", "1218.00 MiB")),
        (GIB, GIB + 1, ("1073741824 B", "1073741825 B")),
        (GIB, GIB, ("1.00 GiB", "1.00 GiB")),
        (GIB, 512 * MIB, ("1.00 GiB", "512.00 MiB")),
        (4 * TIB, 4 * TIB + MIB, ("4194304.00 MiB", "4194305.00 MiB")),
        (0, 1, ("0 B", "1 B")),
    ],
)
def test_two_sizes_that_differ_never_read_the_same(first: int, second: int, texts: tuple[str, str]) -> None:
    assert format_bytes_apart(first, second) == texts
    assert format_bytes_apart(second, first) == texts[::-1]


def test_delta_always_carries_its_sign() -> None:
    assert [format_bytes_delta(n) for n in (MIB, -MIB, 0)] == ["+1.00 MiB", "-1.00 MiB", "0 B"]


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [
        ("24GiB", 24 * GIB),
        ("24 g", 24 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("4000000000", 4_000_000_000),
        ("2GB", 2 * 10**9),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, byte_count: int) -> None:
    assert parse_bytes(text) == byte_count


@pytest.mark.parametrize(
    "text", ["1048577TiB", "9" * 40, "9" * 5000 + "GiB", "9" * 400 + ".5GiB", "1152921504606846977"]
)
def test_size_that_no_memory_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is more than 1 EiB, which no memory is"):
        parse_bytes(text)
    assert parse_bytes("1048576TiB") == 1 << 60


@pytest.mark.parametrize("text", ["", "GiB", "-1", "12 XB", "1..5G", "nan"])
def test_what_is_no_size_is_refused_with_the_text_in_the_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (5, "5 ns"),
        (1_500, "1.50 us"),
        (8_200_000_000, "8.20 s"),
        (8_290_000_000, "8.29 s"),
        (300_000_000, "300 ms"),
        (12_500_000_000, "12.5 s"),
        (999_600_000, "1.00 s"),
        (125 * 10**9, "2 min 05 s"),
        (3_660 * 10**9, "1 h 01 min"),
        (59_999_999_999, "1 min 00 s"),
    ],
)
def test_durations_are_written_as_people_read_them(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


def test_marks_of_an_axis_have_no_zeros_at_the_end() -> None:
    marks = [format_duration(time_ns, is_round=True) for time_ns in (2_500_000_000, 10**9, 20_000_000, 100_000)]
    assert marks == ["2.5 s", "1 s", "20 ms", "100 us"]


def test_marks_of_an_axis_never_read_the_same() -> None:
    assert format_ticks([0, 50_000_000, 100_000_000]) == ["0 s", "50 ms", "100 ms"]
    assert format_ticks([89_500_000, 89_550_000, 89_600_000]) == ["89.5 ms", "89.55 ms", "89.6 ms"]
    assert format_ticks([125_200_000_000, 125_400_000_000]) == ["125.2 s", "125.4 s"]
    assert format_ticks([]) == []


def test_share_of_nothing_is_a_dash() -> None:
    assert (format_share(1, 8), format_share(1, 0)) == ("12.5 %", "-")


def test_a_card_without_memory_is_refused() -> None:
    assert parse_capacity("2GiB") == 2 << 30
    with pytest.raises(UsageError, match=r"'0 GiB' leaves no memory at all"):
        parse_capacity("0 GiB")
