"""The pieces of a ledger: components with their bytes and the evidence for them.

Owns: what a component is, and adding components up by evidence. Must not know: where bytes come from, text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.vocabulary import EventIndex


class Evidence(Enum):
    """How a figure is known."""

    MEASURED = "measured"
    """Read from NVML, or recorded from the allocator's own events."""
    DERIVED = "derived"
    """Worked out from what was recorded: the allocator's rules followed, a block told by its bytes and stack."""
    DIFFERENCE = "difference"
    """What is left of a measured figure when all that is known is taken away."""


class ComponentName(Enum):
    """What a component of a ledger is; the values are those of the JSON contract."""

    CUDA_CONTEXT = "cuda_context"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    """Came after the context, outside the allocator; its children are named by the moments at which it was seen."""
    PROCESS_MEMORY = "process_memory"
    """All that a process holds of which no allocator was recorded; its children are named as above."""
    GPUMEM = "gpumem"
    ALLOCATOR = "allocator"
    CHANGE_AT_READING = "reserved_change_at_reading"
    """What the allocator had reserved more (negative: less) when NVML was read than at the moment."""
    LIVE_REQUESTS = "live_requests"
    WORKSPACES = "cublas_workspaces"
    SLACK = "slack"
    PENDING = "pending"
    RELEASABLE = "releasable"
    GAPS = "gaps"
    NOT_TOLD_APART = "slack_and_idle"
    """Slack and idle bytes of a recording that does not know its blocks' bytes."""
    PRIVATE_POOLS = "private_pools"
    USED = "used"
    THIS_PROCESS = "this_process"
    OTHER_PROCESSES = "other_processes"
    NO_PROCESS = "no_process"
    """Used, but of no process that NVML lists."""
    DRIVER_RESERVE = "driver_reserve"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Component:
    """A named part of a sum; the children, where there are any, add up to its bytes."""

    name: ComponentName
    held_bytes: int
    evidence: Evidence
    children: Sequence[Component] = ()
    moment: str | None = None
    """Of a part of OUTSIDE_ALLOCATOR or PROCESS_MEMORY: the mark or step by which it was there, as `--at` takes it."""
    after: str | None = None
    """The mark or step before that."""
    moment_event: EventIndex | None = None
    """The event of `moment`, without one of `after`."""
    block_count: int | None = None

    def leaves(self) -> Iterator[Component]:
        """The components below that have no children; itself without any."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(frozen=True, slots=True)
class EvidenceSums:
    """The bytes of a ledger by evidence; together they are its figure."""

    measured_bytes: int
    derived_bytes: int
    difference_bytes: int

    @property
    def sum_bytes(self) -> int:
        return self.measured_bytes + self.derived_bytes + self.difference_bytes


def sum_evidence(components: Sequence[Component], unexplained_bytes: int) -> EvidenceSums:
    """The components' leaves by evidence; what is unexplained counts as difference."""
    sums = dict.fromkeys(Evidence, 0)
    sums[Evidence.DIFFERENCE] = unexplained_bytes
    for component in components:
        for leaf in component.leaves():
            sums[leaf.evidence] += leaf.held_bytes
    return EvidenceSums(sums[Evidence.MEASURED], sums[Evidence.DERIVED], sums[Evidence.DIFFERENCE])


def make_parent(name: ComponentName, held_bytes: int, evidence: Evidence, children: Sequence[Component]) -> Component:
    """A component of the children that hold anything; they must add up to it."""
    assert sum(child.held_bytes for child in children) == held_bytes, f"the parts of {name.value} are not the whole"
    return Component(name, held_bytes, evidence, tuple(child for child in children if child.held_bytes))
