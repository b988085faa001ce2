"""docs/trace_format.md says of every member, column and key what the code does, no less and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpumem.trace import journal_layout
from gpumem.trace.event_parts import EVENT_SCHEMA
from gpumem.trace.file import META_MEMBER, part_member, table_member
from gpumem.trace.meta import FORMAT_VERSION, encode_meta
from gpumem.trace.model import AllocatorFacts, DeviceFacts, TraceMeta
from gpumem.trace.tables import TABLE_SCHEMAS
from gpumem.vocabulary import EventFlag, EventKind, TraceSource

TEXT = (Path(__file__).parents[3] / "docs" / "trace_format.md").read_text(encoding="utf-8")
SCHEMAS = {"events": EVENT_SCHEMA, **TABLE_SCHEMAS}


def rows_under(head: str, text: str = TEXT) -> list[list[str]]:
    """The cells of the first table whose head row begins with `head`."""
    found = re.search(rf"^\| {re.escape(head)} \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found is not None, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def section(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize("table", SCHEMAS)
def test_columns_types_and_nulls_are_those_of_the_code(table: str) -> None:
    documented = [(cells[0], cells[1], bool(cells[4])) for cells in rows_under("column", section(table))]
    assert documented == [(field.name, str(field.type), field.nullable) for field in SCHEMAS[table]]


@pytest.mark.parametrize("table", SCHEMAS)
def test_units_follow_from_the_names(table: str) -> None:
    for name, _, unit, meaning, _ in rows_under("column", section(table)):
        assert unit == ("bytes" if name.endswith("_bytes") else "ns" if name.endswith("_ns") else "")
        assert meaning


def test_every_member_is_documented() -> None:
    documented = re.findall(r"`([^`]+)`", " ".join(cells[0] for cells in rows_under("member")))
    assert documented == [part_member(0), part_member(1), *map(table_member, TABLE_SCHEMAS), META_MEMBER]


@pytest.mark.parametrize(("head", "enum"), [("kind", EventKind), ("flag", EventFlag)])
def test_kinds_and_flags_are_those_of_the_code(head: str, enum: type[EventKind] | type[EventFlag]) -> None:
    documented = [(int(cells[0]), cells[1]) for cells in rows_under(head)]
    assert documented == [(member.value, (member.name or "").lower()) for member in enum]


def test_keys_of_meta_are_those_of_the_code() -> None:
    own = AllocatorFacts(0, 0, "")
    meta = json.loads(encode_meta(TraceMeta(TraceSource.NATIVE, devices=(DeviceFacts(0),), allocators=(own,)), [3]))
    assert sorted(cells[0] for cells in rows_under("key")) == sorted(meta)
    assert [cells[0] for cells in rows_under("device key")] == list(meta["devices"][0])
    assert [cells[0] for cells in rows_under("allocator key")] == list(meta["allocators"][0])
    assert f"now {FORMAT_VERSION}" in TEXT


@pytest.mark.parametrize(
    ("head", "dtype"), [("header field", journal_layout.HEADER), ("window field", journal_layout.WINDOW_ENTRY)]
)
def test_journal_fields_are_those_of_the_code(head: str, dtype: object) -> None:
    fields = getattr(dtype, "fields", {})
    documented = {cells[0]: int(cells[1]) for cells in rows_under(head)}
    assert documented == {name: field[0].itemsize for name, field in fields.items()}
