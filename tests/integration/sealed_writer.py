"""A process that records numbered events into a journal with small windows, in bursts, and counts what it finished.

python sealed_writer.py JOURNAL COUNT_FILE

It records until it is killed or left alone. After its first windows it goes on slowly: on a crowded machine it would
otherwise outrun the sealer and the readers for as long as it lives.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

from journal_maker import JournalMaker

WINDOW_RECORDS = 1024
FAST_WINDOWS = 32


def main(journal: Path, count_file: Path) -> None:
    maker = JournalMaker(journal, window_records=WINDOW_RECORDS, window_capacity=4096)
    descriptor = os.open(count_file, os.O_RDWR)
    count = mmap.mmap(descriptor, 8)
    maker.fact("source", "native")
    parent = os.getppid()
    while os.getppid() == parent:
        maker.pairs(random.choice((1, 3, 50, 300)))
        count[:] = struct.pack("<Q", maker.raw.record_count)
        time.sleep(0.001 if maker.raw.record_count < FAST_WINDOWS * WINDOW_RECORDS else 0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
