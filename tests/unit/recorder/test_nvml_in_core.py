"""NVML read by the native core says what Python's own calls say, and asks Python only when something is new."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumem import abi
from gpumem.nvml import NOT_STARTED, Nvml, open_nvml
from gpumem.recorder.nvml_judgement import open_sampling
from gpumem.recorder.nvml_sampler import NvmlSampler
from gpumem.trace.entries import JournalEntries
from gpumem.trace.journal import Journal
from gpumem.vocabulary import DeviceOrdinal
from pretended_nvml import COMPUTE, GRAPHICS, HIDDEN, MIB, MPS, PretendedNvml, build_nvml_devices
from waits import own_threads, wait_until

pytestmark = pytest.mark.needs("compiler")

OWN = os.getpid()
UUIDS = {DeviceOrdinal(index): f"GPU-0000000{index}" for index in range(3)}
NOT_SUPPORTED, NO_PERMISSION = 3, 4
Readings = list[dict[str, int]]


class Recorder:
    """The core's recorder, but for the count of segment events, which a test sets."""

    def __init__(self) -> None:
        self.segment_events = 0

    def wait_segment_event(self, seen: int, timeout_ms: int) -> int:
        return self.segment_events

    def __getattr__(self, name: str) -> Any:
        return getattr(abi, name)


class Recorded:
    """A recording with a sampler over the pretended driver, read by the core or by Python."""

    def __init__(self, nvml: PretendedNvml, journal: Path, *, in_core: bool, interval_ms: int = 3_600_000) -> None:
        self.path = journal
        self.recorder = Recorder()
        abi.start_recording(journal, run_id=bytes(16), stacks=False)
        library: Any = nvml.module()
        self.sampler = NvmlSampler(
            self.recorder,
            interval_ms=interval_ms,
            open_library=lambda watch: open_nvml(library, watch=watch),
            open_sampling=open_sampling if in_core else None,
        )

    def readings(self) -> Readings:
        rows = self._entries().readings
        return [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]

    def facts(self) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in self._entries().facts.items()}

    def _entries(self) -> JournalEntries:
        with contextlib.closing(Journal(self.path)) as journal:
            entries = JournalEntries(journal)
            entries.update()
        return entries


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml_devices(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_folder: Path) -> Iterator[PretendedNvml]:
    pretended = PretendedNvml(nvml_folder)
    yield pretended
    pretended.hang(False)


@pytest.fixture
def record(nvml: PretendedNvml, tmp_path: Path) -> Iterator[Callable[..., Recorded]]:
    names = iter(f"{number}.gpumem.journal" for number in range(100))

    def start(**further: Any) -> Recorded:
        abi.stop_recording("exit")
        return Recorded(nvml, tmp_path / next(names), **further)

    yield start
    abi.stop_recording("exit")


def change_at_random(nvml: PretendedNvml, dice: random.Random) -> None:
    """One thing about one device becomes another."""
    device, which = dice.randrange(3), dice.choice((COMPUTE, COMPUTE, GRAPHICS, MPS))
    if dice.random() < 0.5:
        reserved = dice.choice((0, 100, 100, 100, 100, 100, 600)) * MIB
        used = dice.randrange(700) * MIB
        rest = dice.choice((0, reserved, reserved, reserved // 2))
        figures = [1000 * MIB, used, 1000 * MIB - used - rest, reserved]
        if dice.random() < 0.1:
            figures[dice.randrange(4)] = HIDDEN
        nvml.set_memory(device, *figures, code=NOT_SUPPORTED if dice.random() < 0.1 else 0)
        return
    pids = dice.sample((OWN, 7, 8, 9), dice.randrange(4))
    rows = [(pid, dice.choice((MIB, 5 * MIB, 70 * MIB, HIDDEN))) for pid in pids]
    nvml.set_list(device, which, rows, code=NO_PERMISSION if dice.random() < 0.2 else 0)


def play_at_random(nvml: PretendedNvml, recorded: Recorded, seed: int) -> tuple[Readings, dict[str, Any], int]:
    """Readings without their times, facts and the number of readings that Python judged."""
    dice = random.Random(seed)
    nvml.set_devices(3)
    for step in range(60):
        if step == 5:
            recorded.sampler.set_device_uuids(UUIDS)
        if step == 10:
            recorded.recorder.segment_events = 1
        change_at_random(nvml, dice)
        for _ in range(3):
            recorded.sampler.read_now()
    readings = [{name: value for name, value in row.items() if name != "time_ns"} for row in recorded.readings()]
    return readings, recorded.facts(), recorded.sampler.judgement_count


@pytest.mark.parametrize("seed", range(6))
def test_core_and_python_record_the_same(nvml: PretendedNvml, record: Callable[..., Recorded], seed: int) -> None:
    readings, facts, judged = play_at_random(nvml, record(in_core=True), seed)
    expected, expected_facts, all_judged = play_at_random(nvml, record(in_core=False), seed)
    assert (readings, facts) == (expected, expected_facts)
    assert len(readings) == 60 * 3 * 3
    assert all_judged == 180
    assert judged < all_judged


def test_python_is_not_asked_while_only_bytes_change(nvml: PretendedNvml, record: Callable[..., Recorded]) -> None:
    recorded = record(in_core=True)
    nvml.set_devices(2)
    for device in range(2):
        nvml.set_list(device, COMPUTE, [(OWN, MIB), (7, HIDDEN)])
    recorded.sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(1)], DeviceOrdinal(1): "GPU-00000000"})
    for used in range(1, 101):
        nvml.set_memory(1, 1000 * MIB, used * MIB, (900 - used) * MIB, 100 * MIB)
        nvml.set_list(1, COMPUTE, [(OWN, used), (7, HIDDEN)])
        recorded.sampler.read_now()
    readings = [row for row in recorded.readings() if row["device"] == 0]
    assert [row["used_bytes"] for row in readings] == [used * MIB for used in range(1, 101)]
    assert [row["process_bytes"] for row in readings] == list(range(1, 101))
    assert {row["unavailable"] for row in readings} == {1 << 5}
    assert recorded.sampler.judgement_count == 1


def test_absence_is_judged_until_it_means_one_thing(nvml: PretendedNvml, record: Callable[..., Recorded]) -> None:
    recorded = record(in_core=True)
    sampler = recorded.sampler
    sampler.read_now()
    sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(0)]})
    sampler.read_now()
    assert recorded.facts()["reading_unavailable:0"] == {"process_bytes": NOT_STARTED}
    recorded.recorder.segment_events = 1
    sampler.read_now()
    assert recorded.facts()["reading_unavailable:0"] == {"process_bytes": "process not listed (another pid namespace?)"}
    assert sampler.judgement_count == 3
    sampler.read_now()
    assert sampler.judgement_count == 3
    nvml.set_list(0, COMPUTE, [(OWN, MIB)])
    for _ in range(4):
        sampler.read_now()
    assert sampler.judgement_count == 5
    assert [row["process_bytes"] for row in recorded.readings()][-2:] == [MIB, MIB]


def test_pid_that_another_process_takes_over_counts_on(nvml: PretendedNvml, record: Callable[..., Recorded]) -> None:
    recorded = record(in_core=True)
    recorded.sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(0)]})
    for held in (3 * MIB, 9 * MIB):
        nvml.set_list(0, COMPUTE, [(OWN, MIB), (7, held)])
        recorded.sampler.read_now()
    assert [row["other_processes_bytes"] for row in recorded.readings()] == [3 * MIB, 9 * MIB]


def test_young_reading_is_not_repeated_by_either(nvml: PretendedNvml, record: Callable[..., Recorded]) -> None:
    for in_core in (True, False):
        recorded = record(in_core=in_core)
        nvml.set_list(0, COMPUTE, [(OWN, MIB)])
        recorded.sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(0)]})
        recorded.sampler.read_now()
        recorded.sampler.read_now(age_ns_least=10**15)
        recorded.sampler.read_now()
        recorded.sampler.read_now(age_ns_least=10**15)
        assert len(recorded.readings()) == 2


def test_thread_reads_at_the_interval_without_python_and_once_more_at_the_end(
    nvml: PretendedNvml, record: Callable[..., Recorded]
) -> None:
    nvml.set_list(0, COMPUTE, [(OWN, MIB)])
    recorded = record(in_core=True, interval_ms=1)
    recorded.sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(0)]})
    threads = own_threads()
    recorded.sampler.start()
    started = own_threads() - threads
    wait_until(lambda: len(recorded.readings()) >= 20, "the twentieth reading")
    asked_ns = time.monotonic_ns()
    recorded.sampler.stop()
    readings = recorded.readings()
    assert readings[-1]["time_ns"] >= asked_ns
    assert recorded.sampler.judgement_count == 1
    assert len(started) == 1
    assert not started & own_threads()
    recorded.sampler.read_now()
    assert recorded.readings() == readings


def test_end_does_not_wait_for_a_call_that_hangs_in_the_core(
    nvml: PretendedNvml, record: Callable[..., Recorded]
) -> None:
    nvml.set_list(0, COMPUTE, [(OWN, MIB)])
    recorded = record(in_core=True, interval_ms=1)
    recorded.sampler.set_device_uuids({DeviceOrdinal(0): UUIDS[DeviceOrdinal(0)]})
    threads = own_threads()
    recorded.sampler.start()
    started = own_threads() - threads
    assert len(started) == 1
    wait_until(lambda: len(recorded.readings()) >= 3, "the third reading")
    nvml.hang(True)
    wait_until(nvml.count_hanging, "a call that hangs")
    recorded.sampler.stop()
    assert nvml.count_hanging() == 1
    count = len(recorded.readings())
    nvml.hang(False)
    wait_until(lambda: not started & own_threads(), "the end of the sampler's thread")
    assert len(recorded.readings()) == count


def test_library_that_gives_no_functions_away_is_called_by_python(nvml: PretendedNvml) -> None:
    without: Any = nvml.module(gives_functions=False)
    opened = open_nvml(without)
    assert isinstance(opened, Nvml)
    assert open_sampling(opened) is None
