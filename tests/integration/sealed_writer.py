"""A process that records numbered events into a journal with small windows, in bursts, and counts what it finished.

python sealed_writer.py JOURNAL COUNT_FILE SECONDS
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


def main(journal: Path, count_file: Path, seconds: float) -> None:
    maker = JournalMaker(journal, window_records=1024, window_capacity=4096)
    descriptor = os.open(count_file, os.O_RDWR)
    count = mmap.mmap(descriptor, 8)
    maker.fact("source", "native")
    end = time.monotonic() + seconds
    while time.monotonic() < end and maker.raw.record_count < 4000 * 1024:
        maker.pairs(random.choice((1, 3, 50, 300)))
        count[:] = struct.pack("<Q", maker.raw.record_count)
        time.sleep(0.001)
    maker.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
