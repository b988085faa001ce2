"""What else is different between two recordings: settings, limits, versions, devices, command lines.

Owns: which facts are compared. Must not know: memory, reports.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumem.trace.allocators import settings_of
from gpumem.trace.model import Trace, TraceMeta
from gpumem.vocabulary import DeviceOrdinal, TraceSource


@dataclass(frozen=True, slots=True)
class SettingDiff:
    """A fact that differs; an int is a count of bytes, None is "none" or not known."""

    name: str
    before: str | int | None
    after: str | int | None


def compare_settings(before: Trace, after: Trace, devices: Collection[DeviceOrdinal] | None) -> Sequence[SettingDiff]:
    """The facts that differ: of the run first, then versions, then each device's (of `devices`, or all).

    A fact that one side does not know is no difference.
    """
    was, now = before.meta, after.meta
    facts: list[SettingDiff] = [
        *_allocator_settings("allocator settings", settings_of(was), settings_of(now)),
        SettingDiff("recorded from", was.source.value, now.source.value),
        *_known_on_both(SettingDiff("ended by", _ending(before), _ending(after))),
        *_known_on_both(SettingDiff("command line", _command_line(before), _command_line(after))),
        *_version_settings(was.versions, now.versions),
        *_device_settings(before, after, devices),
    ]
    return [fact for fact in facts if fact.before != fact.after]


def _allocator_settings(name: str, was: Sequence[str | None], now: Sequence[str | None]) -> Iterator[SettingDiff]:
    """The lines of settings of one allocator; of several each device has its own."""
    if len(was) == len(now) == 1 and was[0] is not None and now[0] is not None:
        yield SettingDiff(name, was[0] or None, now[0] or None)


def _device_allocator_settings(before: TraceMeta, after: TraceMeta, device: int) -> Iterator[SettingDiff]:
    was, now = settings_of(before, device), settings_of(after, device)
    if len(settings_of(before)) == len(settings_of(after)) == 1 or None in was or None in now:
        return
    joined = (" and ".join(line or "the default ones" for line in lines) for lines in (was, now))
    yield SettingDiff(f"device {device} allocator settings", *joined)


def _known_on_both(fact: SettingDiff) -> list[SettingDiff]:
    return [] if fact.before is None or fact.after is None else [fact]


def _command_line(trace: Trace) -> str | None:
    return shlex.join(trace.meta.command_line) or trace.meta.program or None


def _ending(trace: Trace) -> str | None:
    """How the program ended; None where it has not, or the recording does not tell."""
    is_told = not trace.meta.running and trace.meta.source is not TraceSource.PYTORCH_SNAPSHOT
    return trace.meta.ended_by or None if is_told else None


def _version_settings(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[SettingDiff]:
    if before and after:
        for name in sorted(before.keys() | after.keys()):
            yield SettingDiff(name, before.get(name), after.get(name))


def _device_settings(before: Trace, after: Trace, devices: Collection[DeviceOrdinal] | None) -> Iterator[SettingDiff]:
    was, now = ({one.device: one for one in trace.meta.devices} for trace in (before, after))
    for number in sorted(was.keys() & now.keys() if devices is None else was.keys() & now.keys() & set(devices)):
        yield from _known_on_both(SettingDiff(f"device {number}", was[number].name, now[number].name))
        capacity = SettingDiff(f"device {number} capacity", was[number].capacity_bytes, now[number].capacity_bytes)
        yield from _known_on_both(capacity)
        yield from _device_allocator_settings(before.meta, after.meta, number)
        if TraceSource.PYTORCH_SNAPSHOT not in (before.meta.source, after.meta.source):  # they do not tell the limit
            limits = (was[number].memory_limit_bytes, now[number].memory_limit_bytes)
            yield SettingDiff(f"device {number} memory limit", *limits)
