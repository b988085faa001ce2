"""The recording of this process: whether there is one, how it starts, what it says of the program, how it ends.

Owns: the one recording a process can have, armed by a RecordSpec or started by gpumem.record(), and what fork does to
it. Must not know: allocators, how torch is heard, when marks are set.

An armed process opens its journal when there is something to record (`ensure_started`), so that the many helper
processes of a program leave no files; the main process opens it at its start.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpumem import __version__, abi
from gpumem.errors import GpumemError, JournalTaken
from gpumem.recorder import startup
from gpumem.recorder.notes import say
from gpumem.recorder.nvml_judgement import open_sampling
from gpumem.recorder.nvml_sampler import NvmlSampler, import_gate
from gpumem.recorder.spec import TRACE_SUFFIX, RecordSpec, find_rank, find_trace_path, is_taken, parse_spec
from gpumem.vocabulary import AllocatorChoice, DeviceOrdinal

_NAMES_TRIED = 4
_STDERR = 2


@dataclass(frozen=True, slots=True)
class Recording:
    """What is open in this process."""

    trace_path: Path
    spec: RecordSpec
    sampler: NvmlSampler | None


class _Process:
    """The state that fork must take apart: one instance, renewed in the child."""

    def __init__(self) -> None:
        self.armed: RecordSpec | None = None
        self.is_main = False
        self.recording: Recording | None = None
        self.step_count = 0
        self.device_uuids: Mapping[DeviceOrdinal, str] | None = None
        self.versions: dict[str, str] = {}
        self.has_own_allocator = False
        self.has_torch_devices = False
        self.lock = threading.RLock()


_process = _Process()
_is_watching_forks = False


def arm(spec: RecordSpec) -> None:
    """Lets this process record by `spec`; the main process begins at once."""
    _process.armed = spec
    _process.is_main = spec.main_pid == os.getpid() or (
        spec.main_pid == 0 and not is_taken(Path(spec.folder) / spec.main_trace_name)
    )
    _watch_forks()
    if _process.is_main:
        ensure_started()


def ensure_started() -> bool:
    """Starts recording if this process is armed and does not record yet; whether it records now."""
    if _process.recording is not None:
        return True
    if _process.armed is None:
        return False
    with _process.lock:
        if _process.recording is None and _process.armed is not None:
            try:
                _begin_armed(_process.armed)
            except GpumemError as error:
                _process.armed = None
                say(f"recording is off in process {os.getpid()}: {error}")
        return _process.recording is not None


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Recordings begin inside it: of two threads that begin one, the second finds that of the first."""
    _watch_forks()  # before the lock is held: a child forked meanwhile has one of its own
    with _process.lock:
        yield


def current() -> Recording | None:
    """The recording of this process; None while there is none."""
    return _process.recording


def is_armed() -> bool:
    """Whether this process records or will once there is something to record."""
    return _process.armed is not None or _process.recording is not None


def is_armed_by_spec(spec: RecordSpec) -> bool:
    """Whether this process was armed by `spec` from outside; False: gpumem.record() made it."""
    return _process.armed is spec


def armed_memory_limit_bytes() -> int | None:
    """What PyTorch may take of a device by the spec of this process; None: no limit of ours."""
    return None if _process.armed is None else _process.armed.memory_limit_bytes


def armed_allocator() -> AllocatorChoice:
    """Which allocator serves the program, by the spec of this process."""
    return AllocatorChoice.AUTO if _process.armed is None else _process.armed.allocator_choice


def begin(trace_path: Path, spec: RecordSpec) -> Recording:
    """Opens the journal that becomes `trace_path` and starts walking stacks and sampling.

    Raises a GpumemError when the journal cannot be made.
    """
    _watch_forks()
    stacks_off = _start_walker() if spec.stacks else "Stacks were not asked for."
    if not abi.is_recording():
        # A forked child whose allocator was faster already has a journal of its own.
        if spec.sealed_by_other:
            _make_folders_again(trace_path, spec)
        with _standard_numbers_taken():
            abi.start_recording(
                spec.journal_path(trace_path),
                run_id=bytes.fromhex(spec.run_id),
                stacks=stacks_off is None,
                fork_path_pattern=_fork_pattern(spec) if _process.armed is not None else None,
            )
    sampler = None
    if spec.nvml_interval_ms:
        sampler = NvmlSampler(abi, interval_ms=spec.nvml_interval_ms, open_sampling=open_sampling)
    recording = Recording(trace_path, spec, sampler)
    _process.recording = recording
    _record_start_facts(recording, stacks_off)
    if sampler is not None:
        sampler.start()
    return recording


def end(ended_by: str) -> None:
    """Ends the recording of this process, with a last reading and the versions in use; from now on it is not armed."""
    with _process.lock:
        _process.armed = None
        recording = _process.recording
        if recording is None:
            return
        if recording.sampler is not None:
            recording.sampler.stop()
        add_versions({})
        _process.recording = None
        _process.has_own_allocator = _process.has_torch_devices = False
        abi.stop_recording(ended_by)


def note_cuda_started(device_uuids: Mapping[DeviceOrdinal, str]) -> None:
    """Takes in which device each ordinal of the program is; readings follow it from now on."""
    known = _process.device_uuids = {**(_process.device_uuids or {}), **device_uuids}
    if _process.recording is not None and _process.recording.sampler is not None:
        _process.recording.sampler.set_device_uuids(known)


def add_versions(versions: Mapping[str, str]) -> None:
    """Adds to the versions that the trace names; those of loaded libraries are found here."""
    for module in ("torch", "cupy", "numpy"):
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            _process.versions[module] = str(version)
    _process.versions.update(versions)
    if _process.recording is not None:
        abi.record_fact("versions", json.dumps(_process.versions))


def note_own_allocator() -> None:
    """Takes in that the recording holds events of our own allocator, so that none of PyTorch's are missed."""
    _process.has_own_allocator = True


def has_own_allocator() -> bool:
    """Whether events of our own allocator are in the recording."""
    return _process.has_own_allocator


def note_torch_devices() -> None:
    """Takes in that the recording says of each device what PyTorch does."""
    _process.has_torch_devices = True


def has_torch_devices() -> bool:
    """Whether the recording says of each device what PyTorch does."""
    return _process.has_torch_devices


def note_torch_missing() -> None:
    """Says in the trace why it holds no allocations of PyTorch's, where it holds no others either."""
    if not _process.has_own_allocator:
        abi.record_fact("note:torch", json.dumps("The program did not import torch."))


def take_step_number() -> int:
    """The number of the step that ends now, from 0."""
    with _process.lock:
        number = _process.step_count
        _process.step_count += 1
        return number


def read_at_mark(*, age_ns_least: int = 0) -> None:
    """An NVML reading now, unless the last one is younger than `age_ns_least`."""
    recording = _process.recording
    if recording is not None and recording.sampler is not None:
        recording.sampler.read_now(age_ns_least=age_ns_least)


@contextmanager
def _standard_numbers_taken() -> Iterator[None]:
    """Where a standard stream is closed, no file opened here gets its number: what C code prints would go into it."""
    taken: list[int] = []
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        taken.append(number)
    os.close(number)
    try:
        yield
    finally:
        for number in taken:
            os.close(number)


def _make_folders_again(trace_path: Path, spec: RecordSpec) -> None:
    """A process that outlives its run may begin after that has removed the folders in which nothing stood."""
    for folder in (trace_path.parent, spec.journal_path(trace_path).parent):
        with suppress(OSError):  # whoever opens the journal says what is wrong
            folder.mkdir(exist_ok=True)


def _begin_armed(spec: RecordSpec) -> None:
    """Begins under a free name; where another process takes it at that very moment, under the next one."""
    for _ in range(_NAMES_TRIED - 1):
        with suppress(JournalTaken):
            begin(_find_armed_path(spec), spec)
            return
    begin(_find_armed_path(spec), spec)


def _find_armed_path(spec: RecordSpec) -> Path:
    return find_trace_path(spec, pid=os.getpid(), rank=find_rank(os.environ), is_main=_process.is_main)


def _fork_pattern(spec: RecordSpec) -> Path | None:
    """Journals of forked children; None where the folder's name would be taken for a pattern."""
    pattern = spec.journal_path(Path(spec.folder) / f"{spec.stem}.%d{TRACE_SUFFIX}")
    return pattern if str(pattern).count("%") == 1 else None


def _start_walker() -> str | None:
    """Why stacks are off; None when they are walked."""
    from gpumem.recorder.walker_check import start_walker

    return start_walker()


def _record_start_facts(recording: Recording, stacks_off: str | None) -> None:
    program = {
        "program": sys.argv[0] if sys.argv else "",
        "command_line": list(sys.orig_argv),
        "rank": find_rank(os.environ),
    }
    abi.record_fact("program", json.dumps(program))
    if recording.spec.journal_folder is not None:
        abi.record_fact("target", json.dumps(str(recording.trace_path)))
    if stacks_off is not None:
        abi.record_fact("stacks_off", json.dumps(stacks_off))
    add_versions({"python": sys.version.split()[0], "gpumem": __version__})


def _watch_forks() -> None:
    global _is_watching_forks
    if not _is_watching_forks:
        _is_watching_forks = True
        import_gate.watch_forks()
        os.register_at_fork(after_in_child=_renew_after_fork)
        if sys.version_info >= (3, 12):
            # Python warns a program of its own threads when it forks; ours are not its business.
            vars(warnings)["filters"].insert(0, ("ignore", _ForkWarning(), DeprecationWarning, None, 0))


class _ForkWarning:
    """Stands for a pattern in the list of warning filters, without loading `re`."""

    def match(self, text: str) -> bool:
        return text.startswith("This process (pid=") and "is multi-threaded" in text


def _renew_after_fork() -> None:
    """A forked child has neither its parent's journal nor its threads, and is never the main process."""
    global _process
    armed = _process.armed
    _process = _Process()
    _process.armed = armed


if startup.armed_text is not None:
    arm(parse_spec(startup.armed_text))
