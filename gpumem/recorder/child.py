"""The program as a child of `gpumem run`: started in the same terminal and process group, signals handed on.

Owns: fork, exec, signal dispositions, waiting, and leaving as the program left. Must not know: recording.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from gpumem.errors import ProgramNotFound

_SENT_TO_THE_CHILD_BY_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED_BY_PYTHON_ITSELF = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """A running program."""

    def __init__(self, command: Sequence[str], make_environment: Callable[[int], dict[str, str]]) -> None:
        """Starts `command`; `make_environment` gets the child's pid, in the child.

        Raises ProgramNotFound when the system refuses to run it.
        """
        self._wait_status: int | None = None
        ignored = {number for number in (*_HANDED_ON, signal.SIGCHLD) if signal.getsignal(number) is signal.SIG_IGN}
        # Blocked meanwhile, so that none is lost between fork and the new dispositions.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        error_pipe, child_error_pipe = os.pipe()
        # The program may end at once, and is to be waited for even where SIGCHLD was ignored.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if signal.SIGCHLD in ignored:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            _become(command, make_environment, mask, child_error_pipe)
        os.close(child_error_pipe)
        for number in _SENT_TO_THE_CHILD_BY_THE_TERMINAL:
            signal.signal(number, signal.SIG_IGN)
        for number in _HANDED_ON:
            if number not in ignored:
                signal.signal(number, self._hand_on)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._check_started(command[0], error_pipe)

    def wait(self, watched: int, on_readable: Callable[[], bool]) -> int:
        """Waits for the program's end; its wait status.

        Calls `on_readable` when the descriptor `watched` can be read, until it returns False.
        """
        with _wake_up_pipe() as wake_up:
            is_watched = True
            while self._wait_status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._wait_status = status
                    break
                readable, _, _ = select.select([wake_up, *([watched] if is_watched else [])], [], [])
                if wake_up in readable:
                    os.read(wake_up, 4096)
                if watched in readable:
                    is_watched = on_readable()
        for number in _HANDED_ON:
            if signal.getsignal(number) == self._hand_on:
                signal.signal(number, signal.SIG_DFL)
        return self._wait_status

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        if self._wait_status is None:
            os.kill(self.pid, number)

    def _check_started(self, program: str, error_pipe: int) -> None:
        with open(error_pipe, "rb") as pipe:
            error_number = pipe.read()
        if error_number:
            os.waitpid(self.pid, 0)
            raise ProgramNotFound(f"{program} cannot be run: {os.strerror(int(error_number))}.")


def describe_end(wait_status: int) -> str:
    """How a process ended, as traces name it: `exit`, `exit 3`, `signal 9`."""
    if os.WIFSIGNALED(wait_status):
        return f"signal {os.WTERMSIG(wait_status)}"
    code = os.WEXITSTATUS(wait_status)
    return f"exit {code}" if code else "exit"


def leave_as(wait_status: int) -> NoReturn:
    """Ends this process as the one with `wait_status` ended: by its exit code, or of its signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        # The program dumped its core; ours would only overwrite it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(wait_status) & 0xFF)


def _become(
    command: Sequence[str],
    make_environment: Callable[[int], dict[str, str]],
    mask: set[int | signal.Signals],
    error_pipe: int,
) -> NoReturn:
    """Turns the forked child into the program; on failure writes the error's number into `error_pipe`."""
    error_number = 0
    try:
        for number in _IGNORED_BY_PYTHON_ITSELF:
            signal.signal(number, signal.SIG_DFL)
        environment = make_environment(os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        error_number = error.errno or 0
    finally:
        os.write(error_pipe, str(error_number).encode())
        os._exit(127)


@contextmanager
def _wake_up_pipe() -> Iterator[int]:
    """A descriptor that can be read once a signal has arrived."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)
