"""What gpumem.pth calls at the start of an interpreter whose environment holds GPUMEM_RECORD.

Owns: arming this process. Must not know: anything about the program that is about to run.
"""

from __future__ import annotations

import atexit
import os
import sys

from gpumem.recorder.spec import RecordSpec, find_spec


def arm() -> None:
    """Arms this process by GPUMEM_RECORD: the main process records from now on, the others once they use the GPU."""
    spec = find_spec(os.environ)
    if spec is not None and not _is_gpumem_command():
        arm_by(spec)


def arm_by(spec: RecordSpec) -> None:
    """Arms this process by `spec`."""
    from gpumem.recorder import recording, torch_hook

    atexit.register(_finish)
    recording.arm(spec)
    torch_hook.install(memory_limit_bytes=spec.memory_limit_bytes)


def _is_gpumem_command() -> bool:
    """Whether the program is the gpumem command itself, which is never recorded."""
    words = sys.orig_argv[1:3]
    return any(os.path.basename(word) == "gpumem" for word in words)


def _finish() -> None:
    """Ends the recording at the interpreter's exit, after the program's own exit functions."""
    from gpumem.recorder import recording, torch_hook

    if recording.current() is not None:
        torch_hook.record_end_facts()
        recording.end("exit")
