"""What else is different between two recordings: settings, limits, versions, devices, command lines.

Owns: which facts are compared. Must not know: memory, reports.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gpumem.trace.model import DeviceFacts, Trace
from gpumem.vocabulary import DeviceOrdinal

_BYTES_OF_DEVICE = {"capacity": "capacity_bytes", "memory limit": "memory_limit_bytes"}


@dataclass(frozen=True, slots=True)
class SettingDiff:
    """A fact that differs; an int is a count of bytes, None is "none" or not known."""

    name: str
    before: str | int | None
    after: str | int | None


def compare_settings(before: Trace, after: Trace, devices: Collection[DeviceOrdinal] | None) -> Sequence[SettingDiff]:
    """The facts that differ: of the run first, then versions, then each device's (of `devices`, or all)."""
    was, now = before.meta, after.meta
    versions = sorted(was.versions.keys() | now.versions.keys())
    facts: list[SettingDiff] = [
        SettingDiff("allocator settings", was.settings or None, now.settings or None),
        SettingDiff("recorded from", was.source.value, now.source.value),
        SettingDiff("command line", _command_line(before), _command_line(after)),
        *(SettingDiff(name, was.versions.get(name), now.versions.get(name)) for name in versions),
        *_device_settings(before, after, devices),
    ]
    return [fact for fact in facts if fact.before != fact.after]


def _command_line(trace: Trace) -> str | None:
    return shlex.join(trace.meta.command_line) or trace.meta.program or None


def _device_settings(before: Trace, after: Trace, devices: Collection[DeviceOrdinal] | None) -> Iterator[SettingDiff]:
    was, now = ({one.device: one for one in trace.meta.devices} for trace in (before, after))
    numbers = sorted(was.keys() | now.keys())
    for number in (one for one in numbers if devices is None or one in devices):
        one, other = (facts.get(number, DeviceFacts(number)) for facts in (was, now))
        yield SettingDiff(f"device {number}", one.name, other.name)
        for name, field in _BYTES_OF_DEVICE.items():
            yield SettingDiff(f"device {number} {name}", getattr(one, field), getattr(other, field))
