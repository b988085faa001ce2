"""The findings of a comparison as dataclasses: figures before and after, groups of blocks, devices, the two sides.

Owns: their shape, and what follows from it. Must not know: how they are found, text, colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpumem.analyses.diff_settings import SettingDiff
from gpumem.heap.instants import Instant
from gpumem.trace.model import DeviceFacts, Frame, TraceMeta
from gpumem.trace.moments import Moment
from gpumem.vocabulary import Basis, DeviceOrdinal


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A figure on both sides; None where it is not known."""

    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """After less before; None where one is not known."""
        return None if self.before is None or self.after is None else self.after - self.before


class Change(Enum):
    """What became of a group of blocks."""

    NEW = "new"
    GONE = "gone"
    GROWN = "grown"
    SHRUNK = "shrunk"
    RECOUNTED = "recounted"
    """The same bytes in another number of blocks."""
    SAME = "same"


class Held(Enum):
    """Whose blocks a group holds."""

    LINES = "lines"
    """Those of a stack or site."""
    WITHOUT_STACK = "without_stack"
    """Those without a Python stack."""
    EVENTS_LACKING = "events_lacking"
    """No known blocks: what the recording's levels hold beyond them, as it lacks events."""


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """The blocks of one site or stack on both sides; a site is None, and its stack empty, where that side has none."""

    held: Held
    before_site: Frame | None
    after_site: Frame | None
    before_stack: Sequence[Frame]
    """Innermost frame first; of a site, the stack that holds most of it."""
    after_stack: Sequence[Frame]
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def delta_bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def site(self) -> Frame | None:
        """The site as it is now; as it was, where it is gone."""
        return self.after_site or self.before_site

    @property
    def stack(self) -> Sequence[Frame]:
        """The stack as it is now; as it was, where it is gone."""
        return self.after_stack or self.before_stack

    @property
    def has_moved(self) -> bool:
        """Whether its line or its file is another than before."""
        return self.before_site is not None and self.after_site is not None and self.before_site != self.after_site

    @property
    def change(self) -> Change:
        had = (self.before_bytes, self.before_count) != (0, 0)
        has = (self.after_bytes, self.after_count) != (0, 0)
        if had != has:
            return Change.NEW if has else Change.GONE
        if self.delta_bytes:
            return Change.GROWN if self.delta_bytes > 0 else Change.SHRUNK
        return Change.SAME if self.before_count == self.after_count else Change.RECOUNTED


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """One device on both sides, each group list by the size of the change."""

    before_device: DeviceOrdinal | None
    """None where that side did not use it."""
    after_device: DeviceOrdinal | None
    before_instant: Instant | None
    """When it was looked at; None where that side did not use it."""
    after_instant: Instant | None
    facts: DeviceFacts
    """Those of the later side, of the earlier one where that did not use it."""
    basis: Basis
    held_bytes: BeforeAfter
    """In the basis' bytes, at the moments compared."""
    requested_bytes: BeforeAfter
    allocated_bytes: BeforeAfter | None
    """None where one side does not know its block bytes."""
    reserved_bytes: BeforeAfter
    held_bytes_peak: BeforeAfter
    """Of each whole trace, in the basis' bytes; None where recording began in mid-run."""
    reserved_bytes_peak: BeforeAfter
    nvml_process_bytes: BeforeAfter
    """What NVML said of the process nearest to the moments; None where it did not."""
    by_site: Sequence[GroupDiff]
    by_stack: Sequence[GroupDiff]

    @property
    def device(self) -> DeviceOrdinal:
        """The device's number, on the later side if both have it."""
        found = self.before_device if self.after_device is None else self.after_device
        assert found is not None, "one side used the device"
        return found

    @property
    def changed_sites(self) -> Sequence[GroupDiff]:
        """The sites whose bytes or counts are not what they were."""
        return [group for group in self.by_site if group.change is not Change.SAME]

    @property
    def gross_delta_bytes(self) -> int:
        """All that sites hold more and all that they hold less, added up."""
        return sum(abs(group.delta_bytes) for group in self.by_site)


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """Which state of which trace was compared."""

    path: str
    moment: Moment
    instant: Instant | None
    """None where the moment is a peak, and each of several devices has its own."""
    meta: TraceMeta
    unknown_devices: Sequence[DeviceOrdinal]
    """Those it used whose block bytes are not known."""


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """All that changed; devices by number."""

    before: ComparedSide
    after: ComparedSide
    basis: Basis
    """ALLOCATED where every device is compared by it."""
    is_one_trace: bool
    """Whether two moments of one trace were compared."""
    devices: Sequence[DeviceDiff]
    settings: Sequence[SettingDiff]
