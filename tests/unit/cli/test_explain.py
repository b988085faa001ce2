"""`gpumem explain` on running processes, as people type it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from explained_traces import lay
from gpumem.nvml import Unavailable
from gpumem.trace.file import write_trace
from gpumem_cli.main import run_command_line
from journal_maker import JournalMaker
from nvml_stand_in import MIB, ListedProcess, StandInDevice, split_device
from pretended_machine import pretend_machine
from pretended_proc import PretendedProc
from trace_builder import TraceBuilder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendedProc:
    """A machine with process 10 on its one device, in place of this one."""
    return pretend_machine(tmp_path, monkeypatch, StandInDevice(compute=[ListedProcess(10, 50 * MIB)]))


def gpumem(capture: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command_line(["explain", *arguments])
    return code, *capture.readouterr()


def test_machine_is_explained_without_an_argument(machine: PretendedProc, capsys: pytest.CaptureFixture[str]) -> None:
    machine.add(10, parent=5)
    code, text, err = gpumem(capsys)
    assert (code, err) == (0, "")
    assert text.startswith("1 GPU, driver 580.159.04: 50.00 MiB held by 1 process.")
    assert "python3 train.py" in text
    document = json.loads(gpumem(capsys, "--json")[1])
    assert document["devices"][0]["processes"][0]["command"] == ["python3", "train.py"]


def test_process_is_explained_by_its_pid(machine: PretendedProc, capsys: pytest.CaptureFixture[str]) -> None:
    machine.add(10, parent=5)
    code, text, _ = gpumem(capsys, "--pid", "10")
    assert code == 0
    assert text.startswith("Process 10 (python3 train.py) holds 50.00 MiB of device 0")
    assert "is not being recorded" in text
    code, text, _ = gpumem(capsys, "--pid", str(os.getpid()))
    assert code == 0
    assert "on no device" in text


def test_recorded_process_is_explained_by_its_journal(
    machine: PretendedProc, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    maker = JournalMaker(tmp_path / "train.10.gpumem.journal")
    maker.pairs(3)
    machine.add(10, parent=5, journal=maker.path)
    code, text, _ = gpumem(capsys, "--pid", "10")
    assert code == 0
    assert "allocator: reserved" in text
    document = json.loads(gpumem(capsys, "--pid", "10", "--json")[1])
    assert document["path"].endswith("train.10.gpumem.journal")
    assert {"recorded", "no_process_figure"} <= {one["code"] for one in document["findings"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--pid", "77"), "There is no process 77; gpumem explain lists those on the GPUs."),
        (("--device", "3"), "NVML has no device 3; it has 0."),
        (("--pid", "10", "--device", "3"), "NVML has no device 3; it has 0."),
        (("--at", "peak"), "--at names a moment of a recording: give its trace, or --pid"),
        (("--pid", "10", "--at", "peak"), "Process 10 is not being recorded and has no moments; leave --at out."),
        (("x.gpumem", "--pid", "10"), "Give a trace or --pid, not both."),
    ],
)
def test_mistake_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, machine: PretendedProc, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = gpumem(capsys, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_machine_without_a_driver_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.nvml.open_nvml", lambda: Unavailable("NVML: Driver Not Loaded"))
    code, out, err = gpumem(capsys)
    assert (code, out) == (3, "")
    assert "There is no GPU here to explain: NVML: Driver Not Loaded." in err


def test_folder_of_ranks_is_a_line_each_and_the_ledger_of_the_one_that_holds_the_most(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank, process_mib in enumerate((600, 900, 700)):
        builder = TraceBuilder(rank=rank, block_bytes_known=True).segment(20 * MIB).alloc("a", 15 * MIB)
        write_trace(lay(builder, process_mib - 20, 20).build(), tmp_path / f"train.7.rank{rank}.gpumem")
    code, text, err = gpumem(capsys, str(tmp_path))
    lines = text.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "Of 3 ranks, rank 1 holds the most; --rank N shows another."
    assert [line.split()[:4] for line in lines[3:6]] == [
        ["0", "0", "600.00", "MiB"],
        ["1", "0", "900.00", "MiB"],
        ["2", "0", "700.00", "MiB"],
    ]
    assert "this process                   900.00 MiB    of it" in lines
    assert max(map(len, lines)) <= 80
    document = json.loads(gpumem(capsys, str(tmp_path), "--json")[1])
    assert document["schema"] == "gpumem.explanations/1"
    assert [one["process_bytes"] // MIB for one in document["ranks"]] == [600, 900, 700]
    assert [one["schema"] for one in document["explanations"]] == ["gpumem.explain/1"] * 3
    assert json.loads(gpumem(capsys, str(tmp_path), "--rank", "2", "--json")[1])["rank"] == 2
    code, _, err = gpumem(capsys, str(tmp_path), "--rank", "4")
    assert (code, err) == (2, f"gpumem: {tmp_path} has no trace of rank 4; it has rank 0, 1, 2.\n")
    assert gpumem(capsys, "--rank", "4")[0] == 2


def test_traces_without_ranks_are_told_apart_in_60_columns_and_one_of_equals_is_not_the_most(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = ("training_run_one", "training_run_two", "training_run_three")
    for name in names:
        builder = TraceBuilder(block_bytes_known=True).segment(20 * MIB).alloc("a", 15 * MIB)
        write_trace(lay(builder, 880, 20).build(), tmp_path / f"{name}.gpumem")
    for command in ("explain", "summary", "diff"):
        code = run_command_line([command, str(tmp_path), *([str(tmp_path)] if command == "diff" else [])])
        lines = capsys.readouterr().out.splitlines()
        head = next(at for at, line in enumerate(lines) if line.startswith("  device"))
        shown = [line.rsplit("  ", 1)[-1] for line in lines[head + 1 : head + 4]]
        assert (code, len(set(shown)), max(map(len, lines)) <= 60) == (0, 3, True), lines
    title = gpumem(capsys, str(tmp_path))[1].split("\n\n")[0].replace("\n", " ")
    assert title == "Of 3 traces, training_run_one.gpumem and 2 more hold the most; name another to see its ledger."


def test_device_beside_the_pid_of_a_process_that_is_not_recorded_is_nvml_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proc = pretend_machine(
        tmp_path,
        monkeypatch,
        StandInDevice(compute=[ListedProcess(10, 50 * MIB)]),
        StandInDevice(compute=[ListedProcess(10, 70 * MIB), ListedProcess(11, 5 * MIB)]),
        StandInDevice(),
    )
    proc.add(10, parent=5)
    proc.add(11, parent=5)
    assert "holds 50.00 MiB of device 0, 70.00 MiB of\ndevice 1, driver" in gpumem(capsys, "--pid", "10")[1]
    code, text, err = gpumem(capsys, "--pid", "10", "--device", "1")
    assert (code, err) == (0, "")
    assert text.startswith("Process 10 (python3 train.py) holds 70.00 MiB of device 1")
    document = json.loads(gpumem(capsys, "--pid", "10", "--device", "1", "--json")[1])
    assert [one["nvml_index"] for one in document["devices"]] == [1]
    assert document["process_bytes"] == 70 * MIB
    for pid, sentence in (("10", "device 0 and device 1"), ("11", "device 1"), (str(os.getpid()), "no device")):
        code, text, err = gpumem(capsys, "--pid", pid, "--device", "2")
        assert (code, text) == (2, "")
        assert f"Process {pid} is not on NVML's device 2; it is on {sentence}." in err


def test_split_gpu_is_shown_by_its_mig_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instances = {
        1: StandInDevice(name="card MIG 1g", compute=[ListedProcess(10, 50 * MIB)]),
        2: StandInDevice(name="card MIG 2g", compute=[ListedProcess(11, 70 * MIB)]),
    }
    proc = pretend_machine(tmp_path, monkeypatch, split_device(instances))
    proc.add(10, parent=5)
    proc.add(11, parent=5)
    code, text, err = gpumem(capsys)
    assert (code, err) == (0, "")
    assert text.startswith("1 GPU with 2 MIG instances, driver 580.159.04: 120.00 MiB held by 2 processes.")
    assert "device 0 (MIG 2): card MIG 2g" in text
    assert gpumem(capsys, "--pid", "11", "--device", "0")[1].startswith(
        "Process 11 (python3 train.py) holds 70.00 MiB of device 0 (MIG 2)"
    )
    devices = json.loads(gpumem(capsys, "--json")[1])["devices"]
    assert [(one["nvml_index"], one["mig_instance"], one["listed_bytes"]) for one in devices] == [
        (0, 1, 50 * MIB),
        (0, 2, 70 * MIB),
    ]


def test_ranks_that_hold_the_same_are_not_ranked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(TraceBuilder(rank=rank).segment(20 * MIB).build(), tmp_path / f"rank{rank}.gpumem")
    text = gpumem(capsys, str(tmp_path))[1]
    assert text.startswith("2 ranks hold the same; the first of them is shown, --rank N shows another.\n")
