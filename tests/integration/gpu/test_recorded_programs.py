"""Programs on a real GPU are the same with and without gpumem, and what is recorded is what PyTorch itself says.

Bare and recorded runs of one program go on at the same time: neither may depend on how fast the other is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem.vocabulary import EventKind, TraceSource

pytestmark = [pytest.mark.gpu, pytest.mark.needs("torch", "compiler")]

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[2] / "sample_traces" / "scripts"
PROGRAMS = {
    "nine_steps": (SAMPLES / "nine_steps.py", 0),
    "gpt2_train": (SAMPLES / "gpt2_train.py", 0),
    "resnet50_train": (SAMPLES / "resnet50_train.py", 0),
    "out_of_memory": (SAMPLES / "out_of_memory.py", 1),
    "compiled_graph": (HERE / "compiled_graph.py", 0),
}
TIMEOUT_S = 240


def gpumem_program() -> str:
    """The installed gpumem command of this interpreter."""
    beside = Path(sys.executable).with_name("gpumem")
    return str(beside) if beside.exists() else shutil.which("gpumem") or "gpumem"


def start(*command: str | Path, folder: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_as_without_gpumem_and_is_recorded(name: str, tmp_path: Path) -> None:
    script, exit_code = PROGRAMS[name]
    target = tmp_path / "trace.gpumem"
    bare = start(sys.executable, script, folder=tmp_path)
    recorded = start(gpumem_program(), "run", "-o", target, script, folder=tmp_path)
    bare_output, bare_errors = bare.communicate(timeout=TIMEOUT_S)
    recorded_output, recorded_errors = recorded.communicate(timeout=TIMEOUT_S)
    assert (recorded.returncode, recorded_output) == (bare.returncode, bare_output), recorded_errors
    assert bare.returncode == exit_code, bare_errors
    trace = gpumem.open(target)
    assert trace.meta.source is TraceSource.NATIVE, trace.meta.notes
    kinds = [kind for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]
    assert kinds.count(EventKind.ALLOC) > 5
    assert (EventKind.OOM in kinds) == (name == "out_of_memory")
    assert trace.readings
    assert trace.meta.devices[0].torch_reserved_bytes_peak


def test_stacks_name_the_script_s_own_lines(tmp_path: Path) -> None:
    target = tmp_path / "trace.gpumem"
    script = SAMPLES / "nine_steps.py"
    done = start(gpumem_program(), "run", "-o", target, script, folder=tmp_path)
    _, errors = done.communicate(timeout=TIMEOUT_S)
    trace = gpumem.open(target)
    columns = ["kind", "stack", "requested_bytes"]
    stacks = [
        trace.stack_frames(stack)
        for batch in trace.event_batches(columns)
        for kind, stack, size in zip(*(batch[column].tolist() for column in columns), strict=True)
        if kind == EventKind.ALLOC and size == 1 << 30
    ]
    assert len(stacks) == 6, errors
    assert {(Path(frames[0].file).name, frames[0].function) for frames in stacks} <= {
        ("nine_steps.py", "zeros"),
        ("nine_steps.py", "main"),
    }
    assert [mark.name for mark in trace.marks][2] == "1 a on the GPU"


def test_memory_limit_is_kept_and_recorded(tmp_path: Path) -> None:
    program = (
        "import torch\nkept = []\ntry:\n"
        "    while True: kept.append(torch.empty(64 << 20, dtype=torch.uint8, device='cuda'))\n"
        "except torch.cuda.OutOfMemoryError: print(torch.cuda.memory_reserved())"
    )
    target = tmp_path / "trace.gpumem"
    arguments = ("run", "--memory-limit", "1GiB", "-o", target, "-c", program)
    output, errors = start(gpumem_program(), *arguments, folder=tmp_path).communicate(timeout=TIMEOUT_S)
    assert int(output) == 1 << 30, errors
    assert gpumem.open(target).meta.devices[0].memory_limit_bytes == 1 << 30


def test_readings_of_a_busy_program_are_taken_without_python(tmp_path: Path) -> None:
    program = (
        "import time, torch\nfrom gpumem.recorder import recording\n"
        "kept = torch.ones(5, device='cuda')\ntime.sleep(0.5)\n"
        "sampler = recording.current().sampler\njudged = sampler.judgement_count\nend = time.monotonic() + 2\n"
        "while time.monotonic() < end: torch.empty(1024, device='cuda')\n"
        "print(sampler.judgement_count - judged)"
    )
    target = tmp_path / "trace.gpumem"
    arguments = ("run", "--nvml-interval", "0.02", "-o", target, "-c", program)
    output, errors = start(gpumem_program(), *arguments, folder=tmp_path).communicate(timeout=TIMEOUT_S)
    # Once more each time that another process on the card comes or goes.
    assert int(output) <= 5, errors
    readings = gpumem.open(target).readings
    assert len(readings) > 80
    assert readings[-1].used_bytes is not None


def test_other_allocator_backend_gives_a_sentence_and_runs(tmp_path: Path) -> None:
    target = tmp_path / "trace.gpumem"
    program = "import torch; print(int(torch.ones(5, device='cuda').sum()))"
    done = start(
        gpumem_program(), "run", "-o", target, "-c", program, folder=tmp_path,
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )  # fmt: skip
    output, errors = done.communicate(timeout=TIMEOUT_S)
    assert (done.returncode, output) == (0, "5\n"), errors
    trace = gpumem.open(target)
    assert trace.meta.source is TraceSource.NONE
    assert any("takes no tracker" in note for note in trace.meta.notes)


def test_recording_equals_pytorch_s_own_history() -> None:
    done = subprocess.run(
        [sys.executable, HERE / "compare_with_history.py", "--timeout", str(TIMEOUT_S)], capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
