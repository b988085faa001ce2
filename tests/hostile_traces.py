"""Traces that are not well: every checksum right, but values, columns and members that no recorder wrote.

Everything comes of a random.Random, so a seed names a file. Owns: spoiling a sample's members, tables and JSON. Must
not know: journals (hostile_journals.py), what readers make of it.
"""

from __future__ import annotations

import functools
import io
import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hostile_snapshots import damaged_bytes

SAMPLES = Path(__file__).parents[1] / "sample_traces"
BASES = ("nine_steps", "nine_steps_own", "out_of_memory", "gpt2_train")
ODD_NUMBERS = (
    0, 1, 2, 3, 7, 13, 14, 15, 255, 256, 511, 512, 65535, 65536, 1 << 20, (1 << 21) + 512, 2**31 - 1, 2**31, 2**32 - 1,
    1 << 40, 1 << 48, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 512, 2**64 - 1, -1, -2, -(2**31), -(2**63),
)  # fmt: skip
ODD_TEXTS = (
    "", "\0", "\x1b[31mred\x1b[0m", "</script><script>alert(1)</script>", "x" * 5000, "\u202egnp.exe", "a\nb\rc\td",
    "%s{}[bold]", "peak", "mark", "allocated", "free", "native", "none", "1.0", "2.0", "/", "../..", "-",
)  # fmt: skip
ODD_JSON = (
    None, True, False, -1, 0, 1.5, 2**63, 2**64, 2**200, -(2**70), 1e308, float("inf"), float("nan"), "", "x" * 3000,
    [], {}, [[]], [None], {"a": 1}, [1, 2, 3], "\ud800", [{"device": 0}], [{"device": 300}], [{"device": -1}],
)  # fmt: skip


@functools.cache
def sample_members(name: str) -> Mapping[str, bytes]:
    """The members of a sample trace."""
    with zipfile.ZipFile(SAMPLES / f"{name}.gpumem") as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def hostile_trace(seed: int) -> bytes:
    """The bytes of a trace spoilt as `seed` says."""
    dice = random.Random(seed)
    members = dict(sample_members(dice.choice(BASES)))
    often = ("meta.json", "events/000000.parquet", "events/000000.parquet", "initial_blocks.parquet")
    for _ in range(dice.choice((1, 1, 2, 3))):
        name = dice.choice([*members, *(one for one in often if one in members)])
        luck = dice.random()
        if name == "meta.json":
            members[name] = spoilt_json(dice, members[name])
        elif luck < 0.85:
            members[name] = spoilt_table(dice, members[name])
        elif luck < 0.97:
            members[name] = damaged_bytes(dice, members[name])
        else:
            del members[name]
    packed = packed_members(members)
    return damaged_bytes(dice, packed) if dice.random() < 0.1 else packed


def packed_members(members: Mapping[str, bytes]) -> bytes:
    """A ZIP of these members, as a trace is one."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return sink.getvalue()


def spoilt_json(dice: random.Random, content: bytes) -> bytes:
    """A JSON document with one value, at any depth, that it should not have or lacks."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    places = list(_json_places(document))
    if places:
        holder, key = dice.choice(places)
        match dice.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder[key], int):
                holder[key] = dice.choice(ODD_NUMBERS)
            case 2 if isinstance(holder[key], str):
                holder[key] = dice.choice(ODD_TEXTS)
            case _:
                holder[key] = dice.choice(ODD_JSON)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _json_places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: list[Any] = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys:
        yield value, key
        yield from _json_places(value[key])


def spoilt_table(dice: random.Random, content: bytes) -> bytes:
    """A Parquet table with cells, a column or rows that it should not have."""
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read()
    except (pa.ArrowException, OSError, ValueError):
        return content
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        table = spoilt_once(dice, table)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return bytes(sink.getvalue())


def spoilt_once(dice: random.Random, table: pa.Table) -> pa.Table:
    """The table with other rows, without a column, or with odd cells in one."""
    at = dice.randrange(table.num_columns)
    field, values = table.schema.field(at), table.column(at).to_pylist()
    match dice.randrange(8):
        case 0 if len(values) > 1:
            return table.take([dice.randrange(len(values)) for _ in values])
        case 1 if len(values) > 1:
            first, end = sorted((dice.randrange(len(values)), dice.randrange(len(values))))
            return table.slice(first, end - first)
        case 2 if table.num_columns > 1:
            return table.remove_column(at)
        case 3 if values:
            values = [dice.choice(values)] * len(values)
        case _ if values:
            for _ in range(dice.choice((1, 1, 3, 20))):
                values[dice.randrange(len(values))] = _odd_cell(dice, field.type)
    return table.set_column(at, field.with_nullable(True), pa.array(values, field.type))


def _odd_cell(dice: random.Random, kind: pa.DataType) -> object:
    if pa.types.is_integer(kind):
        span, number = 1 << kind.bit_width, dice.choice(ODD_NUMBERS)
        least = -span // 2 if pa.types.is_signed_integer(kind) else 0
        return (number - least) % span + least
    return dice.random() < 0.5 if pa.types.is_boolean(kind) else dice.choice(ODD_TEXTS)
