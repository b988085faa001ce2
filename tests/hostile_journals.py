"""Journals that are not well: values that no recorder wrote in header, windows, entries and records, misfit parts.

Everything comes of a random.Random, so a seed names a file. Must not know: what readers make of it.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gpumem import abi
from gpumem.errors import GpumemError
from gpumem.seal.journal_sealer import JournalSealer
from gpumem.trace.event_parts import WINDOW_KEY
from gpumem.trace.journal import part_of, target_of
from gpumem.trace.journal_layout import HEADER, HEADER_BYTES, RECORD, WINDOW_ENTRY, EntryKind, WindowState
from gpumem.trace.zip_parts import ReadOnlyFile, ZipWriter, find_members
from gpumem.vocabulary import EventKind
from hostile_snapshots import damaged_bytes
from hostile_traces import ODD_JSON, ODD_NUMBERS, spoilt_json, spoilt_once
from journal_maker import JournalMaker

Rows = npt.NDArray[np.void]
_WINDOWS_SPOILT = 12
_BLOCKS = [
    {
        "address": 1 << 40,
        "size": 1 << 20,
        "requested_size": 1000,
        "state": "active_allocated",
        "frames": [{"filename": "a.py", "line": 3, "name": "f"}],
    },
    {"size": 3 << 20, "state": "inactive"},
]
_FACTS: dict[str, Any] = {
    "program": {"program": "a.py", "command_line": ["a.py"], "rank": 0},
    "source": "native",
    "settings": "",
    "versions": {"torch": "2.11.0", "cuda": "12.8"},
    "device:0": {"capacity_bytes": 1 << 36, "uuid": "GPU-1", "nvml_index": 0, "name": "x", "memory_limit_bytes": None},
    "torch_end:0": {"allocated_bytes_end": 0, "allocated_bytes_peak": 5, "reserved_bytes_end": 7},
    "note:1": "a note",
    "reading_unavailable:0": {"process_bytes": "no permission"},
    "stacks_off": None,
    "initial_state": {
        "snapshot_event": 3,
        "devices": [0],
        "segments": [{"device": 0, "address": 1 << 40, "total_size": 4 << 20, "stream": 0, "blocks": _BLOCKS}],
    },
}


def make_hostile_journal(seed: int, path: Path) -> None:
    """Writes the journal that `seed` names to `path`; of some the first windows are sealed, into a part beside it."""
    dice = random.Random(seed)
    maker = JournalMaker(path)
    _fill(dice, maker)
    is_sealed = dice.random() < 0.5
    if is_sealed:
        maker.pairs(dice.choice((0, 64, 200)))
        with suppress(GpumemError):  # what is spoilt already cannot always be sealed
            sealer = JournalSealer(path)
            sealer.seal_full_windows()
            sealer.close()
    if dice.random() < 0.5:
        maker.close()
    else:
        maker.kill()
    part = part_of(target_of(path))
    if is_sealed and part.exists() and part.stat().st_size and dice.random() < 0.7:
        _spoil_part(dice, path, part)
    else:
        path.write_bytes(_spoilt_bytes(dice, path.read_bytes()))


def _spoilt_bytes(dice: random.Random, content: bytes) -> bytes:
    made = bytearray(content)
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        match dice.randrange(3):
            case 0:
                _change_field(dice, np.frombuffer(made, HEADER, 1))
            case 1:
                _change_window(dice, made)
            case _:
                made[dice.randrange(len(made))] = dice.randrange(256)
    return damaged_bytes(dice, bytes(made)) if dice.random() < 0.05 else bytes(made)


def _change_window(dice: random.Random, journal: bytearray) -> None:
    windows = np.frombuffer(journal, WINDOW_ENTRY, _WINDOWS_SPOILT, HEADER_BYTES)
    _change_field(dice, windows[dice.randrange(_WINDOWS_SPOILT) :][:1])


def _change_field(dice: random.Random, row: Rows) -> None:
    name = dice.choice(row.dtype.names or ())
    if row.dtype[name].kind == "u":
        row[name] = dice.choice(ODD_NUMBERS) % (1 << 8 * row.dtype[name].itemsize)


def _fill(dice: random.Random, maker: JournalMaker) -> None:
    """The entries, facts and records of a small program, some of them odd."""
    odd = dice.choice(("facts", "fact", "entries", "reading", "records", "records", "nothing"))
    for key, value in _FACTS.items():
        text = json.dumps(dice.choice(ODD_JSON) if odd == "fact" and dice.random() < 0.2 else value).encode()
        if odd == "facts" and dice.random() < 0.3:
            text = spoilt_json(dice, text)
        if key != "initial_state" or dice.random() < 0.6:
            maker.entry(EntryKind.FACT, len(key).to_bytes(4, "little") + key.encode() + text)
    code = maker.code("a.py", "f", 3, b"\x80\x00\xf0\x04\x05")
    stacks = [maker.stack([(code, 4 * number)]) for number in range(3)]
    maker.entry(EntryKind.STREAM, bytes(8) + (7).to_bytes(8, "little"))
    maker.entry(EntryKind.POOL, (1).to_bytes(8, "little") + bytes(8))
    maker.entry(EntryKind.THREAD, (99).to_bytes(8, "little") + b"main")
    maker.entry(EntryKind.SCOPE, bytes(4) + maker.string("step").to_bytes(4, "little"))
    maker.reading(total=1 << 36, used=1 << 30, free=63 << 30, process=1 << 29)
    if odd == "entries":
        for _ in range(3):
            payload = dice.randbytes(dice.choice((0, 4, 8, 12, 16, 20, 72, 100)))
            maker.entry(dice.choice(list(EntryKind)), payload, dice.choice(ODD_NUMBERS) % (1 << 32))
    if odd == "reading":
        field = dice.choice(("time_ns", "event", "total", "used", "free", "reserved", "process", "other"))
        maker.reading(device=dice.choice((0, 1, 254, 255)), **{field: dice.choice(ODD_NUMBERS) % (1 << 64)})
    records = _records(dice, stacks)
    for _ in range(dice.choice((1, 2, 8)) if odd == "records" else 0):
        _change_field(dice, records[dice.randrange(len(records)) :][:1])
    maker.raw.append_rows(records)
    maker.mark("half")
    maker.step(0)
    if dice.random() < 0.3 and maker.raw.record_count % 64 < 60:
        maker.raw.leave_uncommitted(dice.choice((1, 3)))
        maker.mark("end")


def _records(dice: random.Random, stacks: list[int]) -> Rows:
    """Records of a small program that frees some of what it takes."""
    rows = [(EventKind.SEGMENT_REQUEST, 0, 20 << 20, 0), (EventKind.SEGMENT_ALLOC, 1 << 41, 20 << 20, 0)]
    live: list[tuple[int, int]] = []
    for number in range(dice.choice((10, 70, 150))):
        if live and dice.random() < 0.45:
            address, byte_count = live.pop(dice.randrange(len(live)))
            kinds = (EventKind.FREE,) if dice.random() < 0.5 else (EventKind.FREE_REQUESTED, EventKind.FREE_COMPLETED)
            rows += [(kind, address, byte_count, 0) for kind in kinds]
        else:
            address, byte_count = (1 << 41) + number * 65536, dice.choice((512, 1000, 60000))
            live.append((address, byte_count))
            rows.append((EventKind.ALLOC, address, byte_count, -(-byte_count // 512) * 512))
    records = np.zeros(len(rows), RECORD)
    for name, column in zip(
        ("kind", "address", "requested_bytes", "block_bytes"), zip(*rows, strict=True), strict=True
    ):
        records[name] = column
    records["time_ns"] = abi.clock_ns() + 1000 * np.arange(len(rows))
    records["stack"] = [dice.choice(stacks) for _ in rows]
    return records


def _spoil_part(dice: random.Random, path: Path, part: Path) -> None:
    match dice.randrange(6):
        case 0:
            part.unlink()
        case 1:
            part.write_bytes(damaged_bytes(dice, part.read_bytes()))
        case 2 | 3:
            _spoil_member(dice, path, part)
        case _:
            journal = bytearray(path.read_bytes())
            _change_window(dice, journal)
            path.write_bytes(journal)


def _spoil_member(dice: random.Random, path: Path, part: Path) -> None:
    """Gives one member of the part odd values or another window under right checksums; the journal names its place."""
    file = ReadOnlyFile(part)
    members = find_members(file, file.byte_count)
    contents = [file.read_at(one.data_offset, one.byte_count) for one in members]
    file.close()
    place = dice.randrange(len(contents))
    opened = pq.ParquetFile(pa.BufferReader(contents[place]))
    table, window = opened.read(), opened.metadata.metadata[WINDOW_KEY]
    if dice.random() < 0.5:
        table = spoilt_once(dice, table)
    else:
        window = spoilt_json(dice, window)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.add_key_value_metadata({WINDOW_KEY: window})
        writer.write_table(table)
    contents[place] = bytes(sink.getvalue())
    part.unlink()
    growing = ZipWriter(part)
    made = [growing.append(one.name, content) for one, content in zip(members, contents, strict=True)]
    growing.close()
    journal = bytearray(path.read_bytes())
    windows = np.frombuffer(journal, WINDOW_ENTRY, 64, HEADER_BYTES)
    sealed = np.flatnonzero((windows["state"] == WindowState.SEALED) & (windows["part_bytes"] > 0))
    for row, one in zip(sealed.tolist(), made, strict=True):
        windows["part_offset"][row], windows["part_bytes"][row] = one.data_offset, one.byte_count
    path.write_bytes(journal)
