"""What gpumem.pth calls at the start of an interpreter whose environment holds GPUMEM_RECORD.

Owns: arming this process, at next to no cost where it may never have anything to record. Must not know: anything
about the program that is about to run. Whatever is heavy is imported when the program marks something, imports torch
or ends.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from gpumem.recorder.spec import RecordSpec

VARIABLE = "GPUMEM_RECORD"
armed_text: str | None = None
"""The spec, unread, of a process that is armed but has had nothing to record so far."""
_has_looked = False
"""Python reads the start-up files of a virtual environment twice; the second time there is nothing left to do."""


def arm() -> None:
    """Arms this process by GPUMEM_RECORD: the main process records from now on, the others once there is something."""
    global armed_text, _has_looked
    text = os.environ.get(VARIABLE)
    if not text or _has_looked or _is_gpumem_command():
        return
    _has_looked = True
    if f'"main_pid":{os.getpid()},' in text or '"main_pid":0,' in text:
        from gpumem.recorder.spec import parse_spec

        arm_by(parse_spec(text))
    else:
        armed_text = text
        _watch_program()


def arm_by(spec: RecordSpec) -> None:
    """Arms this process by `spec`, and begins to record if it is the main one."""
    from gpumem.recorder import recording

    _watch_program()
    recording.arm(spec)
    if not spec.sealed_by_other and recording.current() is not None:
        _seal_at_end(spec)


def _watch_program() -> None:
    """Has the program's imports of torch and CuPy and its end noticed."""
    import atexit

    from gpumem.recorder.import_hook import ImportHook

    atexit.register(_finish)
    os.register_at_fork(after_in_child=_watch_worker)
    ImportHook("torch", _hear_torch).install()
    ImportHook("cupy", _serve_cupy).install()


def _seal_at_end(spec: RecordSpec) -> None:
    """Starts the sealer of a run that nobody else has sealed, and waits for this process's trace at its end."""
    import atexit

    from gpumem.recorder import recording, session
    from gpumem.recorder.interrupted import remember_interrupt
    from gpumem.recorder.sealer import Sealer

    sealer = Sealer(spec.journals, spec.run_id)
    started = recording.current()
    pid = os.getpid()

    def finish() -> None:
        if started is not None and os.getpid() == pid:
            _finish()
            session.finish_own_journal(sealer, spec.journal_path(started.trace_path))
            remember_interrupt()

    atexit.unregister(_finish)
    atexit.register(finish)


def _watch_worker() -> None:
    """Has the end of a worker noticed that multiprocessing forked: it leaves without running exit functions."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(_finish, lambda finish: util.Finalize(None, finish, exitpriority=-1000))


def _is_gpumem_command() -> bool:
    """Whether the program is the gpumem command itself, which is never recorded."""
    return any(os.path.basename(word) == "gpumem" for word in sys.orig_argv[1:3])


def _hear_torch(torch: object) -> None:
    from gpumem.recorder import recording, torch_hook

    limit_bytes, allocator = recording.armed_memory_limit_bytes(), recording.armed_allocator()
    if recording.is_armed():
        torch_hook.install(memory_limit_bytes=limit_bytes, allocator=allocator)


def _serve_cupy(cupy: ModuleType) -> None:
    from gpumem.recorder import cupy_hook, recording

    if recording.is_armed():
        cupy_hook.install_armed(cupy)


def _finish() -> None:
    """Ends the recording at the interpreter's exit, after the program's own exit functions; none begins from now on.

    Nothing is imported here that was not before: modules that run code from strings, as dataclasses does, make Python
    forget that it was interrupted, and it would exit with 1 instead of dying of SIGINT. The sampler's thread may have
    imported some: that is made good.
    """
    global armed_text
    armed_text = None
    recording = sys.modules.get("gpumem.recorder.recording")
    if recording is None:
        return
    if recording.current() is not None:
        torch_hook = sys.modules.get("gpumem.recorder.torch_hook")
        if torch_hook is not None:
            torch_hook.record_end_facts()
        else:
            recording.note_torch_missing()
    recording.end("exit")
    from gpumem.recorder.interrupted import remember_interrupt  # no module that runs code from strings

    remember_interrupt()
