"""The recordings in sample_traces/: small, whole, and equal to what PyTorch said of the same runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpumem
from gpumem.analyses.summary import summarise_trace
from gpumem.units import GIB, MIB
from gpumem.vocabulary import TraceSource

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.gpumem"))
CUPY, OWN = "nine_steps_cupy", "nine_steps_own"
assert {CUPY, OWN} <= set(NAMES), "our allocator's recordings are among the samples"
NINE_STEPS = [name for name in NAMES if name.startswith("nine_steps")]
SAMPLE_BYTES_MAX = 300 * 1024
BYTES_PER_EVENT_MAX = 6


def test_every_sample_says_how_it_was_made() -> None:
    said = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(NAMES) >= 5
    for name in NAMES:
        assert f"| `{name}.gpumem` | `gpumem run " in said


@pytest.mark.parametrize("name", NAMES)
def test_the_user_s_frames_lie_in_the_folder_that_says_nothing_of_the_machine(name: str) -> None:
    trace = gpumem.open(SAMPLES / f"{name}.gpumem")
    program = trace.meta.program
    assert {file for file in trace.frames.files if file.endswith(f"/{program}")} == {f"/tmp/training/{program}"}


@pytest.mark.parametrize("name", NAMES)
def test_sample_is_small_and_ended_whole(name: str) -> None:
    path = SAMPLES / f"{name}.gpumem"
    trace = gpumem.open(path)
    assert path.stat().st_size <= SAMPLE_BYTES_MAX
    assert (trace.meta.records_lost, trace.meta.running, trace.meta.stacks_off) == (0, False, None)
    assert trace.meta.ended_by == ("exit 1" if name == "out_of_memory" else "exit")
    assert trace.meta.devices[0].name == "NVIDIA H200"


@pytest.mark.parametrize("name", [name for name in NAMES if name != CUPY])
def test_peaks_are_those_that_pytorch_said(name: str) -> None:
    trace = gpumem.open(SAMPLES / f"{name}.gpumem")
    (device,) = summarise_trace(trace).devices
    facts = trace.meta.devices[0]
    assert trace.meta.block_bytes_known
    assert device.allocated_bytes is not None
    assert facts.torch_allocated_bytes_peak
    assert device.allocated_bytes.peak == facts.torch_allocated_bytes_peak
    assert device.reserved_bytes.peak == facts.torch_reserved_bytes_peak


@pytest.mark.parametrize("name", ["gpt2_train", "resnet50_train"])
def test_training_samples_take_few_bytes_an_event(name: str) -> None:
    path = SAMPLES / f"{name}.gpumem"
    assert path.stat().st_size / gpumem.open(path).event_count <= BYTES_PER_EVENT_MAX


@pytest.mark.parametrize("name", NINE_STEPS)
def test_nine_steps_carry_the_figures_of_the_experiment(name: str) -> None:
    trace = gpumem.open(SAMPLES / f"{name}.gpumem")
    (device,) = summarise_trace(trace).devices
    assert [mark.name.split()[0] for mark in trace.marks][2:] == [str(step) for step in range(1, 10)]
    assert device.allocated_bytes is not None
    assert (device.allocated_bytes.peak, device.reserved_bytes.peak) == (3 * GIB, 3 * GIB + 2 * MIB)
    assert trace.meta.source is (TraceSource.NATIVE if name == "nine_steps" else TraceSource.GPUMEM)


def test_the_recordings_are_counted_where_their_exactness_is_claimed() -> None:
    said = (ROOT / "docs" / "how_exact.md").read_text(encoding="utf-8")
    snapshots = len(list((ROOT / "tests" / "recordings").glob("*.pickle.xz")))
    assert f"There are {snapshots + len(NAMES)} recordings: {snapshots} snapshots of PyTorch's" in said
    assert f"{len(NAMES)} programs recorded by `gpumem run`" in said


@pytest.mark.parametrize("document", sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]), ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), f"{document}: {link}"
