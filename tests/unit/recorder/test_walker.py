"""Walked stacks equal the interpreter's own, on every interpreter at hand, and are absent rather than wrong.

The comparisons run in walker_scenarios.py and walker_records.py, inside the interpreter that is to be checked.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem import abi
from interpreters import WALKED
from waits import SECONDS_AT_MOST

FOLDER = Path(__file__).parent
THIS = "this interpreter"
INTERPRETERS = [
    pytest.param(THIS, marks=pytest.mark.needs("stacks")),
    *(pytest.param(version, marks=pytest.mark.needs(f"python{version}")) for version in WALKED),
]
CHAINS_MIN = {
    "plain_functions": 100,
    "deep_recursion": 4,
    "generators": 190,
    "coroutines": 240,
    "classes_and_comprehensions": 320,
    "special_methods": 550,
    "constructors": 400,
    "callbacks_from_c": 20,
    "executed_functions": 3000,
    "garbage_collection": 1000,
    "tracing": 1000,
    "profiling": 1000,
    "monitoring": 1000,
    "signal_handlers": 100,
    "threads": 6000,
    "thread_without_python": 2,
    "thread_made_in_c": 20,
    "sub_interpreters": 9,
}


def program_of(interpreter: str) -> str:
    return sys.executable if interpreter == THIS else str(shutil.which(f"python{interpreter}"))


@functools.cache
def scenario_rows(interpreter: str) -> dict[str, dict[str, object]]:
    program = [program_of(interpreter), str(FOLDER / "walker_scenarios.py"), str(abi.library_path())]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS_AT_MOST)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (rows[-1:], done.stderr)
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("scenario", CHAINS_MIN)
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_walked_frames_equal_the_interpreters_own_in(interpreter: str, scenario: str) -> None:
    row = scenario_rows(interpreter)[scenario]
    if row["not_run"] is not None:
        assert (scenario, row["not_run"]) == ("monitoring", "sys.monitoring comes with 3.12")
        return
    assert row["different"] == []
    assert isinstance(row["chains"], int)
    assert row["chains"] >= CHAINS_MIN[scenario]


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_recorded_stacks_read_back_as_the_tracebacks_of_their_moment(interpreter: str, tmp_path: Path) -> None:
    program = [program_of(interpreter), str(FOLDER / "walker_records.py")]
    journal = tmp_path / "run.gpumem.journal"
    done = subprocess.run(
        [*program, abi.library_path(), journal], capture_output=True, text=True, timeout=SECONDS_AT_MOST
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["different"] == []
    assert row["records"] == row["expected"] > 16_000
    assert row["stacks"] > 8_000
    # Four threads made the same 4000 functions: what says the same has one id.
    assert 4_000 < row["codes"] < 4_100
    # 500 functions of one text have one stack (3.11 starts a function anew before it specialises the call).
    assert row["stacks_again"] <= 2


LOOKS_MIN = {
    "orders": 700,
    "deep_chains": 800,
    "more_chains_than_are_remembered": 2400,
    "one_generator_from_many_places": 700,
    "generators_that_come_and_go": 800,
    "coroutines": 1800,
    "code_that_ends": 3000,
    "threads": 10_000,
    "short_threads": 1200,
    "sub_interpreters": 1000,
    "forks": 700,
}


def check_looks(program: str, folder: Path, looks_min: dict[str, int], *more: Path) -> None:
    command = [program, "-W", "ignore::DeprecationWarning", FOLDER / "walker_interned.py"]
    done = subprocess.run(
        [*command, abi.library_path(), folder, *more], capture_output=True, text=True, timeout=2 * SECONDS_AT_MOST
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, ""), rows[-1:]
    assert [row["name"] for row in rows] == list(looks_min)
    for row in rows:
        assert row["different"] == []
        assert row["looks"] >= looks_min[row["name"]]
        # With the lock there is a stack always; without it there is none beside sub-interpreters.
        assert row["none_held"] == 0
        assert row["none"] == 0 or row["name"] == "sub_interpreters"


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_stacks_asked_for_again_and_again_are_the_interpreters_own(interpreter: str, tmp_path: Path) -> None:
    check_looks(program_of(interpreter), tmp_path, LOOKS_MIN)


@pytest.fixture(scope="module")
def threads_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("threads") / "walker_threads.so"
    compiler = next(found for name in ("c++", "g++", "clang++") if (found := shutil.which(name)))
    command = [compiler, "-x", "c++", "-shared", "-fPIC", FOLDER / "walker_threads.cpp", "-o", library]
    subprocess.run(command, check=True, timeout=SECONDS_AT_MOST)
    return library


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_stacks_of_threads_that_c_made_are_the_interpreters_own(
    interpreter: str, threads_library: Path, tmp_path: Path
) -> None:
    program = program_of(interpreter)
    version = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    # CPython 3.11 does not say which of a thread's states runs.
    states = 0 if version.startswith("Python 3.11") else 200
    looks_min = {"threads_of_c": 1200, "two_states_of_a_thread": states}
    check_looks(program, tmp_path, looks_min, threads_library)


def run_python(text: str, **environment: str) -> str:
    """What `text` prints in a fresh interpreter that may import gpumem; its end must be clean."""
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=SECONDS_AT_MOST, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.needs("stacks")
def test_known_chains_switch_the_walker_on() -> None:
    text = (
        "from gpumem import abi\n"
        "from gpumem.recorder.walker_check import start_walker\n"
        "before = abi.walk_current_stack()\n"
        "print(start_walker(), start_walker(), len(before), len(abi.walk_current_stack()))\n"
    )
    assert run_python(text) == "None None 0 2\n"


@pytest.mark.needs("stacks")
def test_a_chain_that_differs_switches_the_walker_off_for_good() -> None:
    text = (
        "import sys\n"
        "from gpumem import abi\n"
        "from gpumem.recorder import walker_check\n"
        "walked = abi.walk_current_stack\n"
        "abi.walk_current_stack = lambda: [(code, offset + 2) for code, offset in walked()]\n"
        "print(walker_check.start_walker())\n"
        "print(len(walked()))\n"
        "print(walker_check.start_walker())\n"
    )
    version = ".".join(map(str, sys.version_info[:3]))
    first, depth, second = run_python(text).splitlines()
    assert first == (
        f"Stacks are off: walked frames differ from sys._getframe in functions on CPython {version}; "
        "please report this."
    )
    assert depth == "0"
    assert second == "Stacks are off: they were switched off earlier in this process."


@pytest.mark.needs("stacks")
def test_only_the_innermost_1024_frames_are_kept() -> None:
    text = (
        "import sys\n"
        "from gpumem import abi\n"
        "sys.setrecursionlimit(9000)\n"
        "abi.start_walker()\n"
        "def recurse(depth):\n"
        "    return recurse(depth - 1) if depth else abi.walk_current_stack()\n"
        "chain = recurse(5000)\n"
        "print(len(chain), len({code for code, _ in chain[1:]}))\n"
    )
    assert run_python(text) == "1024 1\n"


@pytest.mark.needs("stacks")
def test_stacks_are_walked_while_site_packages_start_up(tmp_path: Path) -> None:
    customize = "import os\nfrom gpumem import abi\nprint(abi.start_walker(), len(abi.walk_current_stack()) > 5)\n"
    (tmp_path / "sitecustomize.py").write_text(customize)
    assert run_python("pass", PYTHONPATH=str(tmp_path)) == "None True\n"


@pytest.mark.needs("stacks")
def test_nothing_is_walked_once_the_interpreter_ends() -> None:
    text = """
import atexit, os
from gpumem import abi

class Late:
    def __del__(self, write=os.write, walk=abi._core().gm_walker_walk):
        write(1, b"ended %d\\n" % walk(None, None, 0))

abi.start_walker()
late = Late()
atexit.register(lambda: os.write(1, b"atexit %d\\n" % (len(abi.walk_current_stack()) > 0)))
"""
    assert run_python(text) == "atexit 1\nended 0\n"


@pytest.mark.needs("stacks")
def test_a_thread_may_walk_while_the_interpreter_ends() -> None:
    text = """
import threading
from gpumem import abi

abi.start_walker()
began = threading.Event()

def keep_walking():
    while True:
        abi.walk_current_stack()
        began.set()

for _ in range(4):
    threading.Thread(target=keep_walking, daemon=True).start()
print(began.wait(200))
"""
    assert run_python(text) == "True\n"


@pytest.mark.needs("stacks")
def test_a_forked_child_walks_its_stack() -> None:
    text = (
        "import os\n"
        "from gpumem import abi\n"
        "abi.start_walker()\n"
        "child = os.fork()\n"
        "os.write(1, b'%d ' % len(abi.walk_current_stack()))\n"
        "child and os.waitpid(child, 0)\n"
    )
    assert run_python(text) == "2 2 "
