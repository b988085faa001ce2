"""How exact replay is on every recording of the tests, and how near what-if figures come to the truth.

    python benchmarks/exactness.py

First the recorded runs: decisions reproduced to the byte, and the heap at the end against the file's. Then the same
requests on a pretended card under the recorded settings: all that differs is where new segments lie. Then pairs of
recordings of one program: one's requests under the other's settings against what the other recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from gpumem.analyses.replay import DeviceReplay, Wish, find_replay
from gpumem.importers.open_end import open_with_end
from gpumem.simulate.settings_line import split_line
from recorded_snapshots import FACTS, NAMES, SAMPLES, recorded_values, recording_path

PROGRAMS = (
    ("gpt", "gpt_expandable", "gpt_pow2", "gpt_split64"),
    ("streams23_0", "streams23_1", "streams23_2", "streams23_3"),
)
WITHOUT_EFFECT = {"pinned_num_register_threads": "1"}
"""A setting that changes nothing on the device: asks for a what-if under the recorded settings."""


def replay(path: Path, wish: Wish) -> DeviceReplay:
    opened = open_with_end(path)
    found = find_replay(opened.trace, wish, end_heaps=opened.end_heaps, pools_recorded=opened.pools_recorded)
    return found.devices[0]


def limit_of(path: Path) -> int | None:
    return FACTS.get(path.name.removesuffix(".pickle.xz"), {}).get("limit")


def report_recorded(paths: Sequence[Path]) -> None:
    decisions = blocks = 0
    for path in paths:
        check = replay(path, Wish({}, memory_limit_bytes=limit_of(path))).check
        assert check.exact, path
        decisions += check.decision_count
        blocks += check.heap.block_count if check.heap else 0
    print(f"{len(paths)} recorded runs exact: {decisions:,} decisions, {blocks:,} blocks at the end")


def report_same_settings(paths: Sequence[Path]) -> None:
    exact = 0
    off = []
    for path in paths:
        device = replay(path, Wish(WITHOUT_EFFECT, memory_limit_bytes=limit_of(path)))
        assert device.what_if is not None
        share = -device.what_if.saved_bytes / device.recorded.reserved_bytes_peak
        exact += device.what_if.saved_bytes == 0
        if device.what_if.saved_bytes:
            off.append(f"{path.name.split('.')[0]} {share:+.1%}")
    print(f"what-if under the recorded settings: {exact} of {len(paths)} peaks the same; {', '.join(off)}")


def report_pairs() -> None:
    print(f"{'recorded':<16}{'asked':<16}{'truth':>14}{'what-if':>14}  off")
    for program in PROGRAMS:
        for recorded in program:
            for asked in program:
                if recorded != asked:
                    report_pair(recorded, asked)


def report_pair(recorded: str, asked: str) -> None:
    own = settings_of(recorded)
    wanted = {"expandable_segments": "False"} if "expandable_segments" in own else {}
    if set(own) - set(settings_of(asked)) - set(wanted):
        return  # a setting that the other run does not have cannot be taken back
    found = replay(recording_path(recorded), Wish(wanted | settings_of(asked))).what_if
    assert found is not None
    truth, peak = FACTS[asked]["max_reserved"], found.figures.reserved_bytes_peak
    print(f"{recorded:<16}{asked:<16}{truth:>14,}{peak:>14,}  {peak / truth - 1:+.2%}")


def settings_of(name: str) -> dict[str, str]:
    line = recorded_values(name)["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    return dict(item.split(":", 1) for item in split_line(line))


def main() -> None:
    paths = [recording_path(name) for name in NAMES] + sorted(SAMPLES.glob("*.gpumem"))
    report_recorded(paths)
    report_same_settings(paths)
    report_pairs()


if __name__ == "__main__":
    main()
