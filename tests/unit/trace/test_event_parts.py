"""What a part says of its journal window is held to what the part holds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpumem.errors import TraceTruncated
from gpumem.trace.event_parts import WINDOW_KEY, PartMark, PartWindow, decode_window, encode_events
from gpumem.trace.model import EVENT_COLUMNS

WINDOW = PartWindow(
    first_record=100,
    record_count=8,
    records_lost=2,
    last_time_ns=7,
    removed=((102, 104),),
    marks=(PartMark(0, 3, -1, 5), PartMark(5, 4, 0, 6)),
    fill_key="by",
)


def part(window: PartWindow = WINDOW, row_count: int = 6) -> bytes:
    columns = {name: np.zeros(row_count, dtype) for name, dtype in EVENT_COLUMNS.items()}
    return bytes(encode_events(columns, window))


def part_that_says(fields: dict[str, object]) -> bytes:
    """The part with these fields of its window changed."""
    file = pq.ParquetFile(pa.BufferReader(part()))
    said = json.loads(file.metadata.metadata[WINDOW_KEY]) | fields
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, file.schema_arrow) as writer:
        writer.add_key_value_metadata({WINDOW_KEY: json.dumps(said)})
        writer.write_table(file.read())
    return bytes(sink.getvalue())


def test_window_read_back_is_the_window_written() -> None:
    assert decode_window(part(), "p") == WINDOW
    assert decode_window(part_that_says({}), "p") == WINDOW


@pytest.mark.parametrize(
    "fields",
    [
        {"first_record": []},
        {"first_record": -1},
        {"record_count": 9},
        {"record_count": 1 << 62},
        {"record_count": 8.0},
        {"records_lost": None},
        {"records_lost": True},
        {"last_time_ns": 1 << 62},
        {"removed": [[104, 102]]},
        {"removed": [[107, 109]]},
        {"removed": [[98, 100]]},
        {"removed": [[102]]},
        {"removed": [["a", "b"]]},
        {"marks": [[6, 3, -1, 5]]},
        {"marks": [[0, 3, -2, 5]]},
        {"marks": [[0, {}, -1, 5]]},
        {"marks": [[0]]},
    ],
)
def test_window_that_does_not_fit_its_part_is_damage(fields: dict[str, object]) -> None:
    with pytest.raises(TraceTruncated, match="p is damaged: it does not say which window it was made of"):
        decode_window(part_that_says(fields), "p")


def test_part_of_more_rows_than_its_window_says_is_damage() -> None:
    with pytest.raises(TraceTruncated, match="p is damaged"):
        decode_window(part(replace(WINDOW, removed=())), "p")
