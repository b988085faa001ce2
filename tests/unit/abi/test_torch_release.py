"""Which release a version's text names, and what holds since it."""

from __future__ import annotations

import pytest

from gpumem.abi.policy import NO_BEHAVIOUR, Behaviour
from gpumem.abi.torch_release import behaviour_of, has_come


@pytest.mark.parametrize(
    ("version", "is_there"),
    [
        ("2.12.0", False),
        ("2.13.0", True),
        ("2.13.0a0+git1234567", True),
        ("2.14 or newer", True),
        ("3.0", True),
        ("10.1.0+cu130", True),
        ("2.9.1+cu128", False),
        ("2", False),
        ("unknown", False),
        ("", False),
        (None, False),
        ("99999999999999999999.99999999999999999999", False),
    ],
)
def test_a_release_has_come_where_the_version_says_so(version: str | None, is_there: bool) -> None:
    assert has_come((2, 13), version) is is_there


def test_pytorch_of_2_11_and_before_needs_no_other_behaviour() -> None:
    assert behaviour_of("2.11.0+cu130") == behaviour_of("2.6.0") == behaviour_of(None) == NO_BEHAVIOUR
    assert behaviour_of("2.12.1") == Behaviour.OLDEST_BLOCK_FIRST
    assert Behaviour.OLDEST_SEGMENT_FIRST in behaviour_of("2.13.0")
