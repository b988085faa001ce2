"""What a comparison looks like, at 80 and 120 columns and in ASCII, and the sentence on top in every case."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpumem.analyses.diff import compare_traces
from gpumem.analyses.diff_findings import TraceDiff
from gpumem.analyses.diff_headline import check_growth
from gpumem.render.diff_words import headline_sentence
from gpumem.render.terminal.diff import render_diff
from gpumem.render.terminal.theme import Page
from gpumem.trace.model import Trace
from gpumem.trace.moments import AtStep, End, parse_moment
from gpumem.vocabulary import TraceSource
from narrow_page import NARROW, NARROWEST, PAGES, check_narrow, checked
from shown_traces import HOSTILE
from trace_builder import GiB, MiB, TraceBuilder
from training_trace import training_trace

Golden = Callable[[str, str], None]
Line = tuple[str, int, str]
PROJECT = "/home/anna/projects/nanogpt"
PACKAGES = "/opt/venv/lib/python3.11/site-packages/torch"


def stack(line: int, function: str = "main", *, bottom: int = 60, file: str = "train.py") -> list[Line]:
    return [(f"{PROJECT}/{file}", line, function), (f"{PROJECT}/train.py", bottom, "<module>")]


def trace_of(*blocks: tuple[Sequence[Line], int], segment_bytes: int = 16 * GiB, device: int = 0) -> Trace:
    """A trace that ends with these blocks allocated."""
    builder = TraceBuilder(block_bytes_known=True).on(device=device).segment(segment_bytes)
    for number, (frames, requested_bytes) in enumerate(blocks):
        builder.alloc(f"block {number}", requested_bytes, stack=frames)
    return builder.build()


def edited_script() -> TraceDiff:
    """A cache that grows from 1 to 4 GiB below lines that were added, other settings, a card of another name."""

    def run(caches: int, shift: int, **meta: str) -> Trace:
        builder = TraceBuilder(block_bytes_known=True, command_line=("train.py", "--epochs", "3"), **meta)
        builder.device_facts(name="NVIDIA A100" if shift else "NVIDIA H200").segment(16 * GiB)
        linear = (f"{PACKAGES}/nn/modules/linear.py", 98, "forward")
        for number in range(6):
            frames = [linear, (f"{PROJECT}/model/net.py", 12 + number % 2, "Net.forward")]
            builder.alloc(f"layer {number}", 80 * MiB, stack=frames + stack(30 + shift, bottom=60 + shift))
        for number in range(caches):
            builder.alloc(f"cache {number}", 1 * GiB, stack=stack(41 + shift, "build_cache", bottom=60 + shift))
        builder.alloc("logits", (20 + caches * 30) * MiB, stack=stack(50 + shift, bottom=60 + shift))
        return builder.alloc("gradient", 40 * MiB).segment(caches * GiB).build()

    return compare_traces(run(1, 0), run(4, 3, settings="expandable_segments:True,max_split_size_mb:128"))


def larger_batch() -> TraceDiff:
    """Activations of twice the size under unchanged parameters."""

    def run(batch: int) -> Trace:
        blocks = [(stack(20, "Model.__init__", file="model.py"), 300 * MiB)]
        blocks += [
            (stack(30 + number, "Model.forward", file="model.py"), (9 + number) * batch * MiB) for number in range(8)
        ]
        return trace_of(*blocks, (stack(44), 30 * MiB))

    return compare_traces(run(16), run(32))


def devices() -> TraceDiff:
    """Two devices, of which one side used one; lost events, pending blocks, blocks without a stack, requests only."""
    before = TraceBuilder(records_lost=3, history_truncated=True).segment(2 * GiB).alloc("a", 1 * GiB, stack=stack(10))
    before.blocks["a"].live = False
    before.alloc("b", 30 * MiB)
    after = TraceBuilder(block_bytes_known=True, running=True).segment(2 * GiB).alloc("a", 1 * GiB, stack=stack(10))
    after.on(device=1).segment(20 * MiB).alloc("c", 10 * MiB, stack=stack(20))
    return compare_traces(before.build(), after.build())


def hostile() -> TraceDiff:
    before = TraceBuilder(settings="[bold]\x1b[2J" + "y" * 200).segment(2 * MiB).alloc("a", 100, stack=HOSTILE)
    after = TraceBuilder(stacks_off="\x07[red]").segment(2 * MiB).alloc("a", 2000, stack=HOSTILE)
    return compare_traces(before.build(), after.build())


def moments() -> TraceDiff:
    trace = training_trace(block_bytes_known=True)
    return compare_traces(trace, trace, before_moment=AtStep(0), after_moment=AtStep(1))


def not_recorded() -> TraceDiff:
    """One side of which no allocator was recorded, and whose program was killed."""
    before = TraceBuilder(source=TraceSource.NONE, ended_by="signal 9").reading(process_bytes=600 * MiB)
    return compare_traces(before.build(), training_trace(steps=1))


DIFFS = {
    "edited": edited_script,
    "batch": larger_batch,
    "devices": devices,
    "hostile": hostile,
    "moments": moments,
    "not_recorded": not_recorded,
    "training": lambda: compare_traces(training_trace(steps=2), training_trace(layers=7)),
    "same": lambda: compare_traces(training_trace(), training_trace()),
    "empty": lambda: compare_traces(TraceBuilder().build(), TraceBuilder().build()),
}


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(DIFFS))
def test_diff_looks_like_its_golden(name: str, width: str, golden: Golden) -> None:
    diff = DIFFS[name]()
    growth = check_growth(diff, 100 * MiB) if name in ("edited", "devices", "same") else None
    golden(f"diff_{name}_{width}.txt", checked(render_diff(diff, PAGES[width], growth=growth), PAGES[width]))


@pytest.mark.parametrize("page", [NARROW, NARROWEST], ids=["60", "40"])
@pytest.mark.parametrize("name", list(DIFFS))
def test_diff_fits_narrow_pages_and_breaks_no_figure(name: str, page: Page) -> None:
    check_narrow(render_diff(DIFFS[name](), page), page)
    check_narrow(render_diff(DIFFS[name](), page, top=1, by_stack=True), page)


def test_figures_stand_below_their_label_where_a_page_is_too_narrow_for_both() -> None:
    lines = render_diff(DIFFS["training"](), NARROWEST).plain.splitlines()
    place = lines.index("reserved")
    assert lines[place + 1].split()[1::2] == ["GiB", "GiB", "MiB"]
    assert lines[place + 1].startswith("    ")


def test_stacks_are_shown_below_their_site(golden: Golden) -> None:
    text = render_diff(edited_script(), PAGES["80"], by_stack=True, top=2)
    golden("diff_by_stack_80.txt", checked(text, PAGES["80"]))


GREW = "train.py:41 build_cache holds 3.00 GiB more (1.00 → 4.00 GiB, 1 → 4 blocks)"
CACHE, STEP, LOSS = stack(41, "build_cache"), stack(50), stack(55)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ([], [], "Nothing is held, before or after."),
        ([(CACHE, 512)], [(CACHE, 512)], "Nothing changed: the same stack holds the same 512 B."),
        ([((), 512)] * 2, [((), 512)] * 2, "Nothing changed: the same 2 blocks hold the same 1.00 KiB."),
        (
            [(stack(41, bottom=60), 512)],
            [(stack(43, bottom=62), 512)],
            "Nothing changed but lines of code: the same stack holds the same 512 B.",
        ),
        (
            [(CACHE, GiB)],
            [(CACHE, GiB)] * 4,
            f"{GREW}; no other site changed.",
        ),
        (
            [(CACHE, GiB)],
            [*[(CACHE, GiB)] * 4, (STEP, 128 * MiB)],
            f"{GREW}: 96.0 % of the 3.12 GiB growth.",
        ),
        (
            [(STEP, 512 * MiB)],
            [(CACHE, 2 * GiB), (STEP, 512 * MiB)],
            "train.py:41 build_cache is new and holds 2.00 GiB in 1 block; no other site changed.",
        ),
        (
            [(CACHE, 2 * GiB), (STEP, 512 * MiB)],
            [(STEP, 256 * MiB)],
            (
                "train.py:41 build_cache holds nothing any more (2.00 GiB in 1 block before): 88.9 % of the 2.25 GiB "
                "decrease."
            ),
        ),
        (
            [(CACHE, GiB), (STEP, GiB)],
            [(CACHE, 4 * GiB), (STEP, 512 * MiB)],
            (
                "train.py:41 build_cache holds 3.00 GiB more (1.00 → 4.00 GiB, 1 block); all else holds 512.00 MiB "
                "less: 2.50 GiB more in all."
            ),
        ),
        (
            [(CACHE, GiB), (STEP, 2 * GiB)],
            [(CACHE, 2 * GiB), (STEP, GiB)],
            (
                "train.py:41 build_cache holds 1.00 GiB more (1.00 → 2.00 GiB, 1 block); all else holds 1.00 GiB "
                "less: the sum is the same."
            ),
        ),
        (
            [(CACHE, MiB)] * 4,
            [(CACHE, 4 * MiB)],
            "train.py:41 build_cache holds the same 4.00 MiB (4 → 1 block); no other site changed.",
        ),
        (
            [(CACHE, 100 * MiB), (STEP, 70 * MiB), (LOSS, 60 * MiB)],
            [(CACHE, 200 * MiB), (STEP, 140 * MiB), (LOSS, 120 * MiB)],
            (
                "3 sites hold 2.00 times what they held: +230.00 MiB, the whole change; the most is train.py:41 "
                "build_cache with +100.00 MiB (100.00 → 200.00 MiB, 1 block)."
            ),
        ),
        (
            [(CACHE, 100 * MiB), (STEP, 70 * MiB), (LOSS, 160 * MiB)],
            [(CACHE, 190 * MiB), (STEP, 150 * MiB), (LOSS, 110 * MiB)],
            (
                "2 sites hold 170.00 MiB more and 1 site holds 50.00 MiB less: 120.00 MiB more in all; the most is "
                "train.py:41 build_cache with +90.00 MiB (100.00 → 190.00 MiB, 1 block)."
            ),
        ),
        (
            [((), GiB)],
            [((), 2 * GiB)],
            "Memory without a Python stack holds 1.00 GiB more (1.00 → 2.00 GiB, 1 block); no other site changed.",
        ),
    ],
)
def test_sentence_on_top_says_what_matters(
    before: list[tuple[list[Line], int]], after: list[tuple[list[Line], int]], sentence: str
) -> None:
    assert headline_sentence(compare_traces(trace_of(*before), trace_of(*after))) == sentence


def test_sentence_says_that_changes_are_many_and_small() -> None:
    def run(extra: int) -> Trace:
        return trace_of(*[(stack(100 + n), (40 + extra * (n % 5 + 3)) * MiB) for n in range(40)])

    assert headline_sentence(compare_traces(run(0), run(1))).startswith(
        "Many small changes: 40 sites hold 200.00 MiB more; the most is train.py:104 main with +7.00 MiB"
    )


def test_sentence_says_that_two_programs_have_nothing_in_common() -> None:
    one = trace_of((stack(1, "f"), 40 * MiB), (stack(2, "g"), 40 * MiB))
    frames = [("/srv/other.py", 3, "h")], [("/srv/other.py", 4, "k")]
    sentence = headline_sentence(compare_traces(one, trace_of(*((frame, 50 * MiB) for frame in frames))))
    assert sentence.startswith(
        "No line of code holds memory in both: 2 sites hold 100.00 MiB more and 2 sites hold 80.00 MiB less: "
    )


def test_sentence_begins_with_reserved_where_that_changed_far_more() -> None:
    less = trace_of((CACHE, GiB), segment_bytes=2 * GiB)
    assert headline_sentence(compare_traces(trace_of((CACHE, GiB)), less)) == (
        "The same blocks are held, but the peak of reserved fell by 14.00 GiB (16.00 → 2.00 GiB)."
    )
    other = trace_of((CACHE, GiB + MiB), segment_bytes=2 * GiB)
    assert headline_sentence(compare_traces(trace_of((CACHE, GiB)), other)).startswith(
        "Peak of reserved fell by 14.00 GiB (16.00 → 2.00 GiB), far more than allocated did: train.py:41 "
    )


def test_sentence_says_that_nothing_is_held_where_reserved_alone_differs() -> None:
    builder = TraceBuilder(block_bytes_known=True).mark("begin").segment(4 * GiB).alloc("a", GiB, stack=CACHE)
    trace = builder.free("a").build()
    diff = compare_traces(trace, trace, before_moment=parse_moment("mark:begin"), after_moment=End())
    assert headline_sentence(diff).startswith(
        "Nothing is held, before or after, but reserved grew by 4.00 GiB (0 B → 4.00 GiB)."
    )


def test_sentence_names_the_peak_where_only_that_differs() -> None:
    builder = TraceBuilder(block_bytes_known=True).segment(4 * GiB).alloc("a", GiB, stack=CACHE)
    before = builder.build()
    after = builder.alloc("b", MiB).free("b").build()
    assert headline_sentence(compare_traces(before, after, before_moment=End(), after_moment=End())) == (
        "The same blocks are held, but the peak of allocated grew by 1.00 MiB (1024.00 → 1025.00 MiB)."
    )


def test_sentence_names_the_device_and_the_others() -> None:
    def run(first: int, second: int) -> Trace:
        builder = TraceBuilder(block_bytes_known=True).segment(4 * GiB).alloc("a", first, stack=CACHE)
        return builder.on(device=1).segment(4 * GiB).alloc("b", second, stack=CACHE).build()

    sentence = headline_sentence(compare_traces(run(MiB, MiB), run(2 * MiB, GiB)))
    assert sentence.startswith("Device 1: train.py:41 build_cache holds 1.00 GiB more (1.00 MiB → 1.00 GiB, 1 block)")
    assert sentence.endswith("; no other site changed. Device 0 changed too.")
