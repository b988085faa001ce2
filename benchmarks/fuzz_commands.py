"""Runs commands on many hostile traces, journals and snapshots in one process: each must answer or say one sentence.

    python benchmarks/fuzz_commands.py [--kind trace|journal|snapshot] [--count 1000] [--first-seed 0]

Memory is limited to ADDRESS_BYTES, so that a huge count in a file that is believed is seen; a watchdog ends the process
with its stacks when one command takes longer than WATCHDOG_S. `seed` in a line names the file
(tests/hostile_commands.py makes it again).
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile_commands import HostileKind, commands_on, find_fault, make_hostile_file

WATCHDOG_S = 40
ADDRESS_BYTES = 6 << 30


def run_one(words: list[str]) -> str | None:
    """The fault of one command, an exception's last place included."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    try:
        return find_fault(words)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what is looked for)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=[kind.value for kind in HostileKind], default=HostileKind.TRACE.value)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    counted: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.count):
        with tempfile.TemporaryDirectory() as folder:
            path = make_hostile_file(HostileKind(options.kind), seed, Path(folder))
            for words in commands_on(path, seed, 4):
                fault = run_one(words)
                counted["faults" if fault else words[0]] += 1
                if fault:
                    print(f"seed {seed}: {' '.join(words[:1] + words[2:])}: {fault}", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{options.count} files of kind {options.kind}: {dict(counted)}, peak memory {peak_mib} MiB")
    sys.exit(bool(counted["faults"]))


if __name__ == "__main__":
    main()
