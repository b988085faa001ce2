"""An error printed with two decimals, read back: the exact figures' verdict is among those that its rounding allows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem.analyses.oom import explain_log, find_oom_verdict
from gpumem.analyses.oom_facts import OomFacts
from gpumem.analyses.oom_rule import segment_bytes_of
from gpumem.importers.oom_log import read_oom_text
from gpumem.trace.oom_message import Figure, OomOrigin
from oom_messages import classic, modern
from trace_builder import GiB, KiB, MiB


def printed(byte_count: int) -> str:
    """A byte count as PyTorch prints it."""
    for unit, factor in (("bytes", 1), ("KiB", KiB), ("MiB", MiB)):
        if byte_count <= 1024 * factor:
            return f"{byte_count} bytes" if factor == 1 else f"{byte_count / factor:.2f} {unit}"
    return f"{byte_count / GiB:.2f} GiB"


requests = st.one_of(
    st.integers(1, 2 * MiB), st.integers(MiB, 64 * MiB), st.integers(64 * MiB, 40 * GiB), st.just(10 * MiB)
)
cards = st.sampled_from([8 * GiB, 16 * GiB - 300 * MiB, 24 * GiB, 80 * GiB - 871_000_000, 143155 * MiB])
shares = st.floats(0, 1, allow_nan=False)


@st.composite
def exact_facts(draw: st.DrawFn) -> OomFacts:
    """A card divided in blocks of 512 bytes; what was asked for is often just as much as there is."""
    card = draw(cards)

    def part(rest: int) -> int:
        return int(draw(shares) * rest) // 512 * 512

    free = part(card // 4)
    reserved = part(card - free)
    idle = part(reserved)
    private = part(reserved - idle) if draw(st.booleans()) else 0
    asked = segment_bytes_of(draw(st.one_of(requests, st.sampled_from([free, free + idle, free + idle + private]))))
    limit = reserved + part(2 * asked) if draw(st.booleans()) else None
    process = reserved + part(card - free - reserved) if draw(st.booleans()) else None
    return OomFacts(
        OomOrigin.TORCH,
        asked=Figure(asked),
        free=Figure(free),
        card=Figure(card),
        allocated=Figure(reserved - idle - private),
        idle=Figure(idle),
        private_idle=Figure(private) if private else None,
        limit=None if limit is None else Figure(limit),
        process=None if process is None else Figure(process),
    )


def text_of(figure: Figure | None) -> str | None:
    return None if figure is None else printed(figure.byte_count)


def shown(figure: Figure | None) -> str:
    assert figure is not None
    return printed(figure.byte_count)


@settings(max_examples=400, deadline=None)
@given(exact_facts())
def test_verdict_of_the_exact_figures_is_among_those_that_rounding_allows(facts: OomFacts) -> None:
    assert facts.allocated is not None
    used = facts.allocated if facts.private_idle is None else facts.allocated + facts.private_idle
    text = modern(
        shown(facts.asked), of=shown(facts.card), free=shown(facts.free), used=shown(used), idle=shown(facts.idle),
        process=text_of(facts.process), allowed=text_of(facts.limit), pools=text_of(facts.private_idle),
    )  # fmt: skip
    (message,) = explain_log(read_oom_text(text)).messages
    exact, read = find_oom_verdict(facts), message.verdict
    assert exact.also_possible == ()
    assert exact.verdict in (read.verdict, *read.also_possible)
    for one, other in ((exact.within_reach, read.within_reach), (exact.outside, read.outside)):
        if exact.verdict is read.verdict:
            assert one is not None
            assert other is not None
            assert other.low <= one.byte_count <= other.high


@settings(max_examples=200, deadline=None)
@given(exact_facts())
def test_figures_of_the_classic_shape_lie_within_their_rounding(facts: OomFacts) -> None:
    assert facts.allocated is not None
    assert facts.idle is not None
    text = classic(
        shown(facts.asked), of=shown(facts.card), used=shown(facts.allocated), free=shown(facts.free),
        reserved=shown(facts.allocated + facts.idle), allowed=text_of(facts.limit),
    )  # fmt: skip
    (message,) = explain_log(read_oom_text(text)).messages
    read = message.verdict.facts
    for exact, figure in (
        (facts.asked, read.asked),
        (facts.free, read.free),
        (facts.card, read.card),
        (facts.allocated, read.allocated),
        (facts.idle, read.idle),
        (facts.limit, read.limit),
    ):
        if exact is None:
            assert figure is None
        else:
            assert figure is not None
            assert figure.low <= exact.byte_count <= figure.high


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 400))
def test_whatever_surrounds_an_error_it_is_read_or_nothing_breaks(before: bytes, after: bytes, cut: int) -> None:
    error = modern("2.00 MiB", of="8.00 GiB", free="0 bytes", used="7.00 GiB", idle="1.00 MiB")
    around = (before + b"\n", b"\n" + after)
    log = read_oom_text((around[0] + error.encode() + around[1]).decode("utf-8", "surrogateescape"))
    assert Figure(2 * MiB) in [found.message.asked for found in log.messages]
    cut_off = (around[0] + error[: max(80, len(error) - cut)].encode()).decode("utf-8", "surrogateescape")
    assert explain_log(read_oom_text(cut_off)).messages
