"""Reads NVML beside the program: at an interval, at marks, and soon after segments come and go.

Owns: the sampling thread and which device a reading belongs to. Must not know: allocators, PyTorch, how NVML is
called. Nothing here runs inside an allocator's call.

The thread is started below the `threading` module: the program's own list of threads stays as it is without us, and
the thread neither delays nor disturbs the interpreter's end.
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
from gpumem.nvml import MemoryFigures, Nvml, NvmlDevice, ProcessFigures, Unavailable, open_nvml
from gpumem.vocabulary import DeviceOrdinal

NOTE = "note:nvml"
"""The fact that says why there are no readings at all."""
READING_GAP_NS = 5_000_000
"""Least time between two readings that segment events ask for."""
STOP_CHECK_MS = 20
"""How long the thread may sleep without looking whether it shall end."""
STOP_TIMEOUT_S = 0.5
"""How long the program's end waits for the thread."""
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


class NvmlSampler:
    """Hands readings of every visible device to `sink`, whose clock is CLOCK_MONOTONIC."""

    def __init__(
        self, sink: ReadingSink, *, interval_ms: int, open_library: Callable[[], Nvml | Unavailable] = open_nvml
    ) -> None:
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
        self._stopped = False
        self._lock = _thread.allocate_lock()
        self._running = _thread.allocate_lock()
        self._thread_pid = 0

    def start(self) -> None:
        """Starts the sampling thread; NVML is opened there."""
        self._running.acquire()
        self._thread_pid = os.getpid()
        _thread.start_new_thread(self._run_to_end, ())

    def stop(self) -> None:
        """Ends sampling with a last reading, and waits for the thread: one that still runs while the interpreter
        finalises can crash the program. A forked child has no such thread.
        """
        if isinstance(self._nvml, Nvml):
            self.read_now()
        self._stopped = True
        if self._thread_pid == os.getpid() and self._running.acquire(timeout=STOP_TIMEOUT_S):
            self._running.release()

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()

    def _wait_segment_event(self, seen: int) -> int:
        """The count of segment events once it differs from `seen`, the interval is over or sampling was stopped."""
        count, left_ms = seen, self._interval_ms
        while count == seen and left_ms > 0 and not self._stopped:
            count = self._sink.wait_segment_event(seen, min(left_ms, STOP_CHECK_MS))
            left_ms -= STOP_CHECK_MS
        return count

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
        _wait_for_site()
        seen = self._sink.wait_segment_event(0, 0)
        self.read_now()
        while not self._stopped and isinstance(self._nvml, Nvml):
            count = self._wait_segment_event(seen)
            self._pause_until(self._last_reading_ns + READING_GAP_NS)
            if self._stopped:
                return
            seen = count
            self.read_now()

    def _pause_until(self, instant_ns: int) -> None:
        left_ns = instant_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)

    def _open(self) -> Nvml | Unavailable:
        if self._nvml is None:
            self._nvml = self._open_library()
            devices = self._nvml.read_devices() if isinstance(self._nvml, Nvml) else self._nvml
            if isinstance(devices, Unavailable):
                self._nvml = devices
                self._sink.record_fact(NOTE, json.dumps(f"There are no NVML readings: {devices.reason}."))
            else:
                self._devices = devices
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


def _wait_for_site() -> None:
    """Waits until the interpreter knows all its folders: gpumem.pth is read before other .pth files add theirs."""
    for _ in range(_SITE_WAITS):
        if hasattr(builtins, "help"):
            return
        time.sleep(0.001)


def _known(figure: int | Unavailable) -> int | None:
    return None if isinstance(figure, Unavailable) else figure
