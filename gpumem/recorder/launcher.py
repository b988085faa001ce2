"""Starts a Python program inside an interpreter that does not read gpumem.pth, as Python itself would start it.

Owns: making `__main__`, sys.argv, sys.path and tracebacks look as without us. Must not know: recording, beyond arming.

`gpumem run` starts `python -c CODE KIND NAME ARGUMENTS` with the CODE of `launch_command`.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
from types import CodeType, TracebackType
from typing import Any

from gpumem.recorder import startup
from gpumem.recorder.interpreter import package_root
from gpumem.recorder.target import Target, TargetKind, find_interpreter_flags

_FRESH_MAIN = {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__annotations__", "__builtins__"}
_CACHED: dict[str, None] = {"__cached__": None} if sys.version_info < (3, 15) else {}
"""What a script is told of the file that its code was cached in: from 3.15 on nothing."""


def launch_command(target: Target) -> list[str]:
    """The command line that runs `target` armed, without gpumem.pth."""
    code = (
        f"import sys; sys.path.insert(0, {str(package_root())!r}); "
        "from gpumem.recorder.launcher import launch; del sys.path[0]; launch()"
    )
    flags = find_interpreter_flags()
    return [sys.executable, *flags, "-c", code, target.kind.value, target.name, *target.arguments]


def launch() -> None:
    """Arms this process and runs the program that its arguments name."""
    kind, name, *arguments = sys.argv[1:]
    namespace = sys.modules["__main__"].__dict__
    for key in set(namespace) - _FRESH_MAIN:
        del namespace[key]
    startup.arm()
    try:
        _run(TargetKind(kind), name, arguments, namespace)
    except BaseException:
        sys.excepthook = _HookWithoutOurFrames(sys.excepthook)
        raise


def _run(kind: TargetKind, name: str, arguments: list[str], namespace: dict[str, Any]) -> None:
    if kind is TargetKind.CODE:
        sys.argv = ["-c", *arguments]
        text = _without_indentation(name)
        code = compile(text, "<string>", "exec", dont_inherit=True)
        _show_source(code, text)
        exec(code, namespace)
    elif kind is TargetKind.MODULE:
        sys.argv = ["-m", *arguments]
        _set_first_path(os.getcwd())
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    elif kind is TargetKind.FOLDER:
        sys.argv = [name, *arguments]
        _set_first_path(os.path.abspath(name))
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        sys.argv = [name, *arguments]
        _run_script(name, namespace)


def _without_indentation(text: str) -> str:
    """What Python makes of the text after -c: from 3.14 on it may be indented as a whole."""
    if sys.version_info < (3, 14) or not text.lstrip("\r\n")[:1].isspace():
        return text
    from textwrap import dedent

    return dedent(text)


def _show_source(code: CodeType, text: str) -> None:
    """Lets tracebacks quote the text after -c, as Python does from 3.13 on: it has our own in that place."""
    linecache = sys.modules.get("linecache")
    register = getattr(linecache, "_register_code", None)
    if register is not None:
        # By the code object from 3.14 on, before by the file's name.
        register(code if hasattr(linecache, "_interactive_cache") else "<string>", text, "<string>")


def _run_script(script: str, namespace: dict[str, Any]) -> None:
    if script == "-":
        namespace.update(_CACHED, __file__="<stdin>")
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), namespace)
        return
    path = os.path.abspath(script)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    loader: type = importlib.machinery.SourceFileLoader
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader
    namespace.update(_CACHED, __file__=path, __loader__=loader("__main__", path))
    exec(_read_code(path), namespace)


def _read_code(path: str) -> CodeType:
    if path.endswith(".pyc"):
        code = importlib.machinery.SourcelessFileLoader("__main__", path).get_code("__main__")
        assert code is not None
        return code
    with io.open_code(path) as source:
        return compile(source.read(), path, "exec", dont_inherit=True)


def _set_first_path(folder: str) -> None:
    """Puts the program's own folder where `-c` had put the current one."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


class _HookWithoutOurFrames:
    """An exception hook that shows a traceback from the program's first frame on."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if traceback is not None:
            traceback = traceback.tb_next  # the code after -c
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        self._hook(kind, error.with_traceback(traceback), traceback)
