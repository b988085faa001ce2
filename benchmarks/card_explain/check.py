"""Holds `gpumem explain --json` to what is known of the programs in this folder, on a real card.

    python3 check.py ledgers FIRST.gpumem SECOND.gpumem     closes at every mark; both runs differ by at most 8 MiB
    python3 check.py neighbours FOLDER                      two processes on one card, one of them recorded
    python3 check.py orphan FOLDER                          a child that outlives its parent is found and named

Each prints a few lines for the table and exits 1 when something is not as it should be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB = 1 << 20
DIFFERENCE_BYTES_MAX = 8 * MIB
HERE = Path(__file__).parent
TRAINING = Path("/tmp/training")


def explain(*arguments: str) -> dict[str, Any]:
    """The document that `gpumem explain` prints."""
    done = subprocess.run(["gpumem", "explain", "--json", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gpumem explain {arguments}: exit {done.returncode}: {done.stderr}")
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def marks_of(path: str) -> list[str]:
    import gpumem

    return [mark.name for mark in gpumem.open(path).marks]


def check_ledgers(first: str, second: str) -> int:
    wrong = 0
    names = marks_of(first)
    columns = f"{'process':>8} {'measured':>9} {'derived':>8} {'differ.':>8} {'context':>8} {'rest':>5}"
    print(f"{'mark':<22} {columns}  second run")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = [pool.submit(explain, path, "--at", f"mark:{name}") for name in names for path in (first, second)]
        documents = [one.result() for one in asked]
    for name, one, other in zip(names, documents[::2], documents[1::2], strict=True):
        closes = all(is_closed(document) for document in (one, other))
        apart = other["difference_bytes"] - one["difference_bytes"]
        is_right = closes and abs(apart) <= DIFFERENCE_BYTES_MAX and one["reading"]["event"] == one["event"]
        wrong += not is_right
        context = next((part["bytes"] for part in one["components"] if part["name"] == "cuda_context"), 0)
        figures = [one[f"{key}_bytes"] / MIB for key in ("process", "measured", "derived", "difference")]
        print(
            f"{name:<22} {figures[0]:8.0f} {figures[1]:9.1f} {figures[2]:8.1f} {figures[3]:8.0f} {context / MIB:8.0f} "
            f"{one['unexplained_bytes'] / MIB:5.0f}  {apart / MIB:+.0f} MiB{'' if is_right else '  WRONG'}"
        )
    last = explain(first, "--at", f"mark:{names[-1]}")
    for part in last["components"]:
        for child in part["children"] if part["name"] == "outside_allocator" else ():
            print(f"  outside, by {child['name']:<24} {child['bytes'] / MIB:+6.0f} MiB")
    print(f"ledgers: {len(names) - wrong} of {len(names)} marks close, and agree within 8 MiB with a second run")
    return wrong


def is_closed(document: dict[str, Any]) -> bool:
    if document["process_bytes"] is None:
        return False
    parts = sum(part["bytes"] for part in document["components"]) + document["unexplained_bytes"]
    sums = sum(document[f"{name}_bytes"] for name in ("measured", "derived", "difference"))
    return bool(parts == sums == document["process_bytes"])


def start(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, cwd=TRAINING, **pipes, **options)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def let_go(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def listed(document: dict[str, Any]) -> dict[int, int | None]:
    """Bytes by pid over all devices."""
    return {one["pid"]: one["bytes"] for device in document["devices"] for one in device["processes"]}


def nvidia_smi() -> dict[int, int]:
    """MiB by pid, as nvidia-smi says."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid): int(mebibytes) for pid, mebibytes in (line.split(",") for line in lines if line.strip())}


def check_neighbours(folder: str) -> int:
    neighbour = start([sys.executable, "holder.py", "3072"])
    read_line(neighbour)
    trace = f"{folder}/shared.gpumem"
    recorded = start(["gpumem", "run", "-f", "-q", "-o", trace, "holder.py", "1024", "shared"])
    read_line(recorded)
    time.sleep(0.3)
    said, live = nvidia_smi(), explain()
    found = {pid: (figure or 0) // MIB for pid, figure in listed(live).items()}
    own = next((pid for pid in found if pid != neighbour.pid), 0)
    running = explain("--pid", str(own))
    for process in (recorded, neighbour):
        let_go(process)
    ledger = explain(trace, "--at", "mark:shared")
    parts = {part["name"]: part["bytes"] for one in ledger["card"]["components"] for part in one["children"]}
    results = {
        "two processes, as nvidia-smi lists them": found == said and len(found) == 2,
        "the running recording's ledger closes": is_closed(running) and running["process_bytes"] == found[own] * MIB,
        "the trace's ledger closes": is_closed(ledger),
        "others' bytes are the neighbour's": parts.get("other_processes") == said.get(neighbour.pid, 0) * MIB,
        "own bytes are its own": parts.get("this_process") == said.get(own, 0) * MIB,
    }
    print(f"neighbours: nvidia-smi {said} MiB, gpumem {found} MiB, trace { ({k: v // MIB for k, v in parts.items()}) }")
    return report(results)


def check_orphan(folder: str) -> int:
    parent = start([sys.executable, "careless_parent.py"], start_new_session=True)
    child = int(read_line(parent))
    before = explain()
    parent.kill()
    parent.wait()
    time.sleep(0.5)
    try:
        after = explain()
    finally:
        os.kill(child, signal.SIGKILL)
    Path(folder, "orphan.json").write_text(json.dumps(after, indent=1))
    orphans = [one for one in after["findings"] if one["code"] == "surviving_child" and child in one["pids"]]
    results = {
        "no orphan while the parent lives": not any(one["code"] == "surviving_child" for one in before["findings"]),
        "found once the parent is dead": len(orphans) == 1,
        "with its bytes": bool(orphans) and orphans[0]["bytes"] == listed(after).get(child),
        "and the command to look at it": bool(orphans) and str(child) in (orphans[0]["next"] or ""),
    }
    print(f"orphan: {orphans[0]['text'] if orphans else [one['code'] for one in after['findings']]}")
    return report(results)


def report(results: dict[str, bool]) -> int:
    for name, is_right in results.items():
        print(f"  {'as it should be' if is_right else 'WRONG':<16} {name}")
    return sum(not is_right for is_right in results.values())


def main() -> None:
    check = {"ledgers": check_ledgers, "neighbours": check_neighbours, "orphan": check_orphan}[sys.argv[1]]
    sys.exit(1 if check(*sys.argv[2:]) else 0)


if __name__ == "__main__":
    main()
