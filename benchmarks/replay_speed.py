"""How many requests a second a replay serves on one core, beside a plain Python replayer.

    python benchmarks/replay_speed.py [--trace train.gpumem] [--events 3000000] [--runs 5]

The trace's balanced pairs are repeated (benchmarks/make_trace.py) and served as a what-if. Bar: 5 million requests a
second of process time on one core, under PyTorch's default settings and under max_split_size_mb. The plain Python
replayer serves the first of the same requests in the same run and must come to the same peak: quote the ratio.
How fast a recorded run is followed and checked: benchmarks/policy_rate.cpp, which is native throughout.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from make_trace import make_large_trace
from plain_replayer import PlainReplayer

from gpumem.abi.policy import EventColumns
from gpumem.abi.what_if import WhatIf, WhatIfOptions, WhatIfResult
from gpumem.importers.open import open_trace
from gpumem.simulate.replay import REPLAY_COLUMNS, join_events, replay_events
from gpumem.simulate.start_heap import handles_by_row, pools_by_row
from gpumem.trace.model import Trace
from gpumem.vocabulary import EventKind

BAR_REQUESTS_PER_SECOND = 5e6
CARD_BYTES = 141 << 30
PLAIN_REQUESTS = 200_000
SETTINGS = ("", "max_split_size_mb:64", "expandable_segments:True")
SAMPLE = Path(__file__).parents[1] / "sample_traces" / "gpt2_train.gpumem"


def gather_events(trace: Trace) -> EventColumns:
    """All events in memory, so that reading is not in what is measured."""
    return join_events([replay_events(batch, pools_recorded=True) for batch in trace.event_batches(REPLAY_COLUMNS)])


def measure_native(trace: Trace, events: EventColumns, settings: str) -> tuple[float, WhatIfResult]:
    """(process seconds, result) of serving the events under `settings`."""
    with WhatIf(WhatIfOptions(settings, CARD_BYTES)) as run:
        run.add_streams(handles_by_row(trace))
        run.add_pools(*pools_by_row(trace))
        started = time.process_time()
        run.feed(events)
        return time.process_time() - started, run.result()


def measure_plain(events: EventColumns, count: int) -> tuple[float, int, int]:
    """(process seconds, requests, peak of reserved bytes) of the plain replayer on the first events."""
    kind = events.kind[:count]
    is_alloc = kind == EventKind.ALLOC
    chosen = np.flatnonzero(is_alloc | (kind == EventKind.FREE) | (kind == EventKind.FREE_REQUESTED))
    columns = (is_alloc, events.address[:count], events.requested_bytes[:count], events.stream[:count])
    requests = list(zip(*(column[chosen].tolist() for column in columns), strict=True))
    replayer = PlainReplayer()
    started = time.process_time()
    served = replayer.serve(requests)
    return time.process_time() - started, served, replayer.reserved_bytes_peak


def slice_events(events: EventColumns, count: int) -> EventColumns:
    """The first events."""
    return EventColumns(*(getattr(events, name)[:count] for name in EventColumns.__slots__))


def report(name: str, rates: Sequence[float], plain: float) -> None:
    rate = statistics.median(rates)
    print(f"{name:<28} {rate / 1e6:6.2f} M requests/s  {rate / plain:5.0f} x plain Python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=SAMPLE)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    trace = make_large_trace(open_trace(options.trace), options.events)
    events = gather_events(trace)
    plain_rates: list[float] = []
    rates: dict[str, list[float]] = {settings: [] for settings in SETTINGS}
    for _ in range(options.runs):  # interleaved: the machine's other load falls on all
        seconds, served, peak = measure_plain(events, PLAIN_REQUESTS)
        plain_rates.append(served / seconds)
        for settings in SETTINGS:
            seconds, result = measure_native(trace, events, settings)
            rates[settings].append(result.requests / seconds)
    _, same = measure_native(trace, slice_events(events, PLAIN_REQUESTS), "")
    assert same.reserved_bytes_peak == peak, "the plain replayer follows the same rules"
    print(f"{len(events.kind):,} events of {options.trace.name} repeated; bar {BAR_REQUESTS_PER_SECOND / 1e6:.0f} M")
    print(f"{'plain Python':<28} {statistics.median(plain_rates) / 1e6:6.2f} M requests/s")
    for settings in SETTINGS:
        report(settings or "PyTorch's defaults", rates[settings], statistics.median(plain_rates))


if __name__ == "__main__":
    main()
