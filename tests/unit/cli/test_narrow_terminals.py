"""Every command's report on terminals from 40 to 200 columns: no line is wider, but for what is there to be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from explained_traces import explained_trace, lay, read
from gpumem.analyses.doctor import Check, CheckState, Diagnosis
from gpumem.analyses.summary import summarise_trace
from gpumem.importers.open import open_trace
from gpumem.render.terminal.run_end import render_run_end
from gpumem.render.terminal.theme import ASCII, UNICODE, Page
from gpumem.trace.file import write_trace
from gpumem.trace.model import Trace
from gpumem_cli.main import run_command_line
from narrow_page import check_narrow
from shown_traces import OOM_LOGS, TRACES, slow_start
from trace_builder import GiB, MiB, TraceBuilder

SAMPLES = Path(__file__).parents[3] / "sample_traces"
WIDTHS = (40, 54, 60, 72, 80, 100, 200)
PAGES = [Page(width, UNICODE) for width in WIDTHS] + [Page(width, ASCII) for width in (40, 80)]
LONG = "/srv/" + "very_long_folder/" * 9 + "a_file_whose_name_is_far_longer_than_any_narrow_terminal.py"
WIDE = "/家/安娜/" + "非常に長いフォルダ/" * 6 + "訓練スクリプト.py"
FRAMES = [
    [(LONG, 123456, "Trainer." + "step_inner_" * 12)],
    [(WIDE, 98765, "モデル.前方伝播" * 6)],
    [("at::native::" + "x" * 70 + "<float, " * 9 + ".cpp", 7, "void at::f<" + "double, " * 20 + ">(int)")],
    [("[red]\x1b[31m\udcff\u202e" + "e\u0301" * 90, 1, "f" * 99)],
]
COMMANDS: dict[str, tuple[str, ...]] = {
    "summary": ("summary", "{trace}"),
    **{
        f"summary by {by}": ("summary", "{trace}", "--by", by, "--top", "3")
        for by in ("stack", "stream", "thread", "pool", "scope", "function", "file")
    },
    "summary of two": ("summary", "{trace}", "{trace}"),
    "summary of a part": ("summary", "{trace}", "--from", "event:1"),
    "timeline": ("timeline", "{trace}"),
    "timeline from the start": ("timeline", "{trace}", "--from", "start"),
    "snapshot": ("snapshot", "{trace}"),
    "snapshot at the peak": ("snapshot", "{trace}", "--at", "peak", "--top", "2"),
    "explain": ("explain", "{trace}"),
    "explain at the end": ("explain", "{trace}", "--at", "end"),
    "diff": ("diff", "{trace}", "{other}"),
    "diff by stack": ("diff", "{other}", "{trace}", "--by", "stack", "--top", "2", "--fail-above", "1KiB"),
    "replay": ("replay", "{trace}"),
    "replay under settings": ("replay", "{trace}", "--set", "expandable_segments=True", "--gpu-memory", "300MiB"),
}


def long_names() -> Trace:
    """Names of a hundred cells and more, double-width ones among them, wherever a trace has a name."""
    builder = TraceBuilder(
        block_bytes_known=True,
        rank=123456,
        ended_by="signal 9",
        settings="max_split_size_mb:128,garbage_collection_threshold:0.75,roundup_power2_divisions:[256:1,512:2,>:8]",
        stacks_off="設定が無効" * 20,
        notes=("n" * 120, f"{WIDE} could not be read."),
        records_lost=1_234_567,
    )
    builder.device_facts(0, name="NVIDIA " + "超長型番" * 20, capacity_bytes=3 * GiB, memory_limit_bytes=2 * GiB)
    builder.device_facts(1, name="Z" * 130, capacity_bytes=1 * MiB)
    for number, frames in enumerate(FRAMES):
        builder.on(stream=(1 << 63) + number, pool=(1 << 40, number)).segment(300 * MiB)
        builder.alloc(f"block {number}", 250 * MiB, stack=frames).mark("エポック終了" * 12 if number % 2 else "m" * 120)
        builder.free_requested(f"block {number}") if number == 2 else builder.step()
        lay(builder, 518 + 90 * number, 300 * (number + 1))
    read(builder, 2 * GiB, others=None, unavailable={"other_processes_bytes": "hidden_by_" + "x" * 90})
    builder.on(device=1).segment(2 * MiB).alloc("small", 1 * MiB, stack=FRAMES[1])
    trace = builder.on(device=0).oom(200 * GiB, free=100 * MiB, total=3 * GiB).build()
    return replace(trace, meta=replace(trace.meta, program=LONG))


SHOWN: dict[str, Callable[[], Trace]] = {
    **TRACES,
    "slow_start": slow_start,
    "explained": explained_trace,
    "long_names": long_names,
}
REFUSED = {
    ("not_recorded", "replay"),
    ("not_recorded", "replay under settings"),
    ("not_recorded", "diff by stack"),  # for its limit on growth
    ("empty", "summary of a part"),
}
"""What says in a sentence on stderr why there is nothing to report."""
SAMPLE_NAMES = sorted(path.stem for path in SAMPLES.glob("*.gpumem"))


WRITTEN = ("取り込んだ" * 12 + ".gpumem", "page " * 20 + ".html", "page" * 20 + ".html")
"""The names of files that commands here are told to write."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The samples and the golden files' traces, in files with long names."""
    folder = tmp_path_factory.mktemp("t") / "長い名前のフォルダ" / ("folder " * 6)
    folder.mkdir(parents=True)
    paths = {name: SAMPLES / f"{name}.gpumem" for name in SAMPLE_NAMES}
    for name, build in SHOWN.items():
        paths[name] = folder / f"{name}_{'of_a_run' * 6}.gpumem"
        write_trace(build(), paths[name])
    return paths


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """Every report is made for each of PAGES and checked; the pages that one was made for."""
    pages: list[Page] = []

    def check_pages(render: Callable[[Page], Text]) -> None:
        for page in PAGES:
            check_narrow(render(page), page)
            pages.append(page)

    def check_notes(write: Callable[[Page], Sequence[str]]) -> None:
        for page in PAGES:
            beside = replace(page, width=page.width - len("gpumem: "))
            check_narrow(Text("\n".join(write(beside))), beside, written=WRITTEN)
            pages.append(page)

    for module in ("output", "oom"):
        monkeypatch.setattr(f"gpumem_cli.{module}.print_page", check_pages)
    for module in ("output", "run"):
        monkeypatch.setattr(f"gpumem_cli.{module}.print_report", check_notes)
    return pages


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name in (*SAMPLE_NAMES, *SHOWN) for command in COMMANDS if (name, command) not in REFUSED],
)
def test_report_of_a_trace_fits_every_terminal(
    name: str, command: str, traces: dict[str, Path], shown: list[Page], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(trace=traces[name], other=traces["long_names"]) for word in COMMANDS[command]]
    assert run_command_line(words) in (0, 1), capsys.readouterr().err
    assert len(shown) == len(PAGES)


@pytest.mark.parametrize("command", ["summary", "explain", "diff"])
def test_report_of_a_folder_fits_every_terminal(
    command: str, tmp_path: Path, shown: list[Page], capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("before", "after"):
        for rank in range(3):
            built = TRACES["training_known"]() if side == "after" else long_names()
            path = tmp_path / side / f"{'ランク' * 20}rank{rank}.gpumem"
            path.parent.mkdir(exist_ok=True)
            write_trace(replace(built, meta=replace(built.meta, rank=rank if command != "diff" else None)), path)
    words = [command, str(tmp_path / "before"), *([str(tmp_path / "after")] if command == "diff" else [])]
    assert run_command_line(words) == 0, capsys.readouterr().err
    assert len(shown) == len(PAGES)


@pytest.mark.parametrize("name", OOM_LOGS)
def test_error_explained_fits_every_terminal(name: str, tmp_path: Path, shown: list[Page]) -> None:
    log = tmp_path / ("ログ" * 30 + ".txt")
    log.write_text(OOM_LOGS[name], encoding="utf-8")
    assert run_command_line(["oom", str(log)]) == 0
    assert len(shown) == len(PAGES)


def test_demo_fits_every_terminal(tmp_path: Path, shown: list[Page]) -> None:
    path = tmp_path / ("デモ" * 30 + ".gpumem")
    assert run_command_line(["demo", "-o", str(path), "--report", str(tmp_path / WRITTEN[2])]) == 0
    assert len(shown) == 2 * len(PAGES)


def test_diagnosis_fits_every_terminal(shown: list[Page], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command_line(["doctor"]) in (0, 1)
    checks = [
        Check("pluggable_allocator", CheckState.BROKEN, f"{LONG} is not there: " + "x" * 99, "pip install " + LONG),
        Check("nvml", CheckState.MISSING, "Treiber 訓練 " * 9, "Install it, or see " + "y" * 99),
    ]
    monkeypatch.setattr("gpumem.analyses.doctor.measure_machine", lambda folder: Diagnosis(checks))
    assert run_command_line(["doctor"]) in (0, 1)
    assert len(shown) == 2 * len(PAGES)


def test_what_was_written_is_told_on_every_terminal(
    tmp_path: Path, traces: dict[str, Path], shown: list[Page], capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / WRITTEN[0]
    assert run_command_line(["import", str(SAMPLES / "nine_steps.gpumem"), "-o", str(made)]) == 0, capsys.readouterr()
    page = tmp_path / WRITTEN[1]
    assert run_command_line(["report", str(traces["long_names"]), "-o", str(page)]) == 0
    assert len(shown) == 2 * len(PAGES)


@pytest.mark.parametrize("name", [*SAMPLE_NAMES, *SHOWN])
def test_end_of_a_run_fits_every_terminal(name: str, traces: dict[str, Path]) -> None:
    summary = summarise_trace(open_trace(traces[name]))
    for page in PAGES:
        beside = replace(page, width=page.width - len("gpumem: "))
        lines = render_run_end([summary, summary], beside)
        check_narrow(Text("\n".join(lines)), beside, written=[traces[name].name])
        command = f"gpumem report {shlex.quote(str(traces[name]))} {shlex.quote(str(traces[name]))}"
        assert lines[-1].removeprefix("or on one page:").strip() == command
