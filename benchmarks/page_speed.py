"""How large a page is, how long it takes to make, and to show: every sample trace, and one of 10 million events.

    python benchmarks/make_trace.py --sample sample_traces/gpt2_train.gpumem --events 10000000 -o large.gpumem
    python benchmarks/page_speed.py [large.gpumem …] [--snapshot recording.pickle] [--runs 3]

First picture is Chromium's own first contentful paint; ready is when every figure near the top answers; all drawn is
when the figures further down are drawn too. CPU is processor time, which other work on the machine leaves as it is: to
make the page, and of Chromium's process for it until all is drawn. Bars: 8 MiB, 2 s to the first picture. With
--snapshot (a pickle that torch.cuda.memory._dump_snapshot wrote) both our page and PyTorch's viewer page of it
(torch.cuda._memory_viz trace_plot) are made and measured; the viewer loads its scripts from a content delivery network,
so that offline it shows nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chromium_pages import open_page, start_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SAMPLES = Path(__file__).parents[1] / "sample_traces"
PAGE_BYTES_BAR = 8 << 20
FIRST_PICTURE_BAR_MS = 2000
FIRST_PICTURE = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
DRAW_ALL = """async () => {
    GM.drawAll();
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now();
}"""

MANY = 100_000
DRAW_MANY = """(count) => {
    const shown = GM.view();
    const of = (value) => Float64Array.from({ length: count }, (_, at) => value(at));
    const stacks = shown.stacks.length;
    const some = (value) => ({ many: of(value) });
    const bands = {
        ...shown.bands, event_count: 2 * count, duration_ns: 2 * count,
        bands: {
            held_bytes: some((at) => 1e6 + (at % 7) * 1e5), requested_bytes: some(() => 1e6),
            stack: some((at) => at % stacks),
            start_event: some((at) => at), start_time_ns: some((at) => at),
            end_event: some((at) => at + 2000), end_time_ns: some((at) => at + 2000),
        },
        rest: { event: some((at) => at), time_ns: some((at) => at), held_bytes: some(() => 1e6) },
    };
    const moment = shown.heap.moments[0];
    const cells = {
        segment: some((at) => Math.floor(at / 100)), offset: some((at) => (at % 100) * 2e5),
        cell_bytes: some(() => 2e5), state: some((at) => at % 4), block_count: some((at) => Number(at % 4 < 2)),
        stack: some((at) => at % stacks), event: some((at) => at), is_pinning: some(() => 0), allocated_bytes: null,
    };
    const rows = Float64Array.from({ length: count / 100 });
    const segments = {
        address: { many: rows.map((_, at) => at * 2e7) }, segment_bytes: { many: rows.map(() => 2e7) },
        is_expandable: { many: rows }, is_private: { many: rows },
    };
    const heap = { ...shown.heap, moments: [{ ...moment, cells, segments, pinned: [], segment_count: rows.length }] };
    const column = GM.column;
    GM.column = (ref) => ref.many ?? column(ref);
    for (const ref of Object.values(bands.bands)) ref.column = ["f8", 0, count];
    Object.assign(shown, { bands, heap });
    const fastest = (id) => {
        const place = document.body.appendChild(document.createElement("div"));
        const drawing = GM.figures.find((one) => one.id === id).draw(place, GM.page);
        const times = Array.from({ length: 9 }, () => {
            const begun = performance.now();
            drawing.theme();
            return performance.now() - begun;
        });
        place.remove();
        return Math.min(...times);
    };
    return [fastest("bands"), fastest("heap")];
}"""


@dataclass(frozen=True)
class Measured:
    """A page: its bytes, seconds to make it, and milliseconds since it was asked for (medians)."""

    name: str
    page_bytes: int
    made_s: float
    made_cpu_s: float
    resident_bytes: int
    first_picture_ms: float
    ready_ms: float
    all_drawn_ms: float
    shown_cpu_ms: float


def measure(browser: Browser, words: list[str], name: str, page: Path, runs: int) -> Measured:
    """Makes a page with `words` and opens it `runs` times."""
    started = time.perf_counter()
    process = subprocess.Popen(words)
    _, status, usage = os.wait4(process.pid, 0)
    made_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} left with {process.returncode}")
    shown = [show(browser, page) for _ in range(runs)]
    first, ready, drawn, cpu = (statistics.median(column) for column in zip(*shown, strict=True))
    made_cpu_s = usage.ru_utime + usage.ru_stime
    return Measured(name, page.stat().st_size, made_s, made_cpu_s, usage.ru_maxrss << 10, first, ready, drawn, cpu)


def show(browser: Browser, page: Path) -> tuple[float, float, float, float]:
    """(first picture, ready, all drawn, processor time) of one opening, in milliseconds."""
    with open_page(browser, page) as opened:
        devtools = opened.tab.context.new_cdp_session(opened.tab)
        devtools.send("Performance.enable")
        ready_ms = float(opened.run("() => performance.getEntriesByName('gm-ready')[0].startTime"))
        drawn_ms = float(opened.run(DRAW_ALL))
        metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
        return float(opened.run(FIRST_PICTURE)), ready_ms, drawn_ms, 1000 * float(metrics["ProcessTime"])


def measure_many(browser: Browser, page: Path) -> str:
    """How long our canvases take to draw a great many rectangles, in a sentence."""
    with open_page(browser, page) as opened:
        bands_ms, heap_ms = opened.run(DRAW_MANY, MANY)
    return (
        f"{MANY:,} bands are drawn in {bands_ms:.0f} ms, {MANY:,} blocks and holes in {heap_ms:.0f} ms (fastest of 9)"
    )


def measure_viewer(browser: Browser, snapshot: Path, folder: Path) -> str:
    """PyTorch's viewer page of a snapshot, in a sentence."""
    page = folder / "viewer.html"
    started = time.perf_counter()
    words = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(snapshot), "-o", str(page)]
    subprocess.run(words, check=True)
    seconds = time.perf_counter() - started
    with open_page(browser, page, ready=False) as opened:
        opened.tab.wait_for_timeout(2000)
        asked = ", ".join(opened.requests) or "nothing"
        marks = opened.run("() => document.querySelectorAll('svg *, canvas').length")
    size = f"{page.stat().st_size / 2**20:.1f} MiB, made in {seconds:.1f} s"
    return f"PyTorch's viewer page: {size}; it asks for {asked}; offline it draws {marks} elements"


def report_words(trace: Path, page: Path) -> list[str]:
    return [sys.executable, "-m", "gpumem", "report", "--quiet", "-f", "-o", str(page), str(trace)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="more traces than the samples")
    parser.add_argument("--snapshot", type=Path, help="a pickle that PyTorch wrote")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    traces = [*sorted(SAMPLES.glob("*.gpumem")), *options.traces, *([options.snapshot] if options.snapshot else [])]
    is_met = True
    print("trace                   page    made     CPU  resident first pict.   ready all drawn      CPU")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = start_chromium(playwright)
        for trace in traces:
            page = Path(folder) / f"{trace.stem}.html"
            one = measure(browser, report_words(trace, page), trace.stem, page, options.runs)
            made = f"{one.made_s:5.1f} s {one.made_cpu_s:5.1f} s {one.resident_bytes / 2**20:5.0f} MiB"
            times = f"{one.first_picture_ms:8.0f} ms {one.ready_ms:6.0f} ms {one.all_drawn_ms:6.0f} ms"
            print(f"{one.name[:18]:18} {one.page_bytes / 2**20:5.2f} MiB {made} {times} {one.shown_cpu_ms:6.0f} ms")
            is_met &= one.page_bytes <= PAGE_BYTES_BAR and one.first_picture_ms <= FIRST_PICTURE_BAR_MS
        print(measure_many(browser, Path(folder) / f"{traces[0].stem}.html"))
        if options.snapshot:
            print(measure_viewer(browser, options.snapshot, Path(folder)))
        browser.close()
    print("bars met" if is_met else "bars NOT met")
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
