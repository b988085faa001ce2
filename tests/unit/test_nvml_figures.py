"""Which listed process counts where, and by which rule the driver's reserve is in its figure of used memory."""

from __future__ import annotations

import pytest

from gpumem.nvml_figures import (
    NOT_AVAILABLE,
    Part,
    RawFigures,
    RawProcess,
    Unavailable,
    find_parts,
    find_reserve_rule,
    measure_processes,
)

OWN = frozenset({100, 4100})


def figures(*memory: int, processes: tuple[RawProcess, ...] = (), memory_code: int = 0) -> RawFigures:
    total, used, free, reserved = memory or (1000, 300, 600, 100)
    return RawFigures(memory_code, total, used, free, reserved, (0, 0, 0), processes)


def test_process_in_two_lists_counts_where_its_figure_is_known_last() -> None:
    rows = [(100, 5, 0), (7, 9, 0), (8, NOT_AVAILABLE, 0), (7, 9, 1), (100, NOT_AVAILABLE, 2), (8, 3, 2)]
    raw = figures(processes=tuple(RawProcess(*row) for row in rows))
    assert find_parts(raw, OWN) == [Part.OWN, Part.NONE, Part.NONE, Part.OTHERS, Part.NONE, Part.OTHERS]


def test_process_under_one_of_its_names_is_it_and_none_of_several_is() -> None:
    raw = figures(processes=(RawProcess(4100, 5, 0), RawProcess(7, 1, 0)))
    assert find_parts(raw, OWN) == [Part.OWN, Part.OTHERS]
    raw = figures(processes=(RawProcess(4100, 5, 0), RawProcess(100, 6, 0), RawProcess(7, 1, 0)))
    assert find_parts(raw, OWN) == [Part.NONE, Part.NONE, Part.OTHERS]


def test_figures_of_two_processes_that_may_both_be_this_one_are_nobody_s() -> None:
    found = measure_processes({4100: 5, 100: 6, 7: 1}, OWN, own_expected=True)
    unsure = Unavailable("several processes listed may be this one, by its pids in several namespaces")
    assert (found.process_bytes, found.other_processes_bytes) == (unsure, unsure)
    assert measure_processes({4100: 5, 7: 1}, OWN, own_expected=True).process_bytes == 5


@pytest.mark.parametrize(
    ("memory", "subtracted", "lasting", "not_lasting"),
    [
        # total, used, free, reserved; used and free of readings to which the rule extends or not
        ((1000, 300, 600, 100), 0, [(0, 900), (899, 1), (350, 600)], [(380, 600)]),
        ((1000, 400, 600, 100), 100, [(100, 900), (1000, 0), (351, 600)], [(350, 600), (99, 901)]),
        ((1000, 400, 600, 0), 0, [(0, 1000), (300, 600)], []),
        ((1000, 40, 960, 100), 0, [], [(40, 960), (400, 600)]),
    ],
    ids=["beside", "inside", "none", "unclear"],
)
def test_rule_of_the_reserve_holds_within_its_bounds(
    memory: tuple[int, int, int, int],
    subtracted: int,
    lasting: list[tuple[int, int]],
    not_lasting: list[tuple[int, int]],
) -> None:
    rule = find_reserve_rule(figures(*memory))
    assert rule is not None
    assert rule.subtracted_bytes == subtracted

    def holds(used: int, free: int) -> bool:
        rest = memory[0] - free - used
        return used >= rule.used_bytes_least and rule.rest_bytes_least <= rest <= rule.rest_bytes_most

    assert [holds(*figures) for figures in lasting] == [True] * len(lasting)
    assert [holds(*figures) for figures in not_lasting] == [False] * len(not_lasting)


def test_no_rule_lasts_without_all_figures() -> None:
    assert find_reserve_rule(figures(1000, NOT_AVAILABLE, 600, 100)) is None
    assert find_reserve_rule(figures(memory_code=3)) is None
