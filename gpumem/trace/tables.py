"""The small tables of a trace as Parquet files and back.

Owns: their columns, types and null rules (docs/trace_format.md lists them; a test compares). Must not know: where the
members lie, the events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gpumem.errors import TraceTruncated
from gpumem.trace.event_parts import PARQUET_ERRORS, first_line
from gpumem.trace.links import check_links
from gpumem.trace.model import (
    FrameTable,
    InitialBlock,
    Mark,
    PoolRow,
    Reading,
    ScopeTable,
    StackTable,
    StreamRow,
    ThreadRow,
    Trace,
    limit_of,
)
from gpumem.vocabulary import BlockState, EventIndex, MarkKind, StackId

Row = TypeVar("Row")
_NO_NULLS: tuple[str, ...] = ()
_ROWS_LEAST_REFUSED = 1 << 16
_ROWS_A_BYTE = 8
"""A recorder's tables have 1.5 at most, as each row differs from the one before; a few bytes can say very many rows."""


def _schema(columns: Mapping[str, pa.DataType], nullable: Sequence[str] = _NO_NULLS) -> pa.Schema:
    return pa.schema([pa.field(name, kind, name in nullable) for name, kind in columns.items()])


_READING_BYTES = (
    "total_bytes",
    "used_bytes",
    "free_bytes",
    "reserved_bytes",
    "process_bytes",
    "other_processes_bytes",
)

TABLE_SCHEMAS: Mapping[str, pa.Schema] = {
    "frames": _schema({"file": pa.string(), "line": pa.uint32(), "function": pa.string()}),
    "stacks": _schema({"parent": pa.uint32(), "frame": pa.uint32()}),
    "scopes": _schema({"parent": pa.uint32(), "name": pa.string()}),
    "streams": _schema({"device": pa.uint8(), "handle": pa.uint64()}),
    "pools": _schema({"first": pa.uint64(), "second": pa.uint64()}),
    "threads": _schema({"system_id": pa.uint64(), "name": pa.string()}),
    "readings": _schema(
        {
            "time_ns": pa.int64(),
            "event": pa.int64(),
            "device": pa.uint8(),
            **dict.fromkeys(_READING_BYTES, pa.uint64()),
            "unavailable": pa.string(),
        },
        (*_READING_BYTES, "unavailable"),
    ),
    "marks": _schema(
        {"kind": pa.string(), "name": pa.string(), "step": pa.int64(), "event": pa.int64(), "time_ns": pa.int64()},
        ("step",),
    ),
    "initial_blocks": _schema(
        {
            "device": pa.uint8(),
            "segment_address": pa.uint64(),
            "segment_bytes": pa.uint64(),
            "stream": pa.uint16(),
            "pool": pa.uint16(),
            "expandable": pa.bool_(),
            "address": pa.uint64(),
            "block_bytes": pa.uint64(),
            "requested_bytes": pa.uint64(),
            "state": pa.string(),
            "stack": pa.uint32(),
            "flags": pa.uint16(),
        },
        ("block_bytes",),
    ),
}
_ADDED = {"initial_blocks": ("flags",)}
"""Columns that tables written before they were thought of lack: all 0 then."""


def encode_tables(trace: Trace) -> dict[str, memoryview]:
    """Every table of `trace` by its name, each as one Parquet file in memory."""
    columns: dict[str, Sequence[Sequence[object] | npt.NDArray[np.uint32]]] = {
        "frames": (trace.frames.files, trace.frames.lines, trace.frames.functions),
        "stacks": (trace.stacks.parents, trace.stacks.frames),
        "scopes": (trace.scopes.parents, trace.scopes.names),
        "streams": _columns([(row.device, row.handle) for row in trace.streams], 2),
        "pools": _columns([(row.first, row.second) for row in trace.pools], 2),
        "threads": _columns([(row.system_id, row.name) for row in trace.threads], 2),
        "readings": _columns([_reading_fields(row) for row in trace.readings], 10),
        "marks": _columns([(row.kind.value, row.name, row.step, row.event, row.time_ns) for row in trace.marks], 5),
        "initial_blocks": _columns([_initial_block_fields(row) for row in trace.initial_blocks], 12),
    }
    return {name: _encode(TABLE_SCHEMAS[name], values) for name, values in columns.items()}


def decode_frames(content: bytes, where: str) -> FrameTable:
    """The frames table; raises TraceTruncated when `content` is no such table."""
    table = _decode("frames", content, where)
    return FrameTable(table["file"].to_pylist(), _numbers(table["line"]), table["function"].to_pylist())


def decode_stacks(content: bytes, where: str, frame_count: int) -> StackTable:
    """The stacks table, its links checked: every stack ends, every frame exists."""
    table = _decode("stacks", content, where)
    stacks = StackTable(_numbers(table["parent"]), _numbers(table["frame"]))
    if len(stacks.frames) and int(stacks.frames.max()) >= frame_count:
        raise TraceTruncated(f"{where} is damaged: it names frames that do not exist.")
    check_links(stacks.parents, where)
    return stacks


def decode_scopes(content: bytes, where: str) -> ScopeTable:
    """The scopes table, its links checked."""
    table = _decode("scopes", content, where)
    scopes = ScopeTable(_numbers(table["parent"]), table["name"].to_pylist())
    check_links(scopes.parents, where)
    return scopes


def decode_streams(content: bytes, where: str) -> list[StreamRow]:
    """The streams by row."""
    return _rows("streams", content, where, lambda row, device, handle: StreamRow(row, device, handle))


def decode_pools(content: bytes, where: str) -> list[PoolRow]:
    """The private pools by row."""
    return _rows("pools", content, where, lambda row, first, second: PoolRow(row, first, second))


def decode_threads(content: bytes, where: str) -> list[ThreadRow]:
    """The threads by row."""
    return _rows("threads", content, where, lambda row, system_id, name: ThreadRow(row, system_id, name))


def decode_readings(content: bytes, where: str, event_count: int) -> list[Reading]:
    """The NVML readings in order of time, each of an event that there is."""
    readings = _rows("readings", content, where, _reading)
    _check_events((one.event for one in readings), where, event_count)
    return readings


def decode_marks(content: bytes, where: str, event_count: int) -> list[Mark]:
    """The marks in order of their events, each of one that there is."""

    def mark(_: int, kind: str, name: str, step: int | None, event: int, time_ns: int) -> Mark:
        return Mark(MarkKind(kind), name, step, EventIndex(event), time_ns)

    marks = _rows("marks", content, where, mark)
    _check_events((one.event for one in marks), where, event_count)
    return marks


def decode_initial_blocks(content: bytes, where: str) -> list[InitialBlock]:
    """The blocks that were live before the recording began."""

    def block(_: int, *fields: object) -> InitialBlock:
        values = dict(zip(TABLE_SCHEMAS["initial_blocks"].names, fields, strict=True))
        return InitialBlock(**{**values, "state": BlockState(values["state"])})

    return _rows("initial_blocks", content, where, block)


def _check_events(events: Iterable[EventIndex], where: str, event_count: int) -> None:
    if not all(-1 <= event < event_count for event in events):
        raise TraceTruncated(f"{where} is damaged: it names events that do not exist.")


def _reading_fields(row: Reading) -> tuple[object, ...]:
    reasons = json.dumps(dict(row.unavailable), sort_keys=True) if row.unavailable else None
    return (row.time_ns, row.event, row.device, *(getattr(row, name) for name in _READING_BYTES), reasons)


def _reading(_: int, time_ns: int, event: int, device: int, *rest: object) -> Reading:
    figures = dict(zip(_READING_BYTES, rest, strict=False))
    reasons = json.loads(str(rest[-1])) if rest[-1] is not None else {}
    if not isinstance(reasons, dict):
        raise ValueError("the reasons are no object")
    unavailable = {str(name): str(reason) for name, reason in reasons.items()}
    return Reading(time_ns, EventIndex(event), device, **figures, unavailable=unavailable)  # type: ignore[arg-type]


def _initial_block_fields(row: InitialBlock) -> tuple[object, ...]:
    values = {name: getattr(row, name) for name in TABLE_SCHEMAS["initial_blocks"].names}
    return tuple({**values, "state": row.state.value, "stack": StackId(row.stack)}.values())


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[Sequence[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _encode(schema: pa.Schema, columns: Sequence[Sequence[object] | npt.NDArray[np.uint32]]) -> memoryview:
    arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        compression="zstd",
        compression_level=3,
        write_statistics=False,
        store_schema=False,
    )
    return memoryview(sink.getvalue())


def _array(values: Sequence[object] | npt.NDArray[np.uint32], kind: pa.DataType) -> pa.Array:
    """The column; lone surrogates in its texts, of names that are no text, become question marks as in a journal."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        readable = [one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in values]
        return pa.array(readable, kind)


def _decode(name: str, content: bytes, where: str) -> pa.Table:
    schema = TABLE_SCHEMAS[name]
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows > _ROWS_LEAST_REFUSED and file.metadata.num_rows > _ROWS_A_BYTE * len(content):
            raise ValueError(f"it says that it has {file.metadata.num_rows} rows")
        table = file.read(columns=schema.names, use_threads=False)
        for added in _ADDED.get(name, ()):
            if added not in table.column_names:
                table = table.append_column(schema.field(added), pa.array(np.zeros(table.num_rows, np.uint16)))
        table = table.select(schema.names).cast(schema)
        table.validate(full=True)  # text that is no UTF-8, for one
        _check_limits(table)
    except PARQUET_ERRORS as error:
        raise TraceTruncated(f"{where} is damaged: {first_line(error)}.") from error
    if any(table[field.name].null_count and not field.nullable for field in schema):
        raise TraceTruncated(f"{where} is damaged: a column that has no nulls holds some.")
    return table


def _check_limits(table: pa.Table) -> None:
    """Raises ValueError where a column holds a figure that there cannot be."""
    for name in table.column_names:
        limit = limit_of(name)
        if limit is not None and any(value >= limit for value in table.column(name).drop_null().to_pylist()):
            raise ValueError(f"its {name} column holds impossible figures")


def _rows(name: str, content: bytes, where: str, make: Callable[..., Row]) -> list[Row]:
    table = _decode(name, content, where)
    columns = [column.to_pylist() for column in table.columns]
    try:
        return [make(row, *fields) for row, fields in enumerate(zip(*columns, strict=True))]
    except (ValueError, TypeError, RecursionError) as error:
        raise TraceTruncated(f"{where} is damaged: {first_line(error)}.") from error


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    numbers: npt.NDArray[np.uint32] = column.combine_chunks().to_numpy(zero_copy_only=False)
    return numbers
