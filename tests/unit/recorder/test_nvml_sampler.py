"""When the sampler reads, which device a reading belongs to, and how missing figures are written."""

from __future__ import annotations

import _thread
import json
import os
import threading
import time
from typing import Any

import pytest

from gpumem.nvml import NOT_STARTED, CallWatch, Nvml, Unavailable, open_nvml
from gpumem.recorder.nvml_sampler import HANGING_CALL_NS, NvmlSampler
from gpumem.vocabulary import DeviceOrdinal
from nvml_stand_in import MIB, Figures, ListedProcess, StandInDevice, StandInNvml, split_device
from waits import SECONDS_AT_MOST, own_threads, wait_until


class Sink:
    """Keeps what the sampler hands over; segment events come when a test says so."""

    def __init__(self) -> None:
        self.readings: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.records = 0
        self.segment_events = 0
        self.wakes = 0
        self.waits = 0
        self._changed = threading.Condition()

    def count_records(self) -> int:
        return self.records

    def record_reading(self, **values: Any) -> None:
        with self._changed:
            self.readings.append(values)
            self._changed.notify_all()

    def record_fact(self, key: str, json_text: str) -> None:
        self.facts[key] = json.loads(json_text)

    def wait_segment_event(self, seen: int, timeout_ms: int) -> int:
        with self._changed:
            wakes, self.waits = self.wakes, self.waits + 1
            self._changed.wait_for(lambda: self.segment_events != seen or self.wakes != wakes, timeout_ms / 1000)
            return self.segment_events

    def wake_segment_waiters(self) -> None:
        with self._changed:
            self.wakes += 1
            self._changed.notify_all()

    def add_segment_event(self) -> None:
        with self._changed:
            self.segment_events += 1
            self._changed.notify_all()

    def wait_for_readings(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.readings) >= count, timeout=SECONDS_AT_MOST)


def make_sampler(sink: Sink, *devices: StandInDevice, interval_ms: int = 3_600_000) -> NvmlSampler:
    return NvmlSampler(
        sink, interval_ms=interval_ms, open_library=lambda watch: open_nvml(StandInNvml(*devices), watch=watch)
    )


def test_reading_carries_its_time_and_the_count_of_events() -> None:
    sink = Sink()
    sink.records = 42
    before = time.monotonic_ns()
    make_sampler(sink, StandInDevice(compute=[ListedProcess(os.getpid(), 518 * MIB)])).read_now()
    [reading] = sink.readings
    assert before <= reading.pop("time_ns") <= time.monotonic_ns()
    assert reading == {
        "device": 0,
        "event": 42,
        "total_bytes": 1000 * MIB,
        "used_bytes": 300 * MIB,
        "free_bytes": 600 * MIB,
        "reserved_bytes": 100 * MIB,
        "process_bytes": 518 * MIB,
        "other_processes_bytes": 0,
    }
    assert sink.facts == {}


def test_missing_figure_is_none_and_its_reason_a_fact() -> None:
    sink = Sink()
    make_sampler(sink, StandInDevice()).read_now()
    assert sink.readings[0]["process_bytes"] is None
    assert sink.facts == {"reading_unavailable:0": {"process_bytes": NOT_STARTED}}


def test_identity_is_written_once_cuda_says_which_device_an_ordinal_is() -> None:
    sink = Sink()
    own = [ListedProcess(os.getpid(), MIB)]
    sampler = make_sampler(sink, StandInDevice(uuid="GPU-a"), StandInDevice(uuid="GPU-b", compute=own))
    sampler.read_now()
    assert "nvml_index:0" not in sink.facts
    sampler.set_device_uuids({DeviceOrdinal(0): "b"})
    sampler.read_now()
    assert (sink.facts["nvml_index:0"], sink.facts["driver_version"]) == (1, "580.159.04")


def test_unlisted_process_is_foreign_to_nvml_only_when_it_holds_memory_and_was_never_listed() -> None:
    sink = Sink()
    used, unused = StandInDevice(uuid="GPU-a"), StandInDevice(uuid="GPU-b")
    sampler = make_sampler(sink, used, unused)
    sampler.set_device_uuids({DeviceOrdinal(0): "a", DeviceOrdinal(1): "b"})
    sampler.read_now()
    assert sink.facts["reading_unavailable:0"] == {"process_bytes": NOT_STARTED}
    sink.segment_events = 1
    sampler.read_now()
    assert sink.facts["reading_unavailable:0"] == {"process_bytes": "process not listed (another pid namespace?)"}
    used.compute = [ListedProcess(os.getpid(), MIB)]
    sampler.read_now()
    assert sink.facts["reading_unavailable:1"] == {"process_bytes": NOT_STARTED}


def test_devices_take_the_programs_ordinals(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    first, second = StandInDevice(uuid="GPU-a"), StandInDevice(uuid="GPU-b")
    first.memory.free, second.memory.free = 1, 2
    sampler = make_sampler(sink, first, second)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    sampler.read_now()
    sampler.set_device_uuids({DeviceOrdinal(0): "a"})
    sampler.read_now()
    assert [(reading["device"], reading["free_bytes"]) for reading in sink.readings] == [(0, 2), (1, 1), (0, 1)]


def test_segment_event_wakes_the_sampler() -> None:
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice())
    sampler.start()
    sink.wait_for_readings(1)
    sink.add_segment_event()
    sink.wait_for_readings(2)
    sampler.stop()
    assert sink.readings[1]["time_ns"] - sink.readings[0]["time_ns"] >= 5_000_000


def test_readings_come_at_the_interval_until_stopped() -> None:
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice(), interval_ms=1)
    sampler.start()
    sink.wait_for_readings(4)
    sampler.stop()
    sampler.read_now()
    count = len(sink.readings)
    sampler.read_now()
    assert len(sink.readings) == count


def test_last_reading_comes_after_the_request_to_stop() -> None:
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice())
    sampler.start()
    sink.wait_for_readings(1)
    asked_ns = time.monotonic_ns()
    sampler.stop()
    assert len(sink.readings) == 2
    assert sink.readings[1]["time_ns"] >= asked_ns


def test_stop_waits_for_a_thread_that_is_late() -> None:
    sink = Sink()
    gate = threading.Lock()
    gate.acquire()

    def open_library(watch: CallWatch) -> Nvml | Unavailable:
        with gate:
            return open_nvml(StandInNvml(StandInDevice()), watch=watch)

    threads = own_threads()
    sampler = NvmlSampler(sink, interval_ms=3_600_000, open_library=open_library)
    sampler.start()
    wait_until(lambda: sink.waits, "the sampler's first wait")
    started = own_threads() - threads
    # Later than a driver that hangs would be waited for.
    late = threading.Timer(2 * HANGING_CALL_NS / 1e9, gate.release)
    late.start()
    sampler.stop()
    assert len(started) == 1
    assert not started & own_threads()
    assert len(sink.readings) == 2
    late.join()


def test_stop_does_not_wait_for_a_driver_that_hangs() -> None:
    sink = Sink()
    gate = threading.Lock()
    gate.acquire()
    entered = threading.Event()

    class HangingNvml(StandInNvml):
        def nvmlDeviceGetComputeRunningProcesses(self, handle: StandInDevice) -> list[ListedProcess]:  # noqa: N802
            entered.set()
            with gate:
                return super().nvmlDeviceGetComputeRunningProcesses(handle)

    threads = own_threads()
    sampler = NvmlSampler(
        sink, interval_ms=100, open_library=lambda watch: open_nvml(HangingNvml(StandInDevice()), watch=watch)
    )
    sampler.start()
    assert entered.wait(SECONDS_AT_MOST)
    started = own_threads() - threads
    assert len(started) == 1
    sampler.stop()
    assert gate.locked()
    gate.release()
    wait_until(lambda: not started & own_threads(), "the end of the sampler's thread")
    assert sink.readings == []


def test_program_that_may_have_no_more_threads_is_told_why_there_are_no_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice())
    sampler.start()
    sampler.read_now()
    sampler.stop()
    assert sink.readings == []
    reason = "this process may not start the thread that takes them (can't start new thread)"
    assert sink.facts == {"note:nvml": f"There are no NVML readings: {reason}."}


def test_thread_is_not_among_the_programs_threads() -> None:
    sink = Sink()
    names = [thread.name for thread in threading.enumerate()]
    sampler = make_sampler(sink, StandInDevice())
    sampler.start()
    sink.wait_for_readings(1)
    assert [thread.name for thread in threading.enumerate()] == names
    sampler.stop()


def test_young_reading_is_not_repeated() -> None:
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice())
    sampler.read_now(age_ns_least=10**15)
    sampler.read_now()
    sampler.read_now(age_ns_least=10**15)
    assert len(sink.readings) <= 2


def test_missing_driver_becomes_a_note() -> None:
    sink = Sink()

    def open_library(watch: CallWatch) -> Nvml | Unavailable:
        return open_nvml(StandInNvml(init_error="Driver Not Loaded"), watch=watch)

    NvmlSampler(sink, interval_ms=100, open_library=open_library).read_now()
    assert sink.readings == []
    assert sink.facts == {"note:nvml": "There are no NVML readings: NVML: Driver Not Loaded."}


def test_program_on_a_mig_instance_gets_the_figures_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    own = [ListedProcess(os.getpid(), 40 * MIB)]
    instance = StandInDevice(uuid="MIG-b", memory=Figures(160 * MIB, 50 * MIB, 100 * MIB, 10 * MIB), compute=own)
    sampler = make_sampler(sink, split_device({0: StandInDevice(uuid="MIG-a"), 3: instance}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    sampler.read_now()
    for uuid in ("b", "GPU-99999999-0000"):
        sampler.set_device_uuids({DeviceOrdinal(0): uuid})
        sampler.read_now()
    figures = [(one["device"], one["total_bytes"], one["used_bytes"], one["process_bytes"]) for one in sink.readings]
    assert figures == [(0, 160 * MIB, 50 * MIB, 40 * MIB)] * 3
    assert sink.facts == {"nvml_index:0": 0, "driver_version": "580.159.04"}


def test_device_that_nvml_does_not_list_is_said_to_have_no_readings() -> None:
    sink = Sink()
    sampler = make_sampler(sink, StandInDevice(uuid="GPU-a"), split_device({}))
    sampler.set_device_uuids({DeviceOrdinal(0): "GPU-a", DeviceOrdinal(1): "MIG-b"})
    sampler.read_now()
    sampler.read_now()
    assert [one["device"] for one in sink.readings] == [0, 0]
    assert sink.facts["note:nvml:1"] == (
        "There are no NVML readings of device 1: NVML lists no device of UUID MIG-b; this process may see no MIG "
        "instance of its device 1."
    )
    assert "note:nvml:0" not in sink.facts
