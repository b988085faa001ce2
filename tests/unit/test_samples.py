"""The recordings in sample_traces/: small, whole, and equal to what PyTorch said of the same runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpumem
from gpumem.analyses.summary import summarise_trace
from gpumem.units import GIB, MIB
from gpumem.vocabulary import TraceSource

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
NAMES = ("nine_steps", "gpt2_train", "resnet50_train", "out_of_memory")
SAMPLE_BYTES_MAX = 300 * 1024
BYTES_PER_EVENT_MAX = 6


@pytest.mark.parametrize("name", NAMES)
def test_sample_is_small_and_ended_whole(name: str) -> None:
    path = SAMPLES / f"{name}.gpumem"
    trace = gpumem.open(path)
    assert path.stat().st_size <= SAMPLE_BYTES_MAX
    assert (trace.meta.records_lost, trace.meta.running, trace.meta.stacks_off) == (0, False, None)
    assert trace.meta.ended_by == ("exit 1" if name == "out_of_memory" else "exit")
    assert trace.meta.devices[0].name == "NVIDIA H200"


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_those_that_pytorch_said(name: str) -> None:
    trace = gpumem.open(SAMPLES / f"{name}.gpumem")
    (device,) = summarise_trace(trace).devices
    facts = trace.meta.devices[0]
    assert trace.meta.block_bytes_known
    assert device.allocated_bytes is not None
    assert device.allocated_bytes.peak == facts.torch_allocated_bytes_peak
    assert device.reserved_bytes.peak == facts.torch_reserved_bytes_peak


@pytest.mark.parametrize("name", ["gpt2_train", "resnet50_train"])
def test_training_samples_take_few_bytes_an_event(name: str) -> None:
    path = SAMPLES / f"{name}.gpumem"
    assert path.stat().st_size / gpumem.open(path).event_count <= BYTES_PER_EVENT_MAX


def test_nine_steps_carry_the_figures_of_the_experiment() -> None:
    trace = gpumem.open(SAMPLES / "nine_steps.gpumem")
    assert [mark.name.split()[0] for mark in trace.marks][2:] == [str(step) for step in range(1, 10)]
    assert trace.meta.devices[0].torch_allocated_bytes_peak == 3 * GIB
    assert trace.meta.devices[0].torch_reserved_bytes_peak == 3 * GIB + 2 * MIB


def test_cupy_sample_was_served_by_our_own_allocator() -> None:
    trace = gpumem.open(SAMPLES / "nine_steps_cupy.gpumem")
    (device,) = summarise_trace(trace).devices
    assert trace.meta.source is TraceSource.GPUMEM
    assert device.allocated_bytes is not None
    assert (device.allocated_bytes.peak, device.reserved_bytes.peak) == (3 * GIB, 3 * GIB + 2 * MIB)
