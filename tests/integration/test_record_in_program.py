"""gpumem.record() inside a program that was started without us."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpumem.recorder.spec import RecordSpec
from gpumem.vocabulary import EventKind
from program_runs import Ended, gpumem_command, only_trace, run, run_python, run_recorded, traces_in, write_program

RECORDS = """
import gpumem
import allocator_stand_in as gpu
gpu.alloc(1)
with gpumem.record({path!r}) as recording:
    gpu.alloc(2)
    gpumem.mark("inside")
    gpu.alloc(3)
gpu.alloc(4)
gpumem.mark("outside")
print(recording.path.name, recording.path.exists())
"""


def test_trace_holds_what_happened_inside_and_is_complete_afterwards(tmp_path: Path) -> None:
    write_program(tmp_path, RECORDS.format(path="inside.gpumem"))
    ended = run_python(tmp_path, "train.py", "--lr", "1")
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"inside.gpumem True\n", b"")
    trace = only_trace(tmp_path)
    assert trace.event_count == 5
    assert [mark.name for mark in trace.marks] == ["inside"]
    assert trace.meta.ended_by == "exit"


def test_default_name_is_the_programs(tmp_path: Path) -> None:
    write_program(tmp_path, RECORDS.format(path="x").replace("record('x')", "record()"))
    assert run_python(tmp_path, "train.py").code == 0
    trace = only_trace(tmp_path)
    assert trace.path.name == f"train.{trace.meta.pid}.gpumem"


def test_two_recordings_after_one_another_are_two_traces(tmp_path: Path) -> None:
    write_program(tmp_path, RECORDS.format(path="first.gpumem") + RECORDS.format(path="second.gpumem"))
    assert run_python(tmp_path, "train.py").code == 0
    assert [trace.event_count for trace in traces_in(tmp_path).values()] == [5, 5]


def test_program_never_has_a_child_that_it_did_not_start(tmp_path: Path) -> None:
    look = "try: print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError: print('none')\n"
    write_program(tmp_path, f"import gpumem, os\nr = gpumem.record('a.gpumem').start()\n{look}r.stop()\n{look}")
    assert run_python(tmp_path, "train.py").stdout == b"none\nnone\n"


def test_start_and_stop_record_too_and_the_programs_end_stops(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, os\n"
        "first = gpumem.record('first.gpumem', stacks=False, nvml_interval=0).start()\n"
        "gpumem.step()\nprint(first.stop().name, flush=True)\n"
        "second = gpumem.record('second.gpumem').start()\n"
        "gpumem.step(); gpumem.step()\n"
        "if os.fork() == 0: raise SystemExit\n"
        "os.wait()\n",
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stdout) == (0, b"first.gpumem\n")
    traces = traces_in(tmp_path)
    assert [trace.event_count for trace in traces.values()] == [1, 2]
    assert traces["first.gpumem"].meta.stacks_off is not None


UNKNOWN_PYTHON = "Stacks are off: gpumem walks CPython 3.11 to 3.15, this is 3.19."


def test_python_whose_stacks_are_not_walked_is_recorded_and_told_why_there_are_none(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem\nfrom gpumem import abi\nimport allocator_stand_in as gpu\n"
        f"abi.start_walker = lambda: {UNKNOWN_PYTHON!r}\n"
        "with gpumem.record('a.gpumem', nvml_interval=0):\n"
        "    gpu.start_cuda()\n    gpumem.step()\n    gpu.alloc(3 << 20)\n",
    )
    assert run_python(tmp_path, "train.py") == Ended(0, b"", b"")
    trace = only_trace(tmp_path)
    assert (trace.event_count, trace.meta.stacks_off) == (3, UNKNOWN_PYTHON)
    shown = run(gpumem_command("summary", "a.gpumem"), tmp_path)
    assert (shown.code, shown.stderr) == (0, b"")
    lines = shown.stdout.decode().splitlines()
    assert lines.count(UNKNOWN_PYTHON) == 1
    assert "   3.00 MiB  100.0 %        1  (no Python stack: not recorded, or C++ alone)" in lines


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpumem.record('a.gpumem').start(); gpumem.record('a.gpumem').start()", "a.gpumem is being recorded already"),
        ("r = gpumem.record('a.gpumem').start(); r.start()", "This recording has been started already"),
        (
            "a = gpumem.record('a.gpumem').start(); b = gpumem.record('b.gpumem').start(); a.stop(); b.stop()",
            "a.gpumem, which was stopped before it; stop the inner recording first",
        ),
        ("gpumem.record('a.gpumem').stop()", "has not been started"),
        (
            "gpumem.record('old.gpumem').start()",
            "old.gpumem exists already; choose another name, or overwrite it with force=True.",
        ),
        ("gpumem.record('no/a.gpumem').start()", "no is not there; make the folder first, or choose another."),
        ("gpumem.record('.', force=True).start()", "is a folder, not a file; choose another name."),
        ("gpumem.record('/')", "/ is a folder, not a file; choose another name."),
        ("gpumem.record(nvml_interval=-1)", "-1 is no time between two NVML readings; it is 0, for none, to 3600 s."),
        ("gpumem.record(nvml_interval=float('nan'))", "nan is no time between two NVML readings"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    write_program(
        tmp_path,
        f"import gpumem\nfrom gpumem.errors import GpumemError\ntry:\n    {text}\n"
        "except GpumemError as error:\n    print(error)\n",
    )
    (tmp_path / "old.gpumem").write_text("old")
    ended = run_python(tmp_path, "train.py")
    assert ended.code == 0, ended.stderr
    assert sentence in ended.stdout.decode()


def test_record_in_a_program_from_standard_input_names_no_trace_after_the_dash(tmp_path: Path) -> None:
    text = "import gpumem\nwith gpumem.record() as recording:\n    gpumem.mark('on')\nprint(recording.path.name[:7])\n"
    ended = run([sys.executable, "-"], tmp_path, stdin=text.encode())
    assert (ended.code, ended.stdout) == (0, b"python.\n"), ended.stderr


def test_record_under_gpumem_run_is_a_part_of_the_runs_trace_between_two_marks(tmp_path: Path) -> None:
    looks = "import gpumem as g\nprint([mark.name for mark in g.open(recording.path).marks])\n"
    write_program(tmp_path, RECORDS.format(path="inside.gpumem") + looks)
    ended = run_recorded(tmp_path, "-o", "whole.gpumem", "train.py")
    marks = ["inside.gpumem", "inside", "inside.gpumem", "outside"]
    assert (ended.code, ended.stdout) == (0, f"whole.gpumem False\n{marks}\n".encode())
    said = [line for line in ended.note.splitlines() if "recorded already" in line]
    assert said == [
        (
            f"gpumem: this process is recorded already, into {tmp_path}/whole.gpumem; inside.gpumem is no file of its "
            "own but the part of it from mark:inside.gpumem to mark:inside.gpumem:2 (for the file, start the program "
            "without gpumem run)."
        )
    ]
    trace = only_trace(tmp_path)
    assert [mark.name for mark in trace.marks] == marks


def test_record_inside_record_is_a_part_of_the_outer_trace_and_said_once(tmp_path: Path) -> None:
    block = "    with gpumem.record('in.gpumem') as inner:\n        gpumem.step()\n"
    write_program(
        tmp_path, f"import gpumem\nwith gpumem.record('out.gpumem') as outer:\n{block}{block}print(inner.path)\n"
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stdout) == (0, f"{tmp_path}/out.gpumem\n".encode())
    assert ended.stderr.count(b"recorded already") == 1
    assert b"(for the file, stop that recording first)" in ended.stderr
    assert [mark.name for mark in only_trace(tmp_path).marks] == ["in.gpumem", "", "in.gpumem"] * 2


def test_recordings_that_threads_begin_at_once_are_one_with_parts(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, threading\n"
        "gate, begun = threading.Barrier(4), threading.Barrier(4)\n"
        "def work(number):\n"
        "    gate.wait()\n"
        "    one = gpumem.record(f'{number}.gpumem').start()\n"
        "    begun.wait()\n"
        "    if one._part is not None: one.stop()\n"
        "    begun.wait()\n"
        "    if one._sealer is not None: one.stop()\n"
        "threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n",
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stdout, ended.stderr.count(b"recorded already")) == (0, b"", 3)
    assert b"Traceback" not in ended.stderr
    assert len(only_trace(tmp_path).marks) == 6


def test_scope_shared_by_threads_is_left_by_the_thread_that_entered_it(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, threading\n"
        "shared, entered, left = gpumem.scope('shared'), threading.Event(), threading.Event()\n"
        "def work():\n"
        "    with shared:\n"
        "        entered.set()\n"
        "        left.wait()\n"
        "gpu, thread = gpumem.Allocator('simulated'), threading.Thread(target=work)\n"
        "thread.start()\n"
        "entered.wait()\n"
        "with gpumem.record('a.gpumem'):\n"
        "    with shared:\n"
        "        left.set()\n"
        "        thread.join()\n"
        "        gpu.alloc(512)\n"
        "    gpu.alloc(1024)\n",
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stderr) == (0, b"")
    trace = only_trace(tmp_path)
    batch = next(trace.event_batches(["requested_bytes", "scope", "kind"]))
    scopes = {
        asked: trace.scopes.names[scope]
        for asked, scope, kind in zip(*(batch[name].tolist() for name in batch.columns), strict=True)
        if kind == EventKind.ALLOC
    }
    assert scopes == {512: "shared", 1024: ""}


def test_program_on_standard_input_is_recorded_under_a_name_that_is_no_flag(tmp_path: Path) -> None:
    ended = run_python(tmp_path, "-", stdin=b"import gpumem\nwith gpumem.record(): gpumem.mark('a')\n")
    assert (ended.code, ended.stderr) == (0, b"")
    assert [name.split(".")[0] for name in traces_in(tmp_path)] == ["python"]


def test_marks_and_scopes_of_any_name_do_not_end_a_program_that_is_recorded(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem\nfor name in (1, None, b'x', '', 'a\\0b'):\n    with gpumem.scope(name): gpumem.mark(name)\n",
    )
    ended = run_recorded(tmp_path, "-q", "train.py")
    assert (ended.code, ended.stderr) == (0, b"")
    trace = only_trace(tmp_path)
    assert [mark.name for mark in trace.marks] == ["1", "None", "b'x'", "", "a"]
    assert list(trace.scopes.names)[1:4] == ["1", "None", "b'x'"]


@pytest.mark.parametrize("stderr", ["None", "open('/dev/full', 'w', buffering=1)", "closed"])
def test_program_without_stderr_records_as_any_other(tmp_path: Path, stderr: str) -> None:
    write_program(
        tmp_path,
        "import contextlib, gpumem, sys\n"
        "closed = open('/dev/null', 'w')\n"
        "closed.close()\n"
        f"kept, sys.stderr = sys.stderr, {stderr}\n"
        "with gpumem.record('out.gpumem'), gpumem.record('in.gpumem'): gpumem.step()\n"
        "odd, sys.stderr = sys.stderr, kept\n"
        "with contextlib.suppress(OSError): odd and odd.close()\n",
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stderr.count(b"Error")) == (0, 0)
    assert [mark.name for mark in only_trace(tmp_path).marks] == ["in.gpumem", "", "in.gpumem"]


def test_part_that_raises_or_is_left_by_a_forked_child_does_not_change_the_programs_end(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, os\n"
        "with gpumem.record('in.gpumem'):\n"
        "    if os.fork() == 0: raise SystemExit(0)\n"
        "    os.wait()\n"
        "    raise SystemExit(7)\n",
    )
    ended = run_recorded(tmp_path, "-o", "out.gpumem", "train.py")
    assert (ended.code, ended.stdout) == (7, b"")
    assert [mark.name for mark in only_trace(tmp_path).marks] == ["in.gpumem"] * 2


def test_exception_inside_still_completes_the_trace(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem\nwith gpumem.record('a.gpumem'):\n    gpumem.mark('x')\n    1 / 0\n")
    ended = run_python(tmp_path, "train.py")
    assert ended.stderr.endswith(b"ZeroDivisionError: division by zero\n")
    assert only_trace(tmp_path).event_count == 1


def test_children_that_live_on_do_not_hold_the_trace_up(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, os, signal\n"
        "with gpumem.record('a.gpumem') as recording:\n"
        "    gpumem.mark('x')\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        signal.pause()\n"
        "print(recording.path.exists())\n"
        "os.kill(child, signal.SIGKILL)\n",
    )
    ended = run_python(tmp_path, "train.py")
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"True\n", b"")
    assert only_trace(tmp_path).event_count == 1


def test_program_armed_without_gpumem_run_seals_itself(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem\ngpumem.mark('x')\nimport sys\nsys.exit(4)\n")
    spec = RecordSpec("ab" * 16, str(tmp_path), "armed", sealed_by_other=False)
    ended = run([sys.executable, "train.py"], tmp_path, further={"GPUMEM_RECORD": spec.to_json()})
    assert (ended.code, ended.stderr) == (4, b"")
    assert only_trace(tmp_path).path.name == "armed.gpumem"
    assert only_trace(tmp_path).event_count == 1


def test_record_in_a_program_armed_without_gpumem_run_names_the_variable(tmp_path: Path) -> None:
    write_program(tmp_path, RECORDS.format(path="inside.gpumem"))
    spec = RecordSpec("ab" * 16, str(tmp_path), "armed", sealed_by_other=False)
    ended = run([sys.executable, "train.py"], tmp_path, further={"GPUMEM_RECORD": spec.to_json()})
    assert (ended.code, ended.stdout) == (0, b"armed.gpumem False\n")
    assert b"(for the file, start the program without GPUMEM_RECORD)" in ended.stderr
    assert only_trace(tmp_path).path.name == "armed.gpumem"
