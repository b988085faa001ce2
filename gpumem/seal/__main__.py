"""`python -m gpumem.seal --folder DIR --run-id HEX`: the sealer of one run as a process of its own.

Owns: the process's manners (niceness, signals, environment). Must not know: anything about journals.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from gpumem.seal.run import RunSealer


def main() -> int:
    """Seals a run; words come on stdin, lines go to stdout."""
    parser = argparse.ArgumentParser(prog="python -m gpumem.seal", description="Seal the journals of a run.")
    parser.add_argument("--folder", type=Path, required=True, help="where the journals of the run are")
    parser.add_argument("--run-id", required=True, help="the run, 32 hexadecimal digits")
    options = parser.parse_args()
    os.environ.pop("GPUMEM_RECORD", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    RunSealer(options.folder, options.run_id.lower()).run(sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
