"""What `gpumem run` leaves behind: traces with events, marks, steps and scopes, of every process, however it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.trace.model import Trace
from gpumem.vocabulary import EventKind, MarkKind
from program_runs import (
    Ended,
    gpumem_command,
    only_trace,
    run,
    run_python,
    run_recorded,
    traces_in,
    write_program,
)
from waits import wait_until

ALLOCATES = """
import allocator_stand_in as gpu
gpu.start_cuda()
first = gpu.alloc(1000)
second = gpu.alloc(3 << 20)
gpu.free(first)
"""

TRAINS = """
import gpumem
import allocator_stand_in as gpu

@gpumem.scope("forward")
def forward():
    return gpu.alloc(1 << 20)

gpumem.mark("begin")
gpu.start_cuda()
with gpumem.scope("training"):
    for number in range(3):
        with gpumem.scope(f"step {number}"):
            activation = forward()
            gpu.free(activation)
        gpumem.step()
gpumem.mark("ende ✓")
"""


def kinds(trace: Trace) -> list[EventKind]:
    return [EventKind(kind) for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]


def scope_path(trace: Trace, scope: int) -> str:
    names = []
    while scope:
        names.append(trace.scopes.names[scope])
        scope = int(trace.scopes.parents[scope])
    return "/".join(reversed(names))


def test_program_whose_name_is_no_text_is_recorded_and_finished(tmp_path: Path) -> None:
    name = write_program(tmp_path, ALLOCATES, "caf\udce9.py")
    run_recorded(tmp_path, name, "arg\udcff")
    trace = only_trace(tmp_path)
    assert len(kinds(trace)) == 5
    assert trace.meta.program == "caf?.py"
    assert trace.meta.command_line[-1] == "arg?"


def test_events_and_program_are_in_the_trace(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES)
    ended = run_recorded(tmp_path, "train.py", "--lr", "3")
    trace = only_trace(tmp_path)
    assert kinds(trace) == [
        EventKind.SEGMENT_ALLOC,
        EventKind.ALLOC,
        EventKind.SEGMENT_ALLOC,
        EventKind.ALLOC,
        EventKind.FREE,
    ]
    assert trace.path.name == f"train.{trace.meta.pid}.gpumem"
    assert trace.meta.ended_by == "exit"
    assert list(trace.meta.command_line)[1:] == ["train.py", "--lr", "3"]
    assert {"python", "gpumem"} <= set(trace.meta.versions)
    [device] = trace.meta.devices
    assert (device.name, device.capacity_bytes) == ("Stand-in", 1 << 30)
    assert "5 events in" in ended.note
    assert "requested at most    3.00 MiB    0.3 % of 1.00 GiB" in ended.note
    assert "reserved at most     6.00 MiB    0.6 % of 1.00 GiB" in ended.note
    name = trace.path.name
    assert ended.note.endswith(f"gpumem: next: gpumem summary {name}\ngpumem: or on one page: gpumem report {name}\n")


@pytest.mark.needs("stacks")
def test_stacks_lead_into_the_script(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES)
    run_recorded(tmp_path, "-o", "with.gpumem", "train.py")
    run_recorded(tmp_path, "-o", "without.gpumem", "--no-stacks", "train.py")
    stacks = {}
    for name, trace in traces_in(tmp_path).items():
        [batch] = trace.event_batches(["kind", "stack"])
        stacks[name] = [
            [(Path(frame.file).name, frame.line) for frame in trace.stack_frames(stack)][-1:]
            for kind, stack in zip(batch["kind"].tolist(), batch["stack"].tolist(), strict=True)
            if kind == EventKind.ALLOC
        ]
    assert stacks["with.gpumem"] == [[("train.py", 4)], [("train.py", 5)]]
    assert stacks["without.gpumem"] == [[], []]
    assert traces_in(tmp_path)["without.gpumem"].meta.stacks_off is not None


def test_marks_steps_and_scopes_are_in_the_trace(tmp_path: Path) -> None:
    write_program(tmp_path, TRAINS)
    run_recorded(tmp_path, "train.py")
    trace = only_trace(tmp_path)
    marks = [(mark.kind, mark.name, mark.step, int(mark.event)) for mark in trace.marks]
    # Each step: a segment, a block, its free.
    assert marks == [
        (MarkKind.MARK, "begin", None, 0),
        (MarkKind.STEP, marks[1][1], 0, 4),
        (MarkKind.STEP, marks[2][1], 1, 8),
        (MarkKind.STEP, marks[3][1], 2, 12),
        (MarkKind.MARK, "ende ✓", None, 13),
    ]
    [batch] = trace.event_batches(["kind", "scope"])
    paths = [
        scope_path(trace, scope)
        for kind, scope in zip(batch["kind"].tolist(), batch["scope"].tolist(), strict=True)
        if kind in (EventKind.ALLOC, EventKind.FREE)
    ]
    assert paths == [
        path for number in range(3) for path in (f"training/step {number}/forward", f"training/step {number}")
    ]


def test_marks_cost_nothing_and_do_nothing_without_a_recording(tmp_path: Path) -> None:
    write_program(tmp_path, TRAINS.replace("gpu.start_cuda()", "gpu.start_cuda(); import sys; print('ok')"))
    assert run([*gpumem_command()[:1], "train.py"], tmp_path) == Ended(0, b"ok\n", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("ending", "code", "ended_by"),
    [
        ("import sys; sys.exit(3)", 3, "exit 3"),
        ("raise ValueError", 1, "exit 1"),
        ("import os; os._exit(5)", 5, "exit 5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "signal 9"),
        ("import os; os.abort()", -6, "signal 6"),
    ],
)
def test_trace_is_complete_however_the_program_ends(tmp_path: Path, ending: str, code: int, ended_by: str) -> None:
    write_program(tmp_path, ALLOCATES + ending)
    ended = run_recorded(tmp_path, "train.py")
    trace = only_trace(tmp_path)
    assert ended.code == code
    assert trace.meta.ended_by == ended_by
    assert len(kinds(trace)) == 5
    assert {"exit": f", exit code {code}\n"}.get(ended_by.split()[0], f", ended by {ended_by} (SIG") in ended.note


def test_every_process_that_uses_the_gpu_has_a_trace(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES, "worker.py")
    write_program(
        tmp_path,
        ALLOCATES
        + "import os, subprocess, sys\n"
        + "for rank in '12':\n"
        + "    subprocess.run([sys.executable, 'worker.py'], env=os.environ | {'RANK': rank})\n"
        + "subprocess.run([sys.executable, 'worker.py'])\n"
        + "subprocess.run([sys.executable, '-c', 'print(1)'])\n",
    )
    ended = run_recorded(tmp_path, "-o", "all.gpumem", "train.py")
    traces = traces_in(tmp_path)
    by_pid = f"all.{next(trace.meta.pid for name, trace in traces.items() if name.count('.') == 2)}.gpumem"
    names = ["all.gpumem", "all.rank1.gpumem", "all.rank2.gpumem"]
    assert sorted(name for name in traces if "rank" in name or name == "all.gpumem") == names
    assert len(traces) == 4
    assert all(len(kinds(trace)) == 5 for trace in traces.values())
    assert [traces[name].meta.rank for name in names] == [None, 1, 2]
    assert f"next: gpumem summary {' '.join([names[0], *sorted([by_pid, *names[1:]])])}\n" in ended.note


def test_forked_child_has_a_trace_of_its_own(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import gpumem, os\nimport allocator_stand_in as gpu\n"
        "gpumem.mark('parent')\n"
        "if os.fork() == 0:\n    gpu.start_cuda()\n    gpu.alloc(1)\n    gpumem.step()\n    os._exit(0)\n"
        "os.wait()\ngpu.start_cuda()\ngpu.alloc(2)\ngpu.alloc(3)\n",
    )
    ended = run_recorded(tmp_path, "-o", "run/", "train.py")
    assert "next: gpumem summary run\n" in ended.note
    assert "or on one page: gpumem report run\n" in ended.note
    traces = traces_in(tmp_path / "run")
    lengths = sorted(len(kinds(trace)) for trace in traces.values())
    assert lengths == [3, 5]
    [child] = [trace for trace in traces.values() if len(kinds(trace)) == 3]
    [mark] = child.marks
    assert (mark.kind, mark.step) == (MarkKind.STEP, 0)
    assert child.path.name.endswith(f".{child.meta.pid}.gpumem")
    assert list(child.meta.command_line)[1:] == ["train.py"]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_children_are_recorded(tmp_path: Path, method: str) -> None:
    write_program(
        tmp_path,
        "import multiprocessing\nimport allocator_stand_in as gpu\n"
        "def work():\n    gpu.start_cuda()\n    gpu.alloc(1)\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    workers = [context.Process(target=work) for _ in range(2)]\n"
        "    [worker.start() for worker in workers]\n    [worker.join() for worker in workers]\n",
    )
    run_recorded(tmp_path, "train.py")
    traces = traces_in(tmp_path)
    assert [len(kinds(trace)) for trace in traces.values()] == [2, 2]
    assert [trace.meta.ended_by for trace in traces.values()] == ["exit", "exit"]


def test_program_that_starts_python_is_recorded_by_its_first_process(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES)
    python = gpumem_command()[0]
    run_recorded(tmp_path, "-o", "shell.gpumem", "sh", "-c", f"{python} -c pass; {python} train.py")
    assert len(kinds(only_trace(tmp_path))) == 5


def test_process_that_outlives_the_program_is_sealed_in_the_end(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import os, time\nimport allocator_stand_in as gpu\n"
        "ready, tell = os.pipe()\n"
        "if os.fork():\n    os.read(ready, 1)\n    os._exit(0)\n"
        "gpu.start_cuda()\ngpu.alloc(1)\n"
        "for number in range(3):\n    os.close(number)\n"
        "os.write(tell, b'x')\n"
        "while not os.path.exists('go'):\n    time.sleep(0.01)\n",
    )
    ended = run_recorded(tmp_path, "train.py")
    assert "Still recording: process " in ended.note
    [journal] = tmp_path.glob("*.journal")
    (tmp_path / "go").touch()
    wait_until(lambda: not journal.exists(), "the end of the journal")
    assert len(kinds(only_trace(tmp_path))) == 2


def test_recording_survives_the_program_replacing_itself(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        ALLOCATES
        + "import os, sys\nif len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, *sys.argv, 'x'])\n",
    )
    run_recorded(tmp_path, "-o", "twice.gpumem", "train.py")
    traces = traces_in(tmp_path)
    assert len(traces) == 2
    assert [len(kinds(trace)) for trace in traces.values()] == [5, 5]


def test_nothing_recorded_leaves_no_file_and_says_why(tmp_path: Path) -> None:
    write_program(tmp_path, "print('no GPU')")
    ended = run_recorded(tmp_path, "train.py")
    assert ended.note.startswith("gpumem: Nothing was recorded of ")
    assert "gpumem demo" in ended.note or "never" in ended.note or "did not" in ended.note
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_quiet_says_nothing(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES)
    assert run_recorded(tmp_path, "-q", "-o", "quiet.gpumem", "train.py") == Ended(0, b"", b"")
    assert len(kinds(only_trace(tmp_path))) == 5


def test_killed_sealer_is_replaced(tmp_path: Path) -> None:
    kill_sealer = (
        "import os, pathlib, signal, sys, time\n"
        "def sealers():\n"
        "    for entry in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "        try:\n"
        "            words = (entry / 'cmdline').read_bytes().split(b'\\0')\n"
        "        except OSError:\n"
        "            continue\n"
        # The shell that starts a sealer has these words too, and another first one; killing it kills no sealer.
        "        if words[0] == os.fsencode(sys.executable) and b'gpumem.seal' in words"
        " and os.fsencode(os.getcwd()) in words: yield int(entry.name)\n"
        "for killed in range({times}):\n"
        "    while not (pids := list(sealers())): time.sleep(0.01)\n"
        "    os.kill(pids[0], signal.SIGKILL)\n"
        "    while pids[0] in sealers(): time.sleep(0.01)\n"
    )
    write_program(tmp_path, ALLOCATES + kill_sealer.format(times=1))
    ended = run_recorded(tmp_path, "-o", "once.gpumem", "train.py")
    assert ended.code == 0
    assert len(kinds(only_trace(tmp_path))) == 5
    write_program(tmp_path, ALLOCATES + kill_sealer.format(times=2))
    ended = run_recorded(tmp_path, "-o", "twice.gpumem", "train.py")
    assert "its sealer died twice (killed); finish it with:\n" in ended.note
    journal = tmp_path / "twice.gpumem.journal"
    assert f"gpumem import {journal} -o {tmp_path / 'twice.gpumem'}\n" in ended.note
    assert journal.exists()


def test_journals_that_stand_apart_become_traces_in_the_folder_asked_for(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES)
    command_line = (
        "from gpumem.recorder import output\n"
        "output.has_mapped_files = lambda folder: False\n"
        "from gpumem_cli.main import main\n"
        "main(['run', '-o', 'run/', 'train.py'])\n"
    )
    ended = run_python(tmp_path, "-c", command_line)
    assert len(kinds(only_trace(tmp_path / "run"))) == 5
    [said] = [line for line in ended.note.splitlines() if "cannot map files" in line]
    assert said.startswith(f"gpumem: {tmp_path / 'run'} cannot map files, so the journals stood in /")
    assert not Path(said.rpartition(" ")[2].rstrip(".")).exists()


def test_import_of_torch_is_heard_once_in_every_process(tmp_path: Path) -> None:
    write_program(tmp_path, "print('torch is imported')\n", "torch.py")
    write_program(
        tmp_path, "import torch, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n"
    )
    ended = run_recorded(tmp_path, "train.py")
    assert ended.without_note == Ended(0, b"torch is imported\n" * 2, b"")


def test_nested_run_and_gpumems_own_commands_are_apart(tmp_path: Path) -> None:
    write_program(tmp_path, ALLOCATES, "inner.py")
    command = gpumem_command("run", "-q", "-o", "inner.gpumem", "inner.py")
    write_program(tmp_path, ALLOCATES + f"import subprocess\nsubprocess.run({command!r}, check=True)\n")
    run_recorded(tmp_path, "-o", "outer.gpumem", "train.py")
    assert sorted(traces_in(tmp_path)) == ["inner.gpumem", "outer.gpumem"]


def test_memory_limit_and_interval_reach_the_process(tmp_path: Path) -> None:
    write_program(tmp_path, "import os; print(os.environ['GPUMEM_RECORD'])")
    ended = run_recorded(tmp_path, "--memory-limit", "24GiB", "--nvml-interval=0.5", "train.py")
    spec = json.loads(ended.stdout)
    assert (spec["memory_limit_bytes"], spec["nvml_interval_ms"], spec["stacks"]) == (24 << 30, 500, True)
