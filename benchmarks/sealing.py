"""Measures sealing: records a second, bytes an event, the time from a program's end to its trace, live memory.

    python benchmarks/sealing.py [--sample train.gpumem] [--windows 20]

A journal with that many windows of 262,144 records, a sample's requests served again and again (served_requests.py), is
sealed while it is open, its blocks filled in by replay; then it is closed with its last window half full and the stacks
that belong to it, and finished.
"""

from __future__ import annotations

import argparse
import resource
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the writers of journals are the tests'

from make_trace import STACKS, make_sample  # noqa: E402
from served_requests import make_served_trace  # noqa: E402

from gpumem.importers.journal import read_journal  # noqa: E402
from gpumem.importers.open import open_trace  # noqa: E402
from gpumem.seal.journal_sealer import JournalSealer  # noqa: E402
from gpumem.trace.journal_layout import RECORD, RECORD_WINDOW_BYTES, EntryKind  # noqa: E402
from gpumem.trace.model import EVENT_COLUMNS, Trace  # noqa: E402
from gpumem.vocabulary import NO_DEVICE  # noqa: E402
from journal_maker import JournalMaker  # noqa: E402

WINDOW_RECORDS = RECORD_WINDOW_BYTES // RECORD.itemsize


def write_journal(path: Path, trace: Trace) -> JournalMaker:
    """An open journal with the trace's events, and as many stacks as they name, 30 frames deep."""
    maker = JournalMaker(path, window_records=WINDOW_RECORDS, window_capacity=4096)
    maker.fact("source", "native")
    maker.fact("versions", {"torch": "2.11.0"})
    maker.fact("device:0", {"capacity_bytes": trace.meta.devices[0].capacity_bytes, "memory_limit_bytes": None})
    maker.raw.header["clock_monotonic_ns"] = 0
    stack_count = max(STACKS, len(trace.stacks.parents))
    table = b"\x80\x01" * 20
    codes = [maker.code(f"/home/anna/module_{n % 50}.py", f"function_{n}", n, table) for n in range(1500)]
    for number in range(stack_count):
        frames = [(codes[(number * 7 * (depth < 8) + depth * 31) % len(codes)], depth * 2) for depth in range(30)]
        maker.stack(frames)
    maker.entry(EntryKind.STREAM, struct.pack("<IIQ", 0, 0, 0))
    for name in ("main", "autograd"):
        maker.entry(EntryKind.THREAD, struct.pack("<Q", 1) + name.encode())
    name = maker.string("")
    for batch in trace.event_batches(list(EVENT_COLUMNS)):
        records = np.zeros(batch.count, RECORD)
        for column in EVENT_COLUMNS:
            records[column] = batch[column]
        records["address"][records["device"] == NO_DEVICE] = name
        maker.raw.append_rows(records)
    return maker


def watch_memory(stop: threading.Event, peaks: list[int]) -> None:
    """Keeps the greatest resident memory of this process."""
    while not stop.wait(0.02):
        text = Path("/proc/self/statm").read_text().split()
        peaks[0] = max(peaks[0], int(text[1]) * resource.getpagesize())


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure sealing.")
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--windows", type=int, default=20)
    options = parser.parse_args()
    sample = open_trace(options.sample) if options.sample else make_sample()
    trace = make_served_trace(sample, int((options.windows + 0.5) * WINDOW_RECORDS))
    with tempfile.TemporaryDirectory() as folder:
        maker = write_journal(Path(folder) / "a.gpumem.journal", trace)
        sealer = JournalSealer(maker.path)
        peaks, stop = [0], threading.Event()
        watcher = threading.Thread(target=watch_memory, args=(stop, peaks))
        watcher.start()
        start, cpu = time.perf_counter(), time.process_time()
        window_count = sealer.seal_full_windows()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        stop.set()
        watcher.join()
        record_count = window_count * WINDOW_RECORDS
        print(f"sealed {window_count} windows: {record_count / seconds / 1e6:.1f} M records a second, ", end="")
        print(f"{record_count / cpu_seconds / 1e6:.1f} M a CPU second; at most {peaks[0] >> 20} MiB resident")
        start = time.perf_counter()
        live = read_journal(maker.path)
        print(f"opened live, {live.event_count:,} events: {time.perf_counter() - start:.2f} s")
        maker.close()
        start = time.perf_counter()
        finished = sealer.finish("exit")
        print(f"from the end to the trace: {time.perf_counter() - start:.2f} s")
        file_bytes = finished.path.stat().st_size
        assert open_trace(finished.path).meta.block_bytes_known
        print(f"{finished.event_count:,} events: {file_bytes / finished.event_count:.2f} bytes an event")


if __name__ == "__main__":
    main()
