"""A trace read as docs/trace_format.md says, by zipfile and pyarrow alone, comes to the figures of the summary."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpumem
from gpumem.analyses.summary import summarise_trace
from gpumem.simulate.opening import open_trace
from gpumem.trace.file import write_trace

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "sample_traces").glob("*.gpumem"))
SNAPSHOTS = [ROOT / "tests" / "recordings" / f"{name}.pickle.xz" for name in ("trunc", "pending", "mempools", "toggle")]
ALLOC, FREE, FREE_REQUESTED, FREE_COMPLETED = 1, 2, 3, 4
OBTAINED, RETURNED = (6, 8), (7, 9)
Row = Mapping[str, Any]


def rows_of(path: Path, begin: str) -> list[Row]:
    """The rows of the members whose names begin so, in the order of their names."""
    with zipfile.ZipFile(path) as archive:
        members = sorted(name for name in archive.namelist() if name.startswith(begin))
        return pa.concat_tables(pq.read_table(io.BytesIO(archive.read(name))) for name in members).to_pylist()


def bytes_of(path: Path) -> dict[str, list[int]]:
    """Of a trace with one device: allocated, active and reserved bytes at its beginning and after each event."""
    found = rows_of(path, "initial_blocks")
    segments = {row["segment_address"]: row["segment_bytes"] for row in found}
    allocated = sum(row["block_bytes"] for row in found if row["state"] == "allocated")
    active = allocated + sum(row["block_bytes"] for row in found if row["state"] == "pending")
    reserved = sum(segments.values())
    told = {"allocated": [allocated], "active": [active], "reserved": [reserved]}
    for row in rows_of(path, "events/"):
        kind, block_bytes = row["kind"], row["block_bytes"] or 0
        allocated += block_bytes * ((kind == ALLOC) - (kind in (FREE, FREE_REQUESTED)))
        active += block_bytes * ((kind == ALLOC) - (kind in (FREE, FREE_COMPLETED)))
        reserved += row["requested_bytes"] * ((kind in OBTAINED) - (kind in RETURNED))
        for name, byte_count in (("allocated", allocated), ("active", active), ("reserved", reserved)):
            told[name].append(byte_count)
    return told


@pytest.mark.parametrize("path", [*SAMPLES, *SNAPSHOTS], ids=lambda path: path.name)
def test_a_trace_read_by_its_page_has_the_summary_s_figures(path: Path, tmp_path: Path) -> None:
    if path.suffix != ".gpumem":
        write_trace(open_trace(path), target := tmp_path / "imported.gpumem")
        path = target
    (device,) = summarise_trace(gpumem.open(path)).devices
    told = bytes_of(path)
    assert device.allocated_bytes is not None
    assert device.active_bytes is not None
    for name, figure in (
        ("allocated", device.allocated_bytes),
        ("active", device.active_bytes),
        ("reserved", device.reserved_bytes),
    ):
        most = figure.peak if figure.peak is not None else figure.peak_recorded
        assert (told[name][-1], max(told[name])) == (figure.end, most), name


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_free_is_of_the_block_at_its_address_with_its_bytes(path: Path) -> None:
    live: dict[int, Row] = {}
    for row in rows_of(path, "events/"):
        if row["kind"] == ALLOC:
            assert row["address"] not in live
            live[row["address"]] = row
        elif row["kind"] in (FREE, FREE_REQUESTED):
            block = live.pop(row["address"])
            assert (row["requested_bytes"], row["block_bytes"]) == (block["requested_bytes"], block["block_bytes"])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_parts_and_counts_of_meta_are_those_of_the_members(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        meta = json.loads(archive.read("meta.json"))
    assert meta["events"] == sum(meta["part_events"]) == len(rows_of(path, "events/"))
