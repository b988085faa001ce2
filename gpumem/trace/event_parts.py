"""Event columns as Parquet and back: one complete Parquet file a part.

Owns: the encodings of the events and the streaming of parts row group by row group. Must not know: which file the
parts lie in, what an event means.

Encodings, measured: time as deltas, every other column by dictionary, zstd 3; a small part, where there is time for
zstd 19 and little to be gained by a dictionary, plain (a fifth smaller). A block_bytes or split_bytes of 0 is
written as null. No statistics but for time and kind, no Arrow schema: both cost more than they say.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpumem.errors import TraceTruncated
from gpumem.trace.model import EVENT_COLUMNS, TIME_NS_LIMIT, Column, EventBatch, limit_of
from gpumem.vocabulary import EventIndex

ROW_GROUP_ROWS = 1 << 20
SMALL_PART_ROWS = 1 << 14
NULL_FOR_ZERO = frozenset({"block_bytes", "split_bytes"})
WINDOW_KEY = b"gpumem.window"

EVENT_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(dtype), name in NULL_FOR_ZERO) for name, dtype in EVENT_COLUMNS.items()]
)
PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, IndexError, KeyError, TypeError)
_LOOK_AHEAD = 2
_PAGE_BYTES = 1 << 22
# Newer versions of pyarrow end a page after 20,000 rows unless told otherwise: too few for zstd to find a training
# step again (5.5 bytes an event instead of 1.1 on repeated steps).
_PAGE_ROWS = (
    {"max_rows_per_page": ROW_GROUP_ROWS} if "max_rows_per_page" in signature(pq.ParquetWriter).parameters else {}
)


@dataclass(frozen=True, slots=True)
class PartMark:
    """A mark in a part: its row in the part, the string id of its name, the step (-1 for a plain mark), its time."""

    row: int
    name: int
    step: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class PartWindow:
    """What a part says of the journal window it was made of, so that a later sealer can go on.

    `removed` are the event positions (first, end) of the window that have no row: never committed, or superseded.
    `fill_key` names the facts under which replay filled in its blocks; empty where it did not.
    """

    first_record: int
    record_count: int
    records_lost: int
    last_time_ns: int
    removed: tuple[tuple[int, int], ...]
    marks: tuple[PartMark, ...]
    fill_key: str = ""

    @property
    def row_count(self) -> int:
        return self.record_count - sum(end - first for first, end in self.removed)


def encode_events(columns: Mapping[str, Column], window: PartWindow | None = None) -> memoryview:
    """The columns (all of EVENT_COLUMNS) as one Parquet file in memory."""
    table = pa.Table.from_arrays([_arrow_column(name, columns[name]) for name in EVENT_COLUMNS], schema=EVENT_SCHEMA)
    is_small = table.num_rows <= SMALL_PART_ROWS
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        EVENT_SCHEMA,
        compression="zstd",
        compression_level=19 if is_small else 3,
        use_dictionary=False if is_small else [name for name in EVENT_COLUMNS if name != "time_ns"],
        column_encoding={"time_ns": "DELTA_BINARY_PACKED"},
        dictionary_pagesize_limit=1 << 27,
        write_statistics=["time_ns", "kind"],
        store_schema=False,
        data_page_size=_PAGE_BYTES,
        **_PAGE_ROWS,
    ) as writer:
        if window is not None:
            writer.add_key_value_metadata({WINDOW_KEY: _window_json(window)})
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return memoryview(sink.getvalue())


def decode_window(content: bytes, where: str) -> PartWindow:
    """What the part `content` says of its journal window; raises TraceTruncated when it says nothing that fits it."""
    try:
        metadata = pq.ParquetFile(pa.BufferReader(content)).metadata
        fields = json.loads(metadata.metadata[WINDOW_KEY])
        window = PartWindow(
            _count(fields["first_record"]),
            _count(fields["record_count"]),
            _count(fields["records_lost"]),
            _count(fields["last_time_ns"]),
            tuple((_count(first), _count(end)) for first, end in fields["removed"]),
            tuple(
                PartMark(_count(row), _count(name), _count(step + 1) - 1, _count(time_ns))
                for row, name, step, time_ns in fields["marks"]
            ),
            str(fields.get("filled", "")),
        )
        _check_rows(window, metadata.num_rows)
    except (*PARQUET_ERRORS, RecursionError) as error:
        raise TraceTruncated(f"{where} is damaged: it does not say which window it was made of.") from error
    return window


class EventPart(Protocol):
    """Consecutive events that are decoded when their turn comes, in groups of ROW_GROUP_ROWS, the last one shorter."""

    @property
    def event_count(self) -> int: ...

    @property
    def where(self) -> str:
        """Where the part lies, for errors."""
        ...

    def columns(self, names: Sequence[str], group: int) -> Mapping[str, Column]:
        """The named columns of row group `group`; called in any thread."""
        ...


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A part whose bytes, one Parquet file, `read` gives."""

    event_count: int
    read: Callable[[], bytes]
    where: str

    def columns(self, names: Sequence[str], group: int) -> Mapping[str, Column]:
        """The named columns of a row group; raises TraceTruncated when it is not what meta.json says."""
        content = self.read()
        wanted = group_rows(self.event_count, group)
        arrays = {}
        try:
            file = pq.ParquetFile(pa.BufferReader(content))
            rows = file.metadata.row_group(group).num_rows  # looked at first: a few bytes can say very many
            row_counts = {file.metadata.num_rows - self.event_count + wanted, rows}
            for name in names if row_counts == {wanted} else ():  # one by one: together they take twice the memory
                table = file.read_row_group(group, columns=[name], use_threads=False)
                row_counts.add(table.num_rows)
                arrays[name] = _numpy_column(table.column(name), EVENT_COLUMNS[name])
        except PARQUET_ERRORS as error:
            raise TraceTruncated(f"{self.where} is damaged: {first_line(error)}.") from error
        if row_counts != {wanted}:
            raise TraceTruncated(f"{self.where} is damaged: it does not hold the {self.event_count} events it should.")
        return arrays


def group_rows(event_count: int, group: int) -> int:
    """Rows of row group `group` of a part of `event_count` events."""
    return min(ROW_GROUP_ROWS, event_count - group * ROW_GROUP_ROWS)


class PartEvents:
    """An EventSource over parts: each row group is decoded by a few threads, a little ahead of the reader."""

    def __init__(self, parts: Sequence[EventPart], row_counts: Mapping[str, int]) -> None:
        """`row_counts` gives, for columns that name rows of a table, how many rows that has."""
        self.parts = parts
        self.row_counts = row_counts
        self.first_events = np.cumsum([0, *(part.event_count for part in parts)]).tolist()

    @property
    def event_count(self) -> int:
        return int(self.first_events[-1])

    def batches(self, columns: Sequence[str], first_event: int, end_event: int) -> Iterator[EventBatch]:
        """Batches of events [first_event, end_event); parts outside are not read."""
        wanted = [
            number
            for number, part in enumerate(self.parts)
            if self.first_events[number] < end_event and self.first_events[number] + part.event_count > first_event
        ]
        tasks = self._pieces(wanted, columns, first_event, end_event)
        workers = min(4, len(os.sched_getaffinity(0)))
        pool = ThreadPoolExecutor(workers, thread_name_prefix="gpumem-read")
        waiting: deque[Future[list[EventBatch]]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > workers + _LOOK_AHEAD - 1:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if end_event - first_event > ROW_GROUP_ROWS:  # else what each thread freed is kept, pass after pass
                pa.default_memory_pool().release_unused()

    def _pieces(
        self, numbers: Sequence[int], columns: Sequence[str], first_event: int, end_event: int
    ) -> Iterator[Callable[[], list[EventBatch]]]:
        for number in numbers:
            for group in range(-(-self.parts[number].event_count // ROW_GROUP_ROWS)):
                start = self.first_events[number] + group * ROW_GROUP_ROWS
                if start < end_event and start + ROW_GROUP_ROWS > first_event:
                    yield _GroupReading(self, number, group, tuple(columns), first_event, end_event)


@dataclass(frozen=True, slots=True)
class _GroupReading:
    """One row group to decode; called in a thread."""

    source: PartEvents
    number: int
    group: int
    columns: tuple[str, ...]
    first_event: int
    end_event: int

    def __call__(self) -> list[EventBatch]:
        part = self.source.parts[self.number]
        arrays = part.columns(self.columns, self.group)
        self._check_values(part, arrays)
        start = self.source.first_events[self.number] + self.group * ROW_GROUP_ROWS
        stop = start + group_rows(part.event_count, self.group)
        first, end = max(start, self.first_event), min(stop, self.end_event)
        if end <= first:
            return []
        if (first, end) != (start, stop):
            arrays = {name: array[first - start : end - start] for name, array in arrays.items()}
        return [EventBatch(EventIndex(first), end - first, arrays)]

    def _check_values(self, part: EventPart, arrays: Mapping[str, Column]) -> None:
        for name, array in arrays.items():
            row_count = self.source.row_counts.get(name)
            if row_count is not None and len(array) and int(array.max()) >= row_count:
                raise TraceTruncated(f"{part.where} is damaged: its {name} column names rows that do not exist.")
            limit = limit_of(name)
            if limit is not None and int(array.max(initial=0)) >= limit:
                raise TraceTruncated(f"{part.where} is damaged: its {name} column holds impossible figures.")


def _count(value: object) -> int:
    """The count, position or time that `value` is; raises ValueError when it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < TIME_NS_LIMIT:
        raise ValueError(f"{value!r} is no count")
    return value


def _check_rows(window: PartWindow, row_count: int) -> None:
    """Raises ValueError unless the window has as many rows as its part, its ranges are in order and its marks rows."""
    bounds = [window.first_record, *(bound for pair in window.removed for bound in pair)]
    end = window.first_record + window.record_count
    if sorted(bounds) != bounds or bounds[-1] > end or window.row_count != row_count:
        raise ValueError(f"it has {row_count} rows")
    if any(mark.row >= row_count for mark in window.marks):
        raise ValueError("a mark has no row")


def _arrow_column(name: str, column: Column) -> pa.Array:
    values = np.ascontiguousarray(column, EVENT_COLUMNS[name])
    if name not in NULL_FOR_ZERO:
        return pa.array(values)
    if not values.any():
        return pa.nulls(len(values), pa.from_numpy_dtype(values.dtype))
    return pa.array(values, mask=values == 0)


def _numpy_column(column: pa.ChunkedArray, dtype: np.dtype[np.generic]) -> Column:
    if column.null_count == len(column):
        return np.zeros(len(column), dtype)
    if column.null_count:
        column = column.fill_null(0)
    array: Column = column.combine_chunks().to_numpy(zero_copy_only=False)
    return array.astype(dtype, copy=False)


def _window_json(window: PartWindow) -> str:
    fields: dict[str, Any] = {
        "first_record": window.first_record,
        "record_count": window.record_count,
        "records_lost": window.records_lost,
        "last_time_ns": window.last_time_ns,
        "removed": window.removed,
        "marks": [(mark.row, mark.name, mark.step, mark.time_ns) for mark in window.marks],
        "filled": window.fill_key,
    }
    return json.dumps(fields, separators=(",", ":"))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without its full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
