"""meta.json: the facts of a trace as JSON text and back.

Owns: its keys and the versioning rule. Must not know: the tables, how the facts were learned.

A reader opens every minor version of its major version; unknown keys are passed over, missing ones have the default
of TraceMeta.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar

from gpumem.errors import TraceForeign, TraceTruncated, TraceVersionUnsupported
from gpumem.trace.model import TIME_NS_LIMIT, AllocatorFacts, DeviceFacts, TraceMeta
from gpumem.vocabulary import TraceSource

FORMAT = "gpumem"
FORMAT_VERSION = "1.0"
_MAJOR = 1

Json = Mapping[str, object]
Facts = TypeVar("Facts", TraceMeta, DeviceFacts, AllocatorFacts)


def encode_meta(meta: TraceMeta, part_events: Sequence[int]) -> bytes:
    """The text of meta.json; `part_events` counts the events of each part. What is no text in a name becomes `?`."""
    fields: dict[str, object] = {"format": FORMAT, "format_version": FORMAT_VERSION}
    fields |= dataclasses.asdict(meta)
    del fields["running"]
    fields["source"] = meta.source.value
    fields["versions"] = dict(sorted(meta.versions.items()))
    fields["events"] = sum(part_events)
    fields["part_events"] = list(part_events)
    return json.dumps(fields, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def decode_meta(content: bytes, where: str) -> tuple[TraceMeta, list[int]]:
    """The facts and the events of each part; raises an InputError that says what is wrong with `where`."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TraceTruncated(f"{where} is damaged: meta.json is no JSON ({error}).") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise TraceForeign(f"{where} is no trace: its meta.json is not gpumem's.")
    _check_version(fields.get("format_version"), where)
    parts = fields.get("part_events")
    if not isinstance(parts, list) or not all(_is_count(count) for count in parts):
        raise TraceTruncated(f"{where} is damaged: meta.json does not count the events of its parts.")
    try:
        devices = [facts_of(DeviceFacts, device) for device in _list(fields.get("devices", []))]
        allocators = [facts_of(AllocatorFacts, one) for one in _list(fields.get("allocators", []))]
        meta = facts_of(TraceMeta, {**fields, "devices": (), "allocators": (), "source": TraceSource.NONE})
        source = TraceSource(fields.get("source"))
        meta = dataclasses.replace(meta, devices=tuple(devices), allocators=tuple(allocators), source=source)
    except (ValueError, TypeError) as error:
        raise TraceTruncated(f"{where} is damaged: meta.json: {error}.") from error
    return meta, parts


def facts_of(kind: type[Facts], fields: object) -> Facts:
    """A `kind` from JSON fields, each checked against the type of the field's default or annotation."""
    if not isinstance(fields, dict):
        raise TypeError("an object was expected")
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.name in fields:
            values[field.name] = _checked(field.name, str(field.type), fields[field.name])
    return kind(**values)  # type: ignore[arg-type]


def _check_version(version: object, where: str) -> None:
    major = version.split(".")[0] if isinstance(version, str) else ""
    if not major.isdecimal():
        raise TraceTruncated(f"{where} is damaged: meta.json names no format version.")
    if int(major[:9]) != _MAJOR:
        raise TraceVersionUnsupported(
            f"{where} has format version {version}; this gpumem reads version {_MAJOR}. Update gpumem, or record again."
        )


def _checked(name: str, annotation: str, value: object) -> object:
    kinds = {
        "str": isinstance(value, str),
        "str | None": value is None or isinstance(value, str),
        "int": _is_integer(value),
        "int | None": value is None or _is_integer(value),
        "bool": isinstance(value, bool),
        "TraceSource": isinstance(value, TraceSource),
        "Sequence[DeviceFacts]": value == (),
        "Sequence[AllocatorFacts]": value == (),
    }
    if annotation == "Sequence[str]":
        return tuple(_texts(name, _list(value)))
    if annotation == "Mapping[str, str]" and isinstance(value, dict):
        return dict(zip(value, _texts(name, list(value.values())), strict=True))
    if not kinds.get(annotation, False):
        raise TypeError(f"{name} is not of type {annotation}")
    return value


def _texts(name: str, values: Sequence[object]) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} holds something that is no text")
    return [str(value) for value in values]


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return value


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -TIME_NS_LIMIT <= value < TIME_NS_LIMIT


def _is_count(value: object) -> bool:
    return _is_integer(value) and 0 <= value < 1 << 48
