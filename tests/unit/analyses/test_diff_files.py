"""Files and lines of one recording found again in another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumem.analyses.diff_files import LineMap, Move, find_line_map
from gpumem.trace.model import Frame

TORCH = "lib/python3.11/site-packages/torch"


def lines_of(before: Sequence[int], after: Sequence[int]) -> Move | None:
    """How the lines of a script moved that was seen at these ones."""
    frames = ([Frame("/a/train.py", line, "main") for line in lines] for lines in (before, after))
    return find_line_map(*frames).moves.get("/a/train.py")


@pytest.mark.parametrize(
    ("before", "after", "move"),
    [
        ([10, 20, 60], [10, 20, 60], None),
        ([10, 20, 60], [13, 23, 63], Move(0, 3)),
        ([10, 20, 60], [10, 23, 63], Move(11, 3)),
        ([10, 20, 60], [10, 20, 65], Move(21, 5)),
        ([10, 23, 63], [10, 20, 60], Move(11, -3)),
        ([10, 11, 12, 60], [11, 12, 13, 61], Move(0, 1)),
        ([10, 21, 27, 32, 38, 50, 60], [10, 24, 30, 35, 41, 58, 68], Move(11, 3)),
        ([10, 20, 60], [10, 30, 60], None),
        ([10, 60], [10, 36, 60], None),
        ([10], [10, 36], None),
        ([10, 36], [10], None),
        ([20], [50], Move(0, 30)),
        ([10, 20, 30, 4_000_000_000], [10, 25, 35, 4_000_000_005], Move(11, 5)),
    ],
)
def test_place_and_shift_that_explain_most_lines_are_found(
    before: list[int], after: list[int], move: Move | None
) -> None:
    assert lines_of(before, after) == move


def test_lines_above_the_move_are_pinned_and_those_below_may_be_any() -> None:
    lines = LineMap({}, {"a.py": Move(11, 3)})

    def may_be(was: int, now: int, file: str = "a.py") -> bool:
        return lines.may_be(Frame(file, was, "f"), Frame(file, now, "f"))

    assert may_be(5, 5)
    assert not may_be(5, 8)
    assert not may_be(20, 10)
    assert may_be(20, 23)
    assert may_be(20, 29)
    assert may_be(9, 9, "b.py")
    assert not may_be(20, 23, "b.py")
    assert [lines.expected(Frame("a.py", line, "f")) for line in (5, 20)] == [5, 23]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (["/a/train.py"], ["/a/train.py"], {}),
        (["/a/x/train.py"], ["/b/x/train.py"], {"/a/x/train.py": "/b/x/train.py"}),
        (["C:\\a\\train.py"], ["/b/train.py"], {"C:\\a\\train.py": "/b/train.py"}),
        (["/a/p/net.py", "/a/q/net.py"], ["/b/q/net.py", "/b/p/net.py"],
         {"/a/p/net.py": "/b/p/net.py", "/a/q/net.py": "/b/q/net.py"}),
        ([f"/o/{TORCH}/nn.py"], ["/usr/lib/python3/dist-packages/torch/nn.py"],
         {f"/o/{TORCH}/nn.py": "/usr/lib/python3/dist-packages/torch/nn.py"}),
        (["/usr/lib/python3.11/random.py"], ["/opt/lib/python3.12/random.py"],
         {"/usr/lib/python3.11/random.py": "/opt/lib/python3.12/random.py"}),
        ([f"/o/{TORCH}/optim/sgd.py"], [f"/o/{TORCH}/optim/adamw.py"], {}),
        (["/a/train.py"], ["/a/train_v2.py"], {"/a/train.py": "/a/train_v2.py"}),
    ],
)  # fmt: skip
def test_files_are_found_by_path_by_its_end_and_by_their_functions(
    before: list[str], after: list[str], names: dict[str, str]
) -> None:
    frames = ([Frame(file, 1, "step") for file in files] for files in (before, after))
    assert find_line_map(*frames).later_names == names


def test_renamed_file_is_the_one_that_shares_most_functions() -> None:
    def frames(**functions: Sequence[str]) -> list[Frame]:
        return [Frame(f"/a/{file}.py", 1, name) for file, names in functions.items() for name in names]

    before = frames(model=["forward", "attend", "norm"], tools=["load"])
    after = frames(net=["forward", "attend", "norm", "mix"], other=["save", "walk"])
    assert find_line_map(before, after).later_names == {"/a/model.py": "/a/net.py"}
