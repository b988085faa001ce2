"""`gpumem run` is to the program what `python` is: output, exit code, signals, sys and __main__."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from program_runs import Ended, environment, gpumem_command, only_trace, run, run_python, run_recorded, write_program
from waits import SECONDS_AT_MOST

PRINTS_ITSELF = """
import sys
main = sys.modules["__main__"]
names = ("__name__", "__file__", "__doc__", "__package__", "__cached__")
print({name: getattr(main, name, "absent") for name in names})
print(main.__spec__ and main.__spec__.name, type(main.__loader__).__name__, sorted(vars(main)))
print(sys.argv, sys.path[:2], sys.flags, sys.executable, sys.warnoptions, sys._xoptions)
import threading
print(threading.active_count(), __builtins__)
"""

PROGRAMS = {
    "prints_itself": PRINTS_ITSELF,
    "ends": "print('done')",
    "exits_with_code": "import sys; print('out'); sys.exit(3)",
    "exits_with_text": "import sys; sys.exit('that did not work')",
    "exits_with_large_code": "import sys; sys.exit(1000)",
    "raises": "def fail(depth):\n    return 1 / depth if not depth else fail(depth - 1)\n\nfail(3)\n",
    "raises_chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from error\n",
    "is_no_python": "print('never')\ndef def\n",
    "ends_at_once": "import os; print('lost'); os._exit(7)",
    "aborts": "import os; os.abort()",
    "kills_itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminates_itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupts_itself": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "catches_interrupt": (
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('caught')\n"
    ),
    "prints_bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)",
    "reads_stdin": "import sys; print(sys.stdin.read()[::-1]); print(sys.stdin.isatty())",
    "closes_its_stdout": "import os, sys; print('x'); sys.stdout.flush(); os.close(1)",
    "forks": (
        "import os\npid = os.fork()\n"
        "if pid == 0:\n    print('child', flush=True)\n    os._exit(4)\n"
        "print(os.waitpid(pid, 0)[1], flush=True)\n"
    ),
    "runs_exit_functions": "import atexit\natexit.register(print, 'last')\nprint('first')\n",
    "uses_a_hook": "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\nraise OSError\n",
    "spawns": (
        "import multiprocessing\n\ndef double(number):\n    return 2 * number\n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(double, [1, 2]))\n"
    ),
    "forks_workers": (
        "import multiprocessing\n\ndef double(number):\n    return 2 * number\n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n        print(pool.map(double, [1, 2]))\n"
    ),
    "starts_python": "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(5)']))\n",
    "hears_signals": (
        "import signal\n"
        "print([signal.getsignal(number) for number in (2, 3, 1, 15, 10, 12, 13, 17)], signal.pthread_sigmask(0, []))\n"
    ),
    "lists_its_descriptors": "import os; print([int(number) < 3 for number in os.listdir('/proc/self/fd')][:3])",
    "leads_no_group": "import os; print(os.getpgrp() == os.getpgid(os.getppid()), os.getsid(0) == os.getpid())",
}


def compare(folder: Path, *words: str, stdin: bytes = b"") -> tuple[Ended, Ended]:
    bare = run_python(folder, *words, stdin=stdin)
    recorded = run_recorded(folder, *words, stdin=stdin)
    assert recorded.without_note == bare
    return bare, recorded


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_as_under_python(name: str, tmp_path: Path) -> None:
    write_program(tmp_path, PROGRAMS[name])
    compare(tmp_path, "train.py", "-x", "--output", "a b", "--", "-q", stdin=b"typed \xff\n"[:6])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_module_runs_as_under_python(tmp_path: Path) -> None:
    write_program(tmp_path / "package", "", "__init__.py")
    write_program(tmp_path / "package", PRINTS_ITSELF, "train.py")
    write_program(tmp_path / "package", PRINTS_ITSELF, "__main__.py")
    compare(tmp_path, "-m", "package.train", "-q", "--lr", "3")
    compare(tmp_path, "-m", "package", "-m", "other")
    bare, _ = compare(tmp_path, "-m", "no_such_module")
    assert bare.code == 1


def test_code_runs_as_under_python(tmp_path: Path) -> None:
    compare(tmp_path, "-c", PRINTS_ITSELF, "-c", "--help")
    compare(tmp_path, "-c", "1 / 0")


def test_folder_and_archive_with_main_run_as_under_python(tmp_path: Path) -> None:
    write_program(tmp_path / "application", PRINTS_ITSELF, "__main__.py")
    with zipfile.ZipFile(tmp_path / "application.pyz", "w") as archive:
        archive.write(tmp_path / "application" / "__main__.py", "__main__.py")
    compare(tmp_path, "application", "--flag")
    compare(tmp_path, "application.pyz", "--flag")
    (tmp_path / "application.pyz").chmod(0o755)
    compare(tmp_path, "./application.pyz")


def test_script_elsewhere_and_through_a_link_runs_as_under_python(tmp_path: Path) -> None:
    write_program(tmp_path / "far" / "away", PRINTS_ITSELF)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link.py").symlink_to(tmp_path / "far" / "away" / "train.py")
    compare(tmp_path, "far/away/train.py")
    compare(tmp_path, str(tmp_path / "near" / "link.py"))


def test_script_from_stdin_runs_as_under_python(tmp_path: Path) -> None:
    compare(tmp_path, "-", "word", stdin=PRINTS_ITSELF.encode())


def test_executable_script_runs_by_its_first_line(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/bin/sh\necho shell $0 $1; exit 5\n")
    script.chmod(0o755)
    assert run_recorded(tmp_path, "./train", "-q").without_note == Ended(5, b"shell ./train -q\n", b"")
    assert run_recorded(tmp_path, "train", "-q").without_note == Ended(5, b"shell ./train -q\n", b"")


def test_program_on_path_runs_as_it_is(tmp_path: Path) -> None:
    assert run_recorded(tmp_path, "sh", "-c", "echo $0 $1; exit 6", "a", "-b").without_note == Ended(6, b"a -b\n", b"")


def test_flags_of_the_interpreter_are_handed_on(tmp_path: Path) -> None:
    write_program(tmp_path, PRINTS_ITSELF)
    flags = ["-O", "-X", "dev", "-W", "ignore"]
    bare = run([sys.executable, *flags, "train.py"], tmp_path)
    recorded = run([sys.executable, *flags, "-m", "gpumem_cli", "run", "-q", "train.py"], tmp_path)
    assert recorded == bare


WAITS = (
    # Not by print, which may be interrupted once its words are out and cannot be entered again then.
    "import os, signal, sys, time\n"
    "def hear(number, frame):\n    os.write(1, b'heard %d\\n' % number)\n    sys.exit(20 + number)\n"
    "{handlers}"
    "os.write(1, b'ready\\n')\n"
    "for _ in range(1000):\n    time.sleep(0.1)\n"
)


def signal_when_ready(folder: Path, recorded: bool, send: Callable[[subprocess.Popen[bytes]], None]) -> Ended:
    command = gpumem_command("run", "train.py") if recorded else [sys.executable, "train.py"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    send(process)
    stdout, stderr = process.communicate(timeout=SECONDS_AT_MOST)
    return Ended(process.returncode, first + stdout, stderr)


@pytest.mark.parametrize("is_handled", [True, False])
def test_interrupt_from_the_terminal_reaches_the_program_once(tmp_path: Path, is_handled: bool) -> None:
    handlers = "signal.signal(signal.SIGINT, hear)\n" if is_handled else ""
    write_program(tmp_path, WAITS.format(handlers=handlers))
    ends = [
        signal_when_ready(tmp_path, recorded, lambda process: os.killpg(process.pid, signal.SIGINT))
        for recorded in (False, True)
    ]
    # Not the whole traceback: the line that the signal finds differs from run to run.
    last_lines = [end.without_note.stderr.splitlines()[-1:] for end in ends]
    assert (ends[1].code, ends[1].stdout, last_lines[1]) == (ends[0].code, ends[0].stdout, last_lines[0])
    assert ends[0].code == (22 if is_handled else -signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("is_handled", [True, False])
def test_signal_sent_to_us_alone_is_handed_on(tmp_path: Path, number: signal.Signals, is_handled: bool) -> None:
    handlers = f"signal.signal({int(number)}, hear)\n" if is_handled else ""
    write_program(tmp_path, WAITS.format(handlers=handlers))
    ends = [
        signal_when_ready(tmp_path, recorded, lambda process: process.send_signal(number)) for recorded in (False, True)
    ]
    assert ends[1].without_note == ends[0]
    assert ends[0].code == (20 + number if is_handled else -number)


def test_interrupts_while_sealing_do_not_lose_the_trace(tmp_path: Path) -> None:
    write_program(tmp_path, "import gpumem\ngpumem.mark('kept')\n" + WAITS.format(handlers=""))

    def interrupt_again_and_again(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)

    assert signal_when_ready(tmp_path, True, interrupt_again_and_again).code == -signal.SIGINT
    assert [mark.name for mark in only_trace(tmp_path).marks] == ["kept"]


# The child becomes another program at once, whatever threads the test's libraries have.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_terminal_belongs_to_the_program(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "import os, sys, time\n"
        "print([os.isatty(number) for number in range(3)], os.tcgetpgrp(0) == os.getpgrp(), flush=True)\n"
        # No read to be interrupted: CPython misses a signal that comes just before one begins.
        "try:\n    print(input()[::-1], flush=True)\n    while True: time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n    sys.exit(9)\n",
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = gpumem_command("run", "train.py")
        os.execve(command[0], command, environment())
    shown = b""
    for typed, awaited in ((b"abc\n", b"] True\r\n"), (b"\x03", b"cba"), (b"", b"demo")):
        while awaited not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, typed)
    assert b"[True, True, True] True" in shown
    assert b"interrupted" in shown
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    os.close(terminal)


def test_program_that_stops_and_goes_on_is_waited_for(tmp_path: Path) -> None:
    write_program(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(1)\nprint('end')\n")

    def stop_and_go_on(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGCONT)

    assert signal_when_ready(tmp_path, True, stop_and_go_on).without_note == Ended(0, b"ready\nend\n", b"")
