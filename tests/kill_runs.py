"""Kills a recording program at a random instant and checks its journal with a minimal reader of its own.

Owns: one kill run, for the test (ten) and benchmarks/kill_journal.py (a hundred). Reads the journal's bytes by the
layout of gpumem/native/journal_format.h and nothing of gpumem.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from waits import wait_until

DEVICE_COUNT = 4
RECORD = np.dtype(
    [
        ("time_ns", "<u8"),
        ("address", "<u8"),
        ("requested_bytes", "<u8"),
        ("block_bytes", "<u8"),
        ("split_bytes", "<u8"),
        ("stack", "<u4"),
        ("scope", "<u4"),
        ("thread", "<u2"),
        ("stream", "<u2"),
        ("pool", "<u2"),
        ("device", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("reserved", "<u2"),
        ("commit", "<u4"),
    ]
)
WINDOW = np.dtype(
    [
        ("state", "<u4"),
        ("kind", "<u4"),
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("first_record", "<u8"),
        ("taken", "<u8"),
        ("committed", "<u8"),
        ("part_offset", "<u8"),
        ("part_bytes", "<u8"),
    ]
)
HEADER_BYTES = 4096
WINDOW_COUNT_OFFSET = 76
RECORD_WINDOW = 1


@dataclass(frozen=True, slots=True)
class KillResult:
    """What one killed recording left: all of `wrong` is empty when the journal keeps its promise."""

    records: int
    returned: int
    holes: int
    wrong: list[str]


def run_and_kill(program: Path, folder: Path, seed: int, *, seconds_most: float) -> KillResult:
    """Kills `program` (kill_writer) within `seconds_most` seconds of its first records and checks what is there."""
    journal, counts = folder / f"{seed}.gpumem.journal", folder / f"{seed}.counts"
    writer = subprocess.Popen([program, journal, counts, str(DEVICE_COUNT)])
    try:
        wait_until(lambda: read_counts(counts).sum(), "the first record")
        time.sleep(random.Random(seed).uniform(0, seconds_most))
    finally:
        writer.send_signal(signal.SIGKILL)
        code = writer.wait()
    assert code == -signal.SIGKILL, f"the writer ended by itself with {code}"
    result = check_journal(journal, read_counts(counts))
    journal.unlink()
    counts.unlink()
    return result


def read_counts(path: Path) -> np.ndarray:
    """Calls that returned, by device; zeros before the file is there."""
    if not path.exists() or path.stat().st_size < 8 * DEVICE_COUNT:
        return np.zeros(DEVICE_COUNT, np.uint64)
    return np.fromfile(path, "<u8", DEVICE_COUNT)


def check_journal(path: Path, returned: np.ndarray) -> KillResult:
    """Compares the records of `path` with the calls that returned."""
    records, positions, holes = read_records(path)
    wrong: list[str] = []
    if np.any(records["commit"] != (positions & 0x7FFFFFFF) + 1):
        wrong.append("a commit word is not its place's")
    for device in range(DEVICE_COUNT):
        wrong += check_device(records[records["device"] == device], device, int(returned[device]))
    return KillResult(len(records), int(returned.sum()), holes, wrong)


def check_device(records: np.ndarray, device: int, returned: int) -> list[str]:
    """What is wrong with one device's records: call n recorded address n, and at most one call was under way."""
    wrong: list[str] = []
    calls = records["address"].astype(np.int64)
    if not np.array_equal(calls, np.arange(1, len(calls) + 1)):
        wrong.append(f"device {device}: records are missing, doubled or out of order")
    if not returned <= len(calls) <= returned + 1:
        wrong.append(f"device {device}: {returned} calls returned, {len(calls)} records are there")
    address = records["address"]
    torn = (records["requested_bytes"] != address * 3 + np.uint64(device)) | (records["block_bytes"] != ~address)
    if np.any(torn):
        wrong.append(f"device {device}: {int(torn.sum())} records are torn")
    # Every eighth call is a free in two halves: one free record, but for the last one if the kill fell between them.
    kinds = records["kind"][:returned]
    expected = np.where(address[:returned] % 8 == 0, 2, 1)
    different = np.flatnonzero(kinds != expected)
    if len(different) and not (list(different) == [returned - 1] and kinds[-1] == 3):
        wrong.append(f"device {device}: {len(different)} records have another kind")
    if np.any(np.diff(records["time_ns"].astype(np.int64)) < 0):
        wrong.append(f"device {device}: time decreases")
    return wrong


def read_records(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """(committed records, their event numbers, holes before the last of them in a window)."""
    records, positions, holes = [np.empty(0, RECORD)], [np.empty(0, np.int64)], 0
    with path.open("rb") as file:
        head = os.pread(file.fileno(), HEADER_BYTES, 0)
        assert head[:8] == b"GPUMEMJ1"
        window_count = int.from_bytes(head[WINDOW_COUNT_OFFSET : WINDOW_COUNT_OFFSET + 4], "little")
        windows = np.frombuffer(os.pread(file.fileno(), window_count * WINDOW.itemsize, HEADER_BYTES), WINDOW)
        for window in windows[windows["kind"] == RECORD_WINDOW]:
            slots = np.frombuffer(os.pread(file.fileno(), int(window["bytes"]), int(window["offset"])), RECORD)
            kept = np.flatnonzero(slots["commit"])
            records.append(slots[kept])
            positions.append(kept + int(window["first_record"]))
            holes += int(kept[-1]) + 1 - len(kept) if len(kept) else 0
    return np.concatenate(records), np.concatenate(positions), holes
