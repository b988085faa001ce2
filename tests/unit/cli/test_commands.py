"""The commands as people type them: exit codes, sentences, help."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from gpumem.trace.file import write_trace
from gpumem_cli.main import COMMANDS, run_command_line, unknown_command
from trace_builder import MiB, TraceBuilder
from training_trace import training_trace

REPORTS = ("summary", "timeline", "snapshot", "explain")


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "train.4711.gpumem"
    write_trace(training_trace(oom=True), path)
    return str(path)


def gpumem(*arguments: str, capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    try:
        code = run_command_line(arguments)
    except SystemExit as leave:
        code = int(leave.code or 0)
    out, err = capture.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", REPORTS)
def test_report_prints_text_and_json(command: str, trace_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = gpumem(command, trace_path, capture=capsys)
    assert (code, err) == (0, "")
    assert "GiB" in text
    assert "\x1b" not in text
    code, document, err = gpumem(command, trace_path, "--json", capture=capsys)
    assert (code, err) == (0, "")
    assert json.loads(document)["schema"] == f"gpumem.{command}/1"


@pytest.mark.parametrize(
    "words",
    [
        ("summary", ""),
        ("timeline", ""),
        ("snapshot", ""),
        ("explain", ""),
        ("replay", ""),
        ("diff", "", "b.gpumem"),
        ("diff", "a.gpumem", ""),
        ("oom", ""),
        ("report", ""),
        ("report", "a.gpumem", "-o", ""),
        ("import", ""),
        ("import", "a.gpumem", "-o", ""),
        ("demo", "-o", ""),
        ("run", "-o", "", "train.py"),
        ("run", ""),
    ],
)
def test_empty_path_does_not_mean_the_current_folder(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = gpumem(*words, capture=capsys)
    assert (code, out) == (2, "")
    assert " is empty; " in err
    assert err.count("\n") == 1


def test_summary_takes_a_folder_and_several_traces(trace_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = gpumem("summary", "--json", trace_path, str(Path(trace_path).parent), capture=capsys)
    assert code == 0
    assert len(json.loads(document)["traces"]) == 2


def test_timeline_begins_where_memory_moves_unless_told_from_where(capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(Path(__file__).parents[3] / "sample_traces" / "gpt2_train.gpumem")
    _, text, _ = gpumem("timeline", sample, capture=capsys)
    assert text.endswith("The quiet first 9.55 s are left out; --from start draws them too.\n")
    _, whole, _ = gpumem("timeline", sample, "--from", "start", capture=capsys)
    assert "0 s" in whole
    assert "left out" not in whole
    _, document, _ = gpumem("timeline", sample, "--json", capture=capsys)
    assert json.loads(document)["from"]["event"] == -1


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["summary", "{missing}"], 3, "missing.gpumem does not exist; check the name."),
        (["summary", "{foreign}"], 3, "is no trace"),
        (["timeline", "{trace}", "--from", "mark:nowhere"], 2, "has no mark 'nowhere'; it has: mark:model built."),
        (["snapshot", "{trace}", "--at", "soon"], 2, "'soon' is no moment; write one of start, end, peak"),
        (["snapshot", "{trace}", "--at", "step:9"], 2, "has no step:9; it has step:0 to step:3."),
        (["explain", "{trace}", "--at", "mark:nowhere"], 2, "has no mark 'nowhere'; it has: mark:model built."),
        (["explain", "{missing}"], 3, "missing.gpumem does not exist; check the name."),
        (["summary", "{trace}", "--device", "5"], 2, "has no device 5; it has 0."),
        (["summary", "{trace}", "--from", "end", "--to", "start"], 2, "comes before --from"),
        (["timeline", "{trace}", "--from", "end", "--to", "start"], 2, "comes before --from"),
        (["summary"], 2, "Missing argument 'TRACE...'. See gpumem summary --help."),
        (["summary", "--shiny", "{trace}"], 2, "No such option"),
        (["summary", "--top", "0", "{trace}"], 2, "'--top': '0' is no whole number from 1 on. See gpumem summary"),
        (["summary", "--device", "x", "{trace}"], 2, "'--device': 'x' is no whole number from 0 on. See gpumem"),
        (["summary", "--jsn", "{trace}"], 2, "Did you mean '--json'? See gpumem summary --help.\n"),
        (["snapshot", "{trace}", "--at"], 2, "Option '--at' requires an argument. See gpumem snapshot --help.\n"),
        (["summary", ""], 2, "the path is empty; write . for the current folder. See gpumem summary --help.\n"),
        (["oom", ""], 2, "the name is empty; name a log, or - for standard input. See gpumem oom --help.\n"),
        (["summary", "{list}"], 3, "is no snapshot of PyTorch's memory: it has neither 'segments' nor"),
        (["run", "-c"], 2, "Option '-c' requires an argument. See gpumem run --help.\n"),
        (["run", "-qm"], 2, "Option '-m' requires an argument. See gpumem run --help.\n"),
        (["run", "--output"], 2, "Option '--output' requires an argument. See gpumem run --help.\n"),
        (["run", "--nvml-interval", "-3", "x.py"], 2, "'-3' is no time from 0 to 3600 seconds. See gpumem run"),
        (["import", "{trace}"], 2, "Say where the trace shall go: gpumem import {trace} -o filled."),
        (["replay", "{trace}", "--set", "shiny=1"], 2, "shiny is no option of the caching allocator"),
        (
            ["replay", "{trace}", "--set", "expandable_segments=True", "--set", "expandable_segments=False"],
            2,
            "is set twice",
        ),
        (["snapshot", "{trace}", "--at", "peak", "--at", "end"], 2, "one moment is shown; to compare two: gpumem diff"),
        (["explain", "{trace}", "--at", "peak", "--at", "end"], 2, "one moment is shown; to compare two: gpumem diff"),
        (["snapshot", "{trace}", "--at", ""], 2, "'' is no moment; write one of start, end"),
        (["summary", "{trace}", "--top", "9" * 20], 2, f"'{'9' * 20}' is larger than any there can be."),
        (["replay", "{trace}", "--set", "max_split_size_mb=5"], 2, "must be at least 20 (MiB)"),
        (["replay", "{trace}", "--gpu-memory", "much"], 2, "'much' is no size"),
        (["replay", "{foreign}"], 3, "is no trace"),
        (["{trace}"], 2, "{trace}' is a trace, not a command; see what is in it with gpumem summary {trace}."),
        (["train.py", "-x"], 2, "'train.py' is a program, not a command; record it with gpumem run train.py."),
        (["demo", "-o", "{free}", "--report", "{free}"], 2, "is the trace itself; choose another name for the page"),
        (["demo", "--report", ""], 2, "'--report': the path is empty; write . for the current folder. See gpumem demo"),
        (["demo", "-f", "-o", "{pipe}"], 2, "pipe is a pipe, not a file; choose another name with -o."),
        (["demo", "-f", "--report", "{pipe}"], 2, "pipe is a pipe, not a file; choose another name with --report."),
        (["report", "-f", "{trace}", "-o", "{pipe}"], 2, "pipe is a pipe, not a file; choose another name with -o."),
        (["import", "-f", "{trace}", "-o", "{pipe}"], 2, "pipe is a pipe, not a file; choose another name with -o."),
        (["import", "-f", "{list}", "-o", "{list}"], 2, "list.pickle is what is read; choose another name with -o."),
        (["import", "{trace}", "-o", "{free}/x"], 3, "free is not there; make the folder first, or choose another"),
        (["import", "{pipe}", "-o", "{free}"], 3, "pipe is no file; write what comes out of a pipe or a device to one"),
        (["run", "-f", "-o", "{pipe}", "-c", "pass"], 2, "pipe is a pipe, not a file; choose another name with -o."),
        (["demo", "--report", "{foreign}"], 2, "exists already; choose another name with --report, or overwrite"),
        (["summry", "{trace}"], 2, "There is no command 'summry'; for that, try gpumem summary."),
    ],
)
def test_mistake_is_one_sentence(
    arguments: list[str],
    code: int,
    sentence: str,
    trace_path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not a trace at all")
    (tmp_path / "list.pickle").write_bytes(pickle.dumps([1, 2]))
    os.mkfifo(tmp_path / "pipe")
    places = {"free": str(tmp_path / "free"), "pipe": str(tmp_path / "pipe"), "list": str(tmp_path / "list.pickle")} | {
        "trace": trace_path,
        "missing": str(tmp_path / "missing.gpumem"),
        "foreign": str(foreign),
    }
    left, out, err = gpumem(*(word.format(**places) for word in arguments), capture=capsys)
    assert (left, out) == (code, "")
    assert err.startswith("gpumem: ")
    assert sentence.format(**places) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("flamegraph", "report"),
        ("leaks", "diff"),
        ("tune", "replay"),
        ("live", "explain"),
        ("record", "run"),
        ("peaks", "summary"),
        ("heap", "snapshot"),
        ("docter", "doctor"),
    ],
)
def test_unknown_verb_names_what_was_meant(word: str, command: str) -> None:
    assert unknown_command(word).endswith(f"try gpumem {command}.")


def test_unknown_verb_without_a_guess_lists_the_commands() -> None:
    assert unknown_command("foo").startswith("There is no command 'foo'; the commands are run, summary")
    assert unknown_command("zzz\x1b").startswith("There is no command 'zzz\\x1b'; the commands are run, summary")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_has_help_for_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = COMMANDS[name]
    command = getattr(importlib.import_module(place.module), place.attribute)
    assert command.name == name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} has no help"
            assert parameter.help.endswith((".", "]."))
    code, text, _ = gpumem(name, "--help", capture=capsys)
    assert code == 0
    assert text.startswith(f"Usage: gpumem {name} ")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in text


def test_help_lists_every_command_and_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = gpumem("--help", capture=capsys)
    assert code == 0
    for name, place in COMMANDS.items():
        assert f"  {name} " in text
        assert place.short_help in text
    assert gpumem("--version", capture=capsys) == (0, "gpumem 0.1.0\n", "")
    code, text, err = gpumem(capture=capsys)
    assert (code, text) == (2, "")
    assert "\nCommands:\n" in err


def test_hostile_names_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder().segment(2 * MiB).alloc("a", 10, stack=[("/tmp/[red]\x1b[2J.py", 1, "f\x07")])
    trace = builder.mark("\x1b]0;title\x07").build()
    path = tmp_path / "\x1b[2J[bold].gpumem"
    write_trace(replace(trace, path=path), path)
    for command in REPORTS:
        code, text, err = gpumem(command, str(path), capture=capsys)
        assert (code, err) == (0, "")
        assert all(character == "\n" or character.isprintable() for character in text)


def test_interrupt_leaves_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem.simulate.opening.open_trace", interrupt)
    assert gpumem("timeline", "x", capture=capsys)[:2] == (130, "")


def run_python(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *words], capture_output=True, env={**os.environ, **environment})


def test_module_is_the_command(trace_path: str) -> None:
    done = run_python("-m", "gpumem", "summary", trace_path, COLUMNS="80", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith(b"  gpumem ")) <= 80
    done = run_python("-m", "gpumem", "summary", "missing")
    assert done.returncode == 3
    assert done.stderr == b"gpumem: missing does not exist; check the name.\n"


@pytest.mark.parametrize("unbuffered", ["PYTHONUNBUFFERED=1", "PYTHONUNBUFFERED="])
def test_reader_that_went_away_is_no_error(tmp_path: Path, unbuffered: str) -> None:
    builder = TraceBuilder()
    for number in range(2000):
        builder.segment(2 * MiB, f"s{number}")
    path = tmp_path / "wide.gpumem"
    write_trace(builder.build(), path)
    command = f"{unbuffered} {sys.executable} -m gpumem snapshot {path} --json; echo code $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | head -1"], capture_output=True, text=True)
    assert done.stdout == "{\n"
    assert done.stderr == "code 141\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["summary", "--help"], ["snapshot", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys\nfrom gpumem_cli.main import run_command_line\n"
        f"run_command_line({words!r})\n"
        "print([name for name in ('numpy', 'pyarrow', 'plotly', 'torch', 'rich') if name in sys.modules],"
        " file=sys.stderr)"
    )
    done = run_python("-c", script)
    assert done.stderr == b"[]\n"


def test_reports_load_no_data_frames_and_no_torch(trace_path: str) -> None:
    script = (
        "import sys\nfrom gpumem_cli.main import run_command_line\n"
        f"run_command_line(['summary', {trace_path!r}])\n"
        "print([name for name in ('pandas', 'scipy', 'torch', 'plotly', 'pyarrow.dataset') if name in sys.modules],"
        " file=sys.stderr)"
    )
    assert run_python("-c", script).stderr == b"[]\n"


def test_page_is_coloured_only_on_a_terminal(trace_path: str) -> None:
    from gpumem.render.terminal.theme import make_console

    assert make_console(io.StringIO()).color_system is None


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_fits_80_columns_and_says_nothing_in_the_manner_of_formulas(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = gpumem(command, "--help", capture=capsys)
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "x>=" not in text
    assert "<=x" not in text


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = gpumem("help", capture=capsys)
    assert (code, text) == (0, gpumem("--help", capture=capsys)[1])
    assert gpumem("help", "summary", capture=capsys)[1] == gpumem("summary", "--help", capture=capsys)[1]


def test_name_too_long_is_one_sentence_where_stdout_is_a_stand_in_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpumem("summary", "x" * 300, capture=capsys)
    assert (code, out, err.count("\n")) == (3, "", 1)
    # From 3.14 on pathlib takes such a name for one of no file, and it is met where the file is opened.
    assert err.startswith(("gpumem: The system could not go on: File name too long (x", "gpumem: xxx"))
    assert "File name too long" in err
