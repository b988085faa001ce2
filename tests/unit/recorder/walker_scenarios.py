"""Run by the interpreter to be checked: compares walked frames with sys._getframe wherever Python code can run.

usage: python walker_scenarios.py LIBRARY [NAME...]

Prints one line of JSON per scenario: its name, how many chains were compared, the first differences, and why it was
not run where this interpreter lacks what it needs. Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import walker_elsewhere
import walker_functions
import walker_watched
from walker_compare import NotHere, compare

from gpumem import abi

SCENARIOS: tuple[Callable[[], None], ...] = (
    walker_functions.plain_functions,
    walker_functions.deep_recursion,
    walker_functions.generators,
    walker_functions.coroutines,
    walker_functions.classes_and_comprehensions,
    walker_functions.special_methods,
    walker_functions.constructors,
    walker_functions.callbacks_from_c,
    walker_functions.executed_functions,
    walker_functions.garbage_collection,
    walker_watched.tracing,
    walker_watched.profiling,
    walker_watched.monitoring,
    walker_watched.signal_handlers,
    walker_elsewhere.threads,
    walker_elsewhere.thread_without_python,
    walker_elsewhere.thread_made_in_c,
    walker_elsewhere.sub_interpreters,
)


def main() -> None:
    library = Path(sys.argv[1])
    abi.library_path = lambda: library
    reason = abi.start_walker()
    assert reason is None, reason
    for scenario in SCENARIOS:
        if sys.argv[2:] and scenario.__name__ not in sys.argv[2:]:
            continue
        compare.begin(library)
        not_run = None
        try:
            scenario()
        except NotHere as absent:
            not_run = str(absent)
        row = {"name": scenario.__name__, "chains": compare.count, "different": compare.different[:3]}
        print(json.dumps({**row, "not_run": not_run, "different_count": len(compare.different)}), flush=True)


if __name__ == "__main__":
    main()
