"""Reads NVML beside the program: at an interval, at marks, and soon after segments come and go.

Owns: the sampling thread and which device a reading belongs to. Must not know: allocators, PyTorch, how NVML is
called. Nothing here runs inside an allocator's call.

The thread waits and reads in the native core, without the interpreter lock: to take that from the program costs the
program more than all else here, once for each call. It comes back when a figure is not of the kind judged before.
Where the core cannot have NVML's functions, all calls are Python's.

The thread is started below the `threading` module: the program's own list of threads stays as it is without us.

It is gone before the interpreter finalises: CPython frees the state of every other thread then, and up to 3.12 a
thread that is only starting, waits for the interpreter lock or gives it up at that time uses what was freed.
"""

from __future__ import annotations

import _thread
import builtins
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gpumem.abi.nvml import JudgedDevice, NvmlSampling, Outcome
from gpumem.machine.devices import find_closed_devices, find_devices_by_uuid, find_visible_devices
from gpumem.machine.processes import read_own_pids
from gpumem.nvml import (
    CallWatch,
    MemoryFigures,
    Nvml,
    NvmlDevice,
    ProcessFigures,
    Unavailable,
    import_library,
    open_nvml,
)
from gpumem.recorder.import_gate import ImportGate
from gpumem.recorder.nvml_judgement import find_lasting_judgement, raw_figures
from gpumem.vocabulary import DeviceOrdinal

NOTE = "note:nvml"
"""The fact that says why there are no readings at all."""
READING_GAP_NS = 5_000_000
"""Least time between two readings that segment events ask for."""
HANGING_CALL_NS = 500_000_000
"""How long the program's end waits for one call to the driver."""
THREAD_END_NS = 10_000_000_000
"""How long it waits for the thread otherwise: on a crowded machine a thread may take seconds to start or to end."""
LEAVING_NS = 1_000_000_000
"""How long it waits for the kernel's thread: one that ended long ago may have left its number to another."""
_STOP_AGAIN_S = 0.005
CUDA_START_NS = 2_000_000_000
"""Time that the start of CUDA may take until NVML lists the process, where no segment event says that it is over."""
_SITE_WAITS = 500


class ReadingSink(Protocol):
    """Where readings go: the native recorder, or a stand-in."""

    def count_records(self) -> int: ...
    def record_reading(
        self,
        *,
        device: int,
        time_ns: int,
        event: int,
        total_bytes: int | None,
        used_bytes: int | None,
        free_bytes: int | None,
        reserved_bytes: int | None,
        process_bytes: int | None,
        other_processes_bytes: int | None,
    ) -> None: ...
    def record_fact(self, key: str, json_text: str) -> None: ...
    def wait_segment_event(self, seen: int, timeout_ms: int) -> int: ...
    def wake_segment_waiters(self) -> None: ...


OpenSampling = Callable[[Nvml], NvmlSampling | None]
OpenLibrary = Callable[[CallWatch], Nvml | Unavailable]
import_gate = ImportGate()
"""Passed by the import of NVML's module, which happens in the thread; whoever starts it has forks watched."""


def _open_installed(watch: CallWatch) -> Nvml | Unavailable:
    with import_gate:
        library = import_library()
    return library if isinstance(library, Unavailable) else open_nvml(library, watch=watch)


class NvmlSampler:
    """Hands readings of every visible device to `sink`, whose clock is CLOCK_MONOTONIC.

    With `open_sampling` the sink is the core's recorder: readings of the kind judged before go there directly.
    """

    def __init__(
        self,
        sink: ReadingSink,
        *,
        interval_ms: int,
        open_library: OpenLibrary = _open_installed,
        open_sampling: OpenSampling | None = None,
    ) -> None:
        self._sink = sink
        self._interval_ms = interval_ms
        self._open_library = open_library
        self._open_sampling = open_sampling
        self._sampling: NvmlSampling | None = None
        self.judgement_count = 0
        """Readings for which Python was asked."""
        self._nvml: Nvml | Unavailable | None = None
        self._devices: list[NvmlDevice] = []
        self._uuids: Mapping[DeviceOrdinal, str] | None = None
        self._cuda_started_ns = 0
        self._is_listed = False
        self._identified: set[DeviceOrdinal] = set()
        self._missing: set[DeviceOrdinal] = set()
        self._own_pids = read_own_pids()
        self._reasons: dict[int, dict[str, str]] = {}
        self._last_reading_ns = 0
        self._is_stopping = False
        self._stopped = False
        self._lock = _thread.allocate_lock()
        self._watch = CallWatch()
        self._running = _thread.allocate_lock()
        self._thread_id = 0

    def start(self) -> None:
        """Starts the sampling thread; NVML is opened there. Where there can be no thread, there are no readings."""
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run_to_end, ())
        except RuntimeError as error:
            self._running.release()
            self._give_up(f"this process may not start the thread that takes them ({error})")

    def stop(self) -> None:
        """Ends sampling with a last reading by the thread; the thread is gone then, unless it hangs in the driver."""
        self._is_stopping = True
        deadline_ns = time.monotonic_ns() + THREAD_END_NS
        self._ask_to_end()
        while not self._running.acquire(timeout=_STOP_AGAIN_S):
            # Once is not enough: the thread may have been about to wait.
            self._ask_to_end()
            if self._is_hanging() or time.monotonic_ns() > deadline_ns:
                self._record_no_more()
                return
        self._running.release()
        self._record_no_more()
        # It has let go of the lock in Python, and still has to leave it.
        deadline_ns = time.monotonic_ns() + LEAVING_NS
        while self._thread_id and _has_thread(self._thread_id) and time.monotonic_ns() < deadline_ns:
            time.sleep(0.0001)

    def _ask_to_end(self) -> None:
        self._sink.wake_segment_waiters()
        if self._sampling is not None:
            self._sampling.stop()

    def _is_hanging(self) -> bool:
        """Whether a call to the driver has been under way for too long."""
        since_ns = 0 if self._sampling is None else self._sampling.call_since_ns()
        is_hanging = since_ns != 0 and time.monotonic_ns() - since_ns > HANGING_CALL_NS
        return is_hanging or self._watch.has_lasted(HANGING_CALL_NS)

    def _record_no_more(self) -> None:
        self._stopped = True
        if self._sampling is not None:
            self._sampling.give_up()

    def _run_to_end(self) -> None:
        self._thread_id = _thread.get_native_id()
        try:
            self._run()
        finally:
            self._running.release()

    def set_device_uuids(self, uuids: Mapping[DeviceOrdinal, str]) -> None:
        """Tells that CUDA has started and which device each ordinal of the program is."""
        self._cuda_started_ns = time.monotonic_ns()
        self._uuids = dict(uuids)
        if self._sampling is not None:
            self._sampling.forget()

    def read_now(self, *, age_ns_least: int = 0) -> None:
        """One reading of every visible device, unless the last one is younger than `age_ns_least`."""
        with self._lock:
            if self._stopped:
                return
            if self._sampling is not None:
                if self._sampling.sample(age_ns_least=age_ns_least) is not Outcome.JUDGE:
                    return
            elif time.monotonic_ns() - self._last_reading_ns < age_ns_least:
                return
            self._judge_now()

    def _run(self) -> None:
        self._wait_for_site()
        seen = self._sink.wait_segment_event(0, 0)
        is_last = self._is_stopping
        if is_last and self._nvml is None:
            return
        self.read_now()
        while isinstance(self._nvml, Nvml) and not is_last:
            if self._sampling is not None:
                is_last = self._run_natively(self._sampling)
                continue
            seen = self._sink.wait_segment_event(seen, 0 if self._is_stopping else self._interval_ms)
            is_last = self._is_stopping
            if not is_last:
                self._pause_until(self._last_reading_ns + READING_GAP_NS)
            self.read_now()

    def _run_natively(self, sampling: NvmlSampling) -> bool:
        """Lets the core read until a reading is to be judged, and judges that; whether it was the last one."""
        outcome = sampling.run(interval_ms=self._interval_ms, gap_ns=READING_GAP_NS)
        if outcome in (Outcome.JUDGE, Outcome.JUDGE_LAST):
            with self._lock:
                if not self._stopped:
                    self._judge_now()
        return outcome is not Outcome.JUDGE

    def _judge_now(self) -> None:
        """One reading of every visible device by Python. The lock is held."""
        nvml = self._open()
        if isinstance(nvml, Nvml):
            self.judgement_count += 1
            if self._sampling is None:
                for ordinal, device in self._visible_devices().items():
                    self._read_device(nvml, ordinal, device)
            else:
                self._judge_devices(nvml, self._sampling)
        self._last_reading_ns = time.monotonic_ns()

    def _wait_for_site(self) -> None:
        """Waits until the interpreter knows all its folders: gpumem.pth is read before other .pth files add theirs."""
        for _ in range(_SITE_WAITS):
            if self._is_stopping or hasattr(builtins, "help"):
                return
            time.sleep(0.001)

    def _pause_until(self, instant_ns: int) -> None:
        left_ns = instant_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)

    def _open(self) -> Nvml | Unavailable:
        if self._nvml is None:
            nvml = self._open_library(self._watch)
            devices = nvml.read_devices() if isinstance(nvml, Nvml) else nvml
            if isinstance(devices, Unavailable):
                return self._give_up(devices.reason)
            if self._open_sampling is not None and isinstance(nvml, Nvml):
                self._sampling = self._open_sampling(nvml)
            self._nvml, self._devices = nvml, devices
        return self._nvml

    def _give_up(self, reason: str) -> Unavailable:
        self._nvml = Unavailable(reason)
        self._sink.record_fact(NOTE, json.dumps(f"There are no NVML readings: {reason}."))
        return self._nvml

    def _visible_devices(self) -> dict[DeviceOrdinal, NvmlDevice]:
        if self._uuids is not None:
            found = find_devices_by_uuid(self._devices, self._uuids, os.environ)
            self._record_missing({ordinal: uuid for ordinal, uuid in self._uuids.items() if ordinal not in found})
            return found
        # Until CUDA starts the program may still change the variable.
        return find_visible_devices(self._devices, os.environ)

    def _record_missing(self, uuids: Mapping[DeviceOrdinal, str]) -> None:
        """Writes, once each, of which devices of the program NVML knows nothing."""
        for ordinal in sorted(uuids.keys() - self._missing):
            self._missing.add(ordinal)
            said = f"There are no NVML readings of device {ordinal}: NVML lists no device of UUID {uuids[ordinal]}"
            hidden = [device.number for device in find_closed_devices(self._devices)]
            if hidden:
                said += f"; this process may see no MIG instance of its device {' and '.join(hidden)}"
            self._sink.record_fact(f"{NOTE}:{ordinal}", json.dumps(f"{said}."))

    def _read_device(self, nvml: Nvml, ordinal: DeviceOrdinal, device: NvmlDevice) -> None:
        event = self._sink.count_records()
        time_ns = time.monotonic_ns()
        memory = nvml.read_memory(device)
        processes = nvml.read_processes(device, self._own_pids, own_expected=self._is_own_expected())
        self._record(nvml, ordinal, device, time_ns, event, memory, processes)

    def _judge_devices(self, nvml: Nvml, sampling: NvmlSampling) -> None:
        """A reading of every visible device that the core takes and Python judges; the core goes on by that."""
        generation = sampling.forget()
        is_final = self._uuids is not None
        judged = [
            self._judge_device(nvml, sampling, ordinal, device) for ordinal, device in self._visible_devices().items()
        ]
        own_expected = self._is_own_expected()
        # Until the process is listed, or must be, its absence means another thing from one moment to the next.
        is_final = is_final and (own_expected or self._is_listed)
        lasting = [device for device, was_expected in judged if device is not None and was_expected == own_expected]
        sampling.follow(generation, lasting if is_final and len(lasting) == len(judged) else [])

    def _judge_device(
        self, nvml: Nvml, sampling: NvmlSampling, ordinal: DeviceOrdinal, device: NvmlDevice
    ) -> tuple[JudgedDevice | None, bool]:
        """How the core may go on with the device, and whether this process was expected on it."""
        taken = sampling.read(nvml.handle(device))
        memory = nvml.judge_memory(device, raw_figures(taken))
        own_expected = self._is_own_expected()
        processes = nvml.judge_processes(raw_figures(taken), self._own_pids, own_expected=own_expected)
        self._record(nvml, ordinal, device, taken.time_ns, taken.event, memory, processes)
        lasting = find_lasting_judgement(nvml.handle(device), ordinal, taken, memory, processes, self._own_pids)
        return lasting, own_expected

    def _record(
        self,
        nvml: Nvml,
        ordinal: DeviceOrdinal,
        device: NvmlDevice,
        time_ns: int,
        event: int,
        memory: MemoryFigures,
        processes: ProcessFigures,
    ) -> None:
        self._is_listed |= isinstance(processes.process_bytes, int)
        if self._stopped:
            return  # the end did not wait: there may be another recording by now
        self._record_identity(nvml, ordinal, device)
        self._record_reasons(ordinal, memory, processes)
        self._sink.record_reading(
            device=ordinal,
            time_ns=time_ns,
            event=event,
            total_bytes=_known(memory.total_bytes),
            used_bytes=_known(memory.used_bytes),
            free_bytes=_known(memory.free_bytes),
            reserved_bytes=_known(memory.reserved_bytes),
            process_bytes=_known(processes.process_bytes),
            other_processes_bytes=_known(processes.other_processes_bytes),
        )

    def _is_own_expected(self) -> bool:
        """Whether this process must be listed on some device, but was not yet: its pids are then foreign to NVML."""
        if self._uuids is None or self._is_listed:
            return False
        has_segments = self._sink.wait_segment_event(0, 0) > 0
        return has_segments or time.monotonic_ns() - self._cuda_started_ns > CUDA_START_NS

    def _record_identity(self, nvml: Nvml, ordinal: DeviceOrdinal, device: NvmlDevice) -> None:
        """Writes NVML's number of a device, and the driver's version, once it is certain which device that is."""
        if self._uuids is None or ordinal in self._identified:
            return
        self._identified.add(ordinal)
        self._sink.record_fact(f"nvml_index:{ordinal}", json.dumps(device.index))
        version = nvml.read_driver_version()
        if not isinstance(version, Unavailable):
            self._sink.record_fact("driver_version", json.dumps(version))

    def _record_reasons(self, ordinal: DeviceOrdinal, memory: MemoryFigures, processes: ProcessFigures) -> None:
        """Writes why figures of this device are missing, as often as a reason changes."""
        figures = {
            "total_bytes": memory.total_bytes,
            "used_bytes": memory.used_bytes,
            "free_bytes": memory.free_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "process_bytes": processes.process_bytes,
            "other_processes_bytes": processes.other_processes_bytes,
        }
        known = self._reasons.setdefault(ordinal, {})
        missing = {name: figure.reason for name, figure in figures.items() if isinstance(figure, Unavailable)}
        if missing.items() - known.items():
            known.update(missing)
            self._sink.record_fact(f"reading_unavailable:{ordinal}", json.dumps(known))


def _has_thread(thread_id: int) -> bool:
    """Whether this process has a thread of that kernel number."""
    return os.path.exists(f"/proc/self/task/{thread_id}")


def _known(figure: int | Unavailable) -> int | None:
    return None if isinstance(figure, Unavailable) else figure
