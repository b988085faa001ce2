"""A long quiet time before memory moves is left out of the picture, and nothing else."""

from __future__ import annotations

import numpy as np

from gpumem.analyses.beginning import find_beginning_ns


def beginning(levels: dict[int, int], *, reserved: dict[int, int] | None = None, noted: tuple[int, ...] = ()) -> int:
    """Of a trace of 1000 ns with these levels from these times on."""
    reserved = reserved or {}
    times = sorted({0, *levels, *reserved})
    curves = [
        [max((v for t, v in curve.items() if t == time), default=0) for time in times] for curve in (levels, reserved)
    ]
    columns = [np.array(curve, np.int64) for curve in curves]
    return find_beginning_ns(np.array(times, np.int64), columns, noted, duration_ns=1000)


def test_quiet_time_is_left_out_but_for_a_margin() -> None:
    assert beginning({100: 199, 840: 200, 900: 1000}) == 840 - 160 // 16


def test_a_quiet_time_of_less_than_a_third_stays() -> None:
    assert beginning({333: 1000}) == 0
    assert beginning({334: 1000}) == 334 - 666 // 16


def test_steady_growth_is_drawn_whole() -> None:
    assert beginning({time: time for time in range(0, 1001, 10)}) == 0


def test_reserved_bytes_count_too() -> None:
    assert beginning({900: 1000}, reserved={500: 2000}) == 500 - 500 // 16


def test_nothing_that_was_noted_is_left_out() -> None:
    assert beginning({900: 1000}, noted=(600, 950)) == 600 - 400 // 16
    assert beginning({900: 1000}, noted=(10,)) == 0


def test_curves_without_bytes_and_without_time_are_drawn_whole() -> None:
    assert beginning({}) == 0
    assert find_beginning_ns(np.zeros(2, np.int64), [np.array([0, 5])], (), duration_ns=0) == 0
    assert find_beginning_ns(np.zeros(0, np.int64), [np.zeros(0, np.int64)], (), duration_ns=7) == 0
