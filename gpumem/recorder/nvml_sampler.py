"""Reads NVML beside the program: at an interval, at marks, and soon after segments come and go.

Owns: the sampling thread and which device a reading belongs to. Must not know: allocators, PyTorch, how NVML is
called. Nothing here runs inside an allocator's call.

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

from gpumem.machine.devices import find_devices_by_uuid, find_visible_devices
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


OpenLibrary = Callable[[CallWatch], Nvml | Unavailable]
import_gate = ImportGate()
"""Passed by the import of NVML's module, which happens in the thread; whoever starts it has forks watched."""


def _open_installed(watch: CallWatch) -> Nvml | Unavailable:
    with import_gate:
        library = import_library()
    return library if isinstance(library, Unavailable) else open_nvml(library, watch=watch)


class NvmlSampler:
    """Hands readings of every visible device to `sink`, whose clock is CLOCK_MONOTONIC."""

    def __init__(self, sink: ReadingSink, *, interval_ms: int, open_library: OpenLibrary = _open_installed) -> None:
        self._sink = sink
        self._interval_ms = interval_ms
        self._open_library = open_library
        self._nvml: Nvml | Unavailable | None = None
        self._devices: list[NvmlDevice] = []
        self._uuids: Mapping[DeviceOrdinal, str] | None = None
        self._cuda_started_ns = 0
        self._is_listed = False
        self._identified: set[DeviceOrdinal] = set()
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
        self._sink.wake_segment_waiters()
        while not self._running.acquire(timeout=_STOP_AGAIN_S):
            # Once is not enough: the thread may have been about to wait.
            self._sink.wake_segment_waiters()
            if self._watch.has_lasted(HANGING_CALL_NS) or time.monotonic_ns() > deadline_ns:
                self._stopped = True
                return
        self._running.release()
        self._stopped = True
        # It has let go of the lock in Python, and still has to leave it.
        deadline_ns = time.monotonic_ns() + LEAVING_NS
        while self._thread_id and _has_thread(self._thread_id) and time.monotonic_ns() < deadline_ns:
            time.sleep(0.0001)

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

    def read_now(self, *, age_ns_least: int = 0) -> None:
        """One reading of every visible device, unless the last one is younger than `age_ns_least`."""
        with self._lock:
            if self._stopped or time.monotonic_ns() - self._last_reading_ns < age_ns_least:
                return
            nvml = self._open()
            if isinstance(nvml, Nvml):
                for ordinal, device in self._visible_devices().items():
                    self._read_device(nvml, ordinal, device)
            self._last_reading_ns = time.monotonic_ns()

    def _run(self) -> None:
        self._wait_for_site()
        seen = self._sink.wait_segment_event(0, 0)
        is_last = self._is_stopping
        if is_last and self._nvml is None:
            return
        self.read_now()
        while isinstance(self._nvml, Nvml) and not is_last:
            seen = self._sink.wait_segment_event(seen, 0 if self._is_stopping else self._interval_ms)
            is_last = self._is_stopping
            if not is_last:
                self._pause_until(self._last_reading_ns + READING_GAP_NS)
            self.read_now()

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
            self._nvml, self._devices = nvml, devices
        return self._nvml

    def _give_up(self, reason: str) -> Unavailable:
        self._nvml = Unavailable(reason)
        self._sink.record_fact(NOTE, json.dumps(f"There are no NVML readings: {reason}."))
        return self._nvml

    def _visible_devices(self) -> dict[DeviceOrdinal, NvmlDevice]:
        if self._uuids is not None:
            return find_devices_by_uuid(self._devices, self._uuids)
        # Until CUDA starts the program may still change the variable.
        return find_visible_devices(self._devices, os.environ)

    def _read_device(self, nvml: Nvml, ordinal: DeviceOrdinal, device: NvmlDevice) -> None:
        event = self._sink.count_records()
        time_ns = time.monotonic_ns()
        memory = nvml.read_memory(device)
        processes = nvml.read_processes(device, self._own_pids, own_expected=self._is_own_expected())
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
