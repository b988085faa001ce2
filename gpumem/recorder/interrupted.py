"""What Python remembers of the Ctrl-C that ended a program.

Owns: keeping it against what our own threads do meanwhile. Must not know: recordings.

A program that a KeyboardInterrupt ends dies of SIGINT, unless code from a string has run since then, in whatever
thread: Python forgets the interrupt with each such code, and exits with 1. Modules with named tuples or dataclasses
run some when they are imported, and our sampler's thread may be importing such modules just then.

What is left: a program whose own exit functions run code from strings exits with 1 by itself, and dies of SIGINT when
it is recorded. Python says nowhere whether it remembers, so at the end, where ours run after the program's, nobody can
tell whose code made it forget. To make good at once what ours did, before the program's exit functions run, would take
a hook at the end of its main module, which it could see (sys.excepthook), or one of threading's, which is private and
not called in programs without threads; and what PyTorch imports while it is asked its figures at the end would stay.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def remember_interrupt() -> None:
    """Has Python remember the KeyboardInterrupt that has ended the program, if one has. Called at its very end."""
    if _has_ended_the_program():
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _has_ended_the_program() -> bool:
    """Whether the last error that nobody caught is a KeyboardInterrupt out of the program's own first frame.

    Consoles within a program leave their errors in the same place, each from a frame of its own.
    """
    if getattr(sys, "last_type", None) is not KeyboardInterrupt or sys.last_traceback is None:
        return False
    frame = sys.last_traceback.tb_frame
    code = frame.f_code
    if code.co_filename == "<frozen runpy>":
        return code.co_name == "_run_module_as_main"
    main = sys.modules.get("__main__")
    is_console = code.co_filename.startswith("<") and code.co_filename not in ("<string>", "<stdin>")
    return code.co_name == "<module>" and main is not None and frame.f_globals is main.__dict__ and not is_console
