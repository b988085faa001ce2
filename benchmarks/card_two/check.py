"""Holds the recordings of several devices and ranks to PyTorch's own figures and to their ledgers, on two real cards.

    python3 check.py devices FOLDER      one process on two devices, recorded either way
    python3 check.py ranks FOLDER        two ranks over NCCL, recorded together

Each prints a few lines for the table and exits 1 when something is not as it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
TRAINING = Path("/tmp/training")
EXPANDABLE = "expandable_segments:True"
MANNERS = (("native", ""), ("gpumem", ""), ("native", EXPANDABLE), ("gpumem", EXPANDABLE))
"""Allocators and their settings."""


def gpumem(*arguments: str) -> dict[str, Any]:
    """The JSON document that a command prints."""
    done = subprocess.run(["gpumem", *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"gpumem {arguments}: exit {done.returncode}: {done.stderr}")
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def say(what: str, is_right: bool) -> int:
    print(f"  {'as it should be' if is_right else 'WRONG'}  {what}")
    return not is_right


def check_devices(folder: Path) -> int:
    wrong = 0
    for allocator, settings in MANNERS:
        name = f"{allocator}{'_expandable' if settings else ''}"
        path = folder / f"two_devices_{name}.gpumem"
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings}
        words = ["gpumem", "run", "-f", "-q", "--allocator", allocator, "-o", str(path), "two_devices.py"]
        done = subprocess.run(words, cwd=TRAINING, env=environment, capture_output=True, text=True, check=False)
        wrong += say(f"{name}: what was copied between them is there", done.returncode == 0)
        if done.returncode:
            print(done.stderr)
            continue
        said = json.loads(done.stdout)
        summary = gpumem("summary", str(path))
        print(f"{name}: {len(summary['devices'])} devices, {summary['events']} events")
        for device, figures in zip(summary["devices"], said, strict=True):
            peaks = [device[name]["peak"] for name in ("allocated_bytes", "reserved_bytes")]
            expected = [figures[name][1] for name in ("allocated_bytes", "reserved_bytes")]
            wrong += say(
                f"device {device['device']}: peaks of allocated and reserved {peaks[0] / MIB:.1f} and "
                f"{peaks[1] / MIB:.1f} MiB, as PyTorch says",
                peaks == expected,
            )
        replayed = gpumem("replay", str(path))
        wrong += say("replay is exact on both", all(one["exact"] for one in replayed["devices"]))
        wrong += check_ledgers(path, devices=2)
    return wrong


def check_ledgers(path: Path, devices: int) -> int:
    """Whether the ledger of each device closes at each mark."""
    import gpumem as library

    names = [mark.name for mark in library.open(str(path)).marks]
    wrong, grown = 0, []
    for name in names:
        document = gpumem("explain", str(path), "--at", f"mark:{name}")
        ledgers = [document, *document.get("others", ())]
        closed = [is_closed(one) for one in ledgers if one["process_bytes"] is not None]
        wrong += not all(closed)
        outside = sum(one["difference_bytes"] for one in ledgers if one["process_bytes"] is not None)
        grown.append(f"{name} {outside / MIB:.0f}")
    print(f"  by difference, MiB: {', '.join(grown)}")
    return wrong + say(f"{len(names)} ledgers close", wrong == 0 and len(ledgers) == devices)


def is_closed(document: dict[str, Any]) -> bool:
    parts = sum(part["bytes"] for part in document["components"]) + document["unexplained_bytes"]
    sums = sum(document[f"{name}_bytes"] for name in ("measured", "derived", "difference"))
    return bool(parts == sums == document["process_bytes"])


def check_ranks(folder: Path) -> int:
    traces = folder / "ranks"
    words = ["gpumem", "run", "-f", "-q", "-o", f"{traces}/", "torchrun", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*words, "ranks.py"], cwd=TRAINING, check=True, stdout=subprocess.DEVNULL)
    found = gpumem("summary", str(traces))
    ranks = [one for one in found["ranks"] if one["rank"] is not None and one["reserved_bytes_peak"]]
    print(f"{len(found['traces'])} traces: {[(one['rank'], one['reserved_bytes_peak']) for one in found['ranks']]}")
    wrong = say("a trace for each of two ranks", sorted(one["rank"] for one in ranks) == [0, 1])
    for one in ranks:
        path = Path(one["path"])
        wrong += say(
            f"rank {one['rank']}: replay is exact", all(d["exact"] for d in gpumem("replay", str(path))["devices"])
        )
        wrong += check_ledgers(path, devices=1)
    return wrong


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    sys.exit(min(1, {"devices": check_devices, "ranks": check_ranks}[what](where)))
