"""What is known of a refused request, and what is found about it: the types that every report of it shares.

Owns: the facts that a verdict needs, the kinds of verdicts and findings, the verdict itself. Must not know: the rule
(oom_rule.py), words (render/oom_words.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.trace.oom_message import Figure, OomOrigin, ProcessShare


class Verdict(Enum):
    """Why a request was refused."""

    CAPACITY = "capacity"
    """All that is free and idle together would not have been enough."""
    FRAGMENTATION = "fragmentation"
    """Enough bytes were free and idle, but not in one piece."""
    LIMIT = "limit"
    """A limit below the card, named or not: the card had the bytes."""
    OUTSIDE = "outside"
    """Other processes, or this one outside its allocator, hold what is missing."""
    PRIVATE_POOLS = "private_pools"
    """What is missing lies idle in the pools of CUDA graphs or a MemPool."""
    SPILL = "spill"
    """More is allocated than the card has: the driver lends host memory."""
    UNKNOWN = "unknown"


class OomCode(Enum):
    """What a finding is; the words stand in render/oom_words.py. Advice is in the order of these names."""

    # What was asked for
    SEGMENT_SMALL = "segment_small"
    SEGMENT_LARGE = "segment_large"
    SEGMENT_ROUNDED = "segment_rounded"
    WITHIN_ROUNDING = "within_rounding"
    # What is peculiar about the figures
    IMPOSSIBLE_REQUEST = "impossible_request"
    LARGER_THAN_CARD = "larger_than_card"
    SETTING_CANNOT_HELP = "setting_cannot_help"
    LIMIT_NOT_NAMED = "limit_not_named"
    PROCESS_IS_THIS_ONE = "process_is_this_one"
    HELD_ELSEWHERE = "held_elsewhere"
    FIGURES_CONTRADICT = "figures_contradict"
    MESSAGE_CUT = "message_cut"
    XLA_RESERVES = "xla_reserves"
    PAST_THE_ALLOCATOR = "past_the_allocator"
    LARGEST_GAP = "largest_gap"
    OTHER_STREAMS = "other_streams"
    ALSO_FRAGMENTED = "also_fragmented"
    # What to do
    SET_EXPANDABLE = "set_expandable"
    EXPANDABLE_IS_ON = "expandable_is_on"
    EXPANDABLE_REFUSED = "expandable_refused"
    SET_MAX_SPLIT = "set_max_split"
    TRY_REPLAY = "try_replay"
    RETRY = "retry"
    XLA_RAISE_SHARE = "xla_raise_share"
    XLA_SHARE_CARD = "xla_share_card"
    RAISE_LIMIT = "raise_limit"
    FIND_LIMIT = "find_limit"
    LOOK_AT_PROCESS = "look_at_process"
    FIND_HIDDEN_PROCESSES = "find_hidden_processes"
    CUT_OWN_OUTSIDE = "cut_own_outside"
    FREE_GRAPHS = "free_graphs"
    STOP_SPILLING = "stop_spilling"
    NEED_LESS = "need_less"
    LEAVE_ROOM = "leave_room"
    WATCH_DRIVER = "watch_driver"
    FIND_FIGURES = "find_figures"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class OomFacts:
    """What is known of a refused request and of the memory at that time; None where it is not known."""

    origin: OomOrigin
    asked: Figure | None = None
    """What the driver was asked for."""
    request: Figure | None = None
    """What the program asked for, where it is known beside that."""
    free: Figure | None = None
    card: Figure | None = None
    allocated: Figure | None = None
    """Blocks in use (and pending)."""
    idle: Figure | None = None
    """Held by the allocator's ordinary pools and not in use."""
    private_idle: Figure | None = None
    reserved: Figure | None = None
    limit: Figure | None = None
    process: Figure | None = None
    other_processes: Sequence[ProcessShare] = ()
    largest_gap_bytes: int | None = None
    """The largest idle block of the stream and pools that a request of this kind is served from."""
    other_streams_idle_bytes: int | None = None
    """Of what lies idle, in segments of other streams, which a request of this one cannot use."""
    has_max_split: bool = False
    """Whether max_split_size_mb keeps large blocks from smaller requests."""
    has_expandable: bool = False
    is_expandable_refused: bool = False
    is_expandable_unknown: bool = False
    """Whether this PyTorch is too old for expandable segments."""
    is_preemptive: bool = False


@dataclass(frozen=True, slots=True)
class OomFinding:
    """Something that follows; `byte_count` is the figure it turns on, `pid` the process it is about."""

    code: OomCode
    byte_count: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """The verdict, the sums it stands on and what follows, most useful first."""

    verdict: Verdict
    facts: OomFacts
    also_possible: Sequence[Verdict]
    """The other verdicts that the figures, rounded as they were printed, leave possible."""
    within_reach: Figure | None
    """Free and idle together, with what lies idle in private pools but where the rest would have been enough."""
    short: Figure | None
    """What is missing even then; None where nothing is or it is not known."""
    outside: Figure | None
    """What of the card is neither free nor this allocator's."""
    own_outside: Figure | None
    """Of that, this process's."""
    others_outside: Figure | None
    """The rest of that: other processes and the driver; None where the two are not told apart."""
    implied_limit: tuple[int, int] | None
    """The bytes from which and below which a limit lies that explains a refusal which names none."""
    implied_fraction: float | None
    """Of the card: the one round share between the two."""
    request_range: tuple[int, int] | None
    """Least and greatest bytes that the program may have asked for."""
    findings: Sequence[OomFinding]

    @property
    def limit_room(self) -> Figure | None:
        """What the limit left; None without one."""
        facts = self.facts
        return None if facts.limit is None or facts.reserved is None else (facts.limit - facts.reserved).floored()

    @property
    def has_private_in_reach(self) -> bool:
        """Whether what lies idle in private pools is counted as within reach."""
        return self.facts.private_idle is not None and self.verdict is not Verdict.FRAGMENTATION
