"""Records PyTorch's own allocator: waits for torch, waits for CUDA, attaches the tracker, says why where it cannot.

Owns: when what happens, once for each process, and that nothing of it ever fails the program. Must not know: how the
tracker is built or what torch's figures are called (torch_facts). torch is never imported from here.

At the end of the program's `import torch` the tracker's build starts beside it; when CUDA starts, before the first
allocation, the limit is set, the facts are taken and the tracker attached. Where PyTorch's allocator is in use already,
the tracker stays silent for each device until a snapshot taken at once, which becomes the initial state.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gpumem import abi
from gpumem.errors import TrackerUnavailable, UsageError
from gpumem.recorder import recording
from gpumem.recorder.import_hook import ImportHook
from gpumem.vocabulary import AllocatorChoice, DeviceOrdinal

if TYPE_CHECKING:  # loaded with torch, so that a process without it starts as fast as ever
    from gpumem.recorder.torch_facts import Json
    from gpumem.recorder.torch_tracker import TorchTracker
    from gpumem.recorder.tracker_build import TrackerBuild

INITIAL_FACT_BYTES_MAX = 1 << 20
"""Segments are spread over facts of about this much text: initial_state, initial_state:1, …"""


class _Hook:
    """What one process has done about torch; renewed in a forked child, where CUDA does not live on."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.import_hook: ImportHook | None = None
        self.memory_limit_bytes: int | None = None
        self.choice = AllocatorChoice.AUTO
        self.is_ours = False
        self.build: TrackerBuild | None = None
        self.tracker: TorchTracker | None = None
        self.is_queued = False
        self.has_cuda_started = False
        self.reason: str | None = None


_hook = _Hook()


def install(memory_limit_bytes: int | None = None, *, allocator: AllocatorChoice = AllocatorChoice.AUTO) -> None:
    """Has PyTorch's allocator recorded from the program's import of torch on, or from now if torch is there already.

    `memory_limit_bytes`: what PyTorch may take of each device, set when CUDA starts. `allocator`: GPUMEM puts ours in
    the place of PyTorch's own.
    """
    _hook.memory_limit_bytes = memory_limit_bytes
    _hook.choice = allocator
    torch = sys.modules.get("torch")
    if torch is not None:
        _prepare(torch)
    elif _hook.import_hook is None:
        _hook.import_hook = ImportHook("torch", _prepare)
        _hook.import_hook.install()


def attach_now() -> None:
    """Has the allocator of an imported torch recorded from now on, in the state it is in; install() without torch."""
    install(_hook.memory_limit_bytes, allocator=_hook.choice)


def why_not_recorded() -> str | None:
    """Why PyTorch's events are not in this process's recording, as a sentence; None when they are."""
    if _hook.tracker is not None or (_hook.is_ours and _hook.has_cuda_started):
        return None
    if _hook.reason is not None:
        return _hook.reason
    if "torch" not in sys.modules:
        return "The program did not import torch."
    return "The program did not use CUDA through PyTorch."


def record_end_facts() -> None:
    """Writes what PyTorch itself counts at the end, limits and settings that changed, and why nothing was recorded."""
    torch = sys.modules.get("torch")
    reason = why_not_recorded()
    if reason is not None and not recording.has_own_allocator():
        _record("note:torch", reason)
    if torch is None or not _hook.has_cuda_started:
        return
    from gpumem.recorder import torch_facts

    for device, facts in torch_facts.read_devices(torch).items():
        _record(f"device:{device}", facts)
        end = torch_facts.read_end(torch, device)
        if end is not None:
            _record(f"torch_end:{device}", end)
    _record("settings", torch_facts.read_settings(torch))


def _prepare(torch: ModuleType) -> None:
    """Starts the build and asks torch to be called when CUDA starts; at once if it has."""
    try:
        is_wanted = _is_cuda_awaited(torch)
    except Exception as error:  # noqa: BLE001 - must not fail the program's import of torch
        _hook.reason = _unexpected(error)
        return
    if is_wanted:
        torch.cuda._lazy_call(_when_cuda_starts)


def _is_cuda_awaited(torch: ModuleType) -> bool:
    """Whether torch is to be asked to call when CUDA starts, the build under way by then."""
    with _hook.lock:
        if getattr(getattr(torch, "version", None), "cuda", None) is None:
            version = getattr(torch, "__version__", "of unknown version")
            _hook.reason = f"PyTorch's allocator is not recorded: torch {version} was built without CUDA."
            return False
        if not hasattr(torch.cuda, "_lazy_call"):
            _hook.reason = f"PyTorch's allocator is not recorded: torch {torch.__version__} is not known to gpumem."
            return False
        is_first = not _hook.is_queued
        _hook.is_queued = True
        if is_first and _hook.choice is AllocatorChoice.GPUMEM and not _hook.is_ours:
            _hook.is_ours = _plug_in(torch)
        if is_first and _hook.build is None and _hook.tracker is None and not _hook.is_ours:
            _start_build(torch)
        return is_first


def _plug_in(torch: ModuleType) -> bool:
    """Puts our allocator in the place of PyTorch's; whether that is done. PyTorch's own is recorded where it is not."""
    from gpumem.recorder import torch_allocator, torch_facts

    try:
        settings = torch_facts.read_settings(torch)
        wrong = torch_allocator.plug_in(torch, settings=settings)
    except (TrackerUnavailable, UsageError) as error:
        _record("note:allocator", str(error))
        return False
    if wrong is not None:
        _record("note:allocator", wrong)
    return True


def _start_build(torch: ModuleType) -> None:
    from gpumem.recorder.torch_install import find_torch_in
    from gpumem.recorder.tracker_build import plan_tracker, start_build

    try:
        installed = find_torch_in(Path(next(iter(torch.__path__))))
        if installed is None:
            raise TrackerUnavailable(f"PyTorch's allocator is not recorded: {torch} has no version.py beside it.")
        _hook.build = start_build(plan_tracker(installed))
    except (TrackerUnavailable, OSError) as error:
        _hook.reason = str(error)


def _when_cuda_starts() -> None:
    """Called by torch while it starts CUDA: an exception from here would fail the program's own call."""
    with _hook.lock:
        _hook.is_queued = False
        try:
            _record_cuda(sys.modules["torch"])
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the trace and not into the program
            _hook.reason = _unexpected(error)
            _record("note:torch", _hook.reason)


def _record_cuda(torch: ModuleType) -> None:
    if not recording.is_armed() or not recording.ensure_started():
        return
    from gpumem.recorder import own_allocators, torch_facts

    _hook.has_cuda_started = True
    if _hook.memory_limit_bytes is not None:
        _limit_memory(torch, _hook.memory_limit_bytes)
    devices = torch_facts.read_devices(torch)
    for device, facts in devices.items():
        _record(f"device:{device}", facts)
    recording.note_torch_devices()
    _record("settings", torch_facts.read_settings(torch))
    recording.add_versions(torch_facts.read_versions(torch))
    recording.note_cuda_started(
        {DeviceOrdinal(device): str(facts["uuid"]) for device, facts in devices.items() if facts["uuid"]}
    )
    if _hook.is_ours:
        own_allocators.record_torch_devices(devices)
        _record("source", "gpumem")
        recording.note_own_allocator()
        return
    try:
        _attach(torch, len(devices))
    except TrackerUnavailable as error:
        _hook.reason = str(error)
        _record("note:torch", _hook.reason)


def _limit_memory(torch: ModuleType, limit_bytes: int) -> None:
    from gpumem.recorder import torch_facts

    try:
        torch_facts.limit_memory(torch, limit_bytes)
    except RuntimeError as error:
        _record("note:memory_limit", f"The memory limit was not set: {error}")


def _attach(torch: ModuleType, device_count: int) -> None:
    """Attaches the tracker unless it is, and records the state of an allocator that is in use."""
    from gpumem.recorder import torch_facts
    from gpumem.recorder.torch_tracker import TorchTracker

    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        raise TrackerUnavailable(
            "PyTorch's allocator is not recorded: PYTORCH_NO_CUDA_MEMORY_CACHING is set, so there is none; unset it."
        )
    tracker = _hook.tracker
    if tracker is None:
        if _hook.build is None:
            raise TrackerUnavailable(_hook.reason or "PyTorch's allocator is not recorded: no tracker was built.")
        tracker = TorchTracker(_hook.build.wait())
    if torch.cuda.is_initialized() or torch_facts.is_allocator_in_use(torch, device_count):
        with tracker.silent_until_snapshot(device_count):
            _attach_once(tracker)
            position = abi.count_records()
            segments = torch_facts.take_snapshot(torch)
        _record_initial_state(torch_facts.reduce_segments(segments), position, device_count)
    else:
        _attach_once(tracker)
    _hook.reason = None
    _record("source", "native")


def _attach_once(tracker: TorchTracker) -> None:
    if _hook.tracker is None:
        tracker.attach(abi.function_address("gm_record_event"))
        _hook.tracker = tracker


def _record_initial_state(segments: Sequence[Json], position: int, device_count: int) -> None:
    """Writes the state as facts; it supersedes the devices' events before `position`."""
    chunks: list[list[str]] = [[]]
    chunk_bytes = 0
    for segment in segments:
        text = json.dumps(segment, separators=(",", ":"))
        if chunk_bytes and chunk_bytes + len(text) > INITIAL_FACT_BYTES_MAX:
            chunks.append([])
            chunk_bytes = 0
        chunks[-1].append(text)
        chunk_bytes += len(text)
    head = f'"snapshot_event":{position},"devices":{json.dumps(list(range(device_count)))}'
    for number, chunk in enumerate(chunks):
        key = f"initial_state:{number}" if number else "initial_state"
        abi.record_fact(key, f'{{{head},"segments":[{",".join(chunk)}]}}')


def _unexpected(error: Exception) -> str:
    return f"PyTorch's allocator is not recorded: {type(error).__name__}: {error}"


def _record(key: str, value: object) -> None:
    if recording.current() is not None:
        abi.record_fact(key, json.dumps(value))


def _renew_after_fork() -> None:
    global _hook
    before = _hook
    _hook = _Hook()
    _hook.import_hook, _hook.is_queued = before.import_hook, before.is_queued
    _hook.memory_limit_bytes, _hook.build, _hook.reason = before.memory_limit_bytes, before.build, before.reason
    _hook.choice, _hook.is_ours = before.choice, before.is_ours


os.register_at_fork(after_in_child=_renew_after_fork)
