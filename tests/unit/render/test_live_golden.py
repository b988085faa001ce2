"""What running processes look like in the terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from explained_traces import explained_trace
from gpumem.analyses.explain import find_explanation
from gpumem.analyses.live import LiveExplanation, explain_machine
from gpumem.machine.holders import MachineNow, read_machine
from gpumem.nvml import Nvml, open_nvml
from gpumem.render.json_live import render_live as render_json
from gpumem.render.terminal.live import render_live
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.trace.moments import End
from narrow_page import PAGES, check_narrow
from nvml_stand_in import MIB, Figures, ListedProcess, StandInDevice, StandInError, StandInNvml
from pretended_proc import PretendedProc
from trace_builder import GiB

CARD = 143_771 * MIB
RESERVE = 615 * MIB
UVM = ("/dev/nvidia0", "/dev/nvidia-uvm")


def card(number: int, used: int, **lists: list[ListedProcess] | StandInError) -> StandInDevice:
    memory = Figures(CARD, used, CARD - RESERVE - used, RESERVE)
    return StandInDevice(uuid=f"GPU-{number}", name="NVIDIA H200", memory=memory, **lists)


def busy(proc: PretendedProc) -> tuple[StandInDevice, ...]:
    """A training run on two cards with a stray context, a child left behind, a container, unlisted bytes."""
    proc.add(5, name="bash", command=("bash",))
    proc.add(4711, parent=5, session=5, command=("python3", "train.py", "--epochs", "3"), files=UVM)
    proc.add(4712, parent=4711, group=4711, session=5, command=("python3", "train.py", "--epochs", "3"), files=UVM)
    proc.add(3020, parent=1, group=3001, session=3001, command=("python3", "old run.py"), files=UVM)
    proc.add(812, parent=800, command=("/opt/serve", "--port", "80"), container="0123456789ab" + "c" * 52)
    first = [
        ListedProcess(4711, 60 * GiB),
        ListedProcess(4712, 518 * MIB),
        ListedProcess(3020, 1600 * MIB),
        ListedProcess(812, 9 * GiB),
    ]
    second = [ListedProcess(4712, 58 * GiB)]
    return (
        card(0, 60 * GiB + 518 * MIB + 1600 * MIB + 9 * GiB + 9 * MIB, compute=first),
        card(1, 61 * GiB, compute=second),
    )


def hidden(proc: PretendedProc) -> tuple[StandInDevice, ...]:
    """A container's view: foreign pids, hidden figures, refused lists, hidden files."""
    proc.add(17, name="\x1b[31m", command=("\udcff<b>", "a\nb" * 60), parent=5, files=None)
    listed = [ListedProcess(99001, 2 * GiB), ListedProcess(17, None)]
    old = card(2, 0)
    old.has_version_2 = False
    return card(0, 3 * GiB, compute=listed), card(1, 0, compute=StandInError("Insufficient Permissions")), old


def idle(proc: PretendedProc) -> tuple[StandInDevice, ...]:
    """A card that nobody uses, according to the list."""
    proc.add(6000, parent=1, group=5990, session=5990, files=UVM)
    return (card(0, 10 * GiB),)


MACHINES = {"busy": busy, "hidden": hidden, "idle": idle}


def explain(name: str, root: Path, pid: int | None = None) -> LiveExplanation:
    namespace = "pid:[4026532001]" if name == "hidden" else "pid:[4026531836]"
    nvml = open_nvml(StandInNvml(*MACHINES[name](proc := PretendedProc(root, own_namespace=namespace))))
    assert isinstance(nvml, Nvml)
    machine = read_machine(nvml, proc.root)
    assert isinstance(machine, MachineNow)
    return explain_machine(machine, pid=pid)


@pytest.fixture(autouse=True)
def anna(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests, the pretended processes are hers."""
    monkeypatch.setattr("gpumem.machine.processes._user_name", lambda owner: "anna")


@pytest.mark.parametrize("width", list(PAGES))
@pytest.mark.parametrize("name", list(MACHINES))
def test_machine_looks_like_its_golden(
    name: str, width: str, golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    page = PAGES[width]
    text = render_live(explain(name, tmp_path), page).plain
    for line in text.splitlines():
        assert len(line) <= page.width or line.startswith("    ps -o"), line
        assert line.isprintable(), line
        assert line == line.rstrip(), line
    golden(f"live_{name}_{width}.txt", text)


@pytest.mark.parametrize("name", list(MACHINES))
def test_machine_fits_narrow_terminals(name: str, tmp_path: Path) -> None:
    live = explain(name, tmp_path)
    for width in (40, 43, 54, 60, 71, 100):
        check_narrow(render_live(live, Page(width, UNICODE)), Page(width, UNICODE))


def test_one_process_looks_like_its_golden(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    golden("live_pid_80.txt", render_live(explain("busy", tmp_path, pid=4712), PAGES["80"]).plain)


def test_json_lists_processes_and_findings_with_the_command_to_look(tmp_path: Path) -> None:
    document = json.loads(render_json(explain("busy", tmp_path)))
    assert (document["schema"], document["process_bytes"], document["components"]) == ("gpumem.explain/1", None, [])
    first = document["devices"][0]
    assert [(one["pid"], one["bytes"]) for one in first["processes"]][:2] == [(4711, 60 * GiB), (812, 9 * GiB)]
    assert first["processes"][1]["container"] == "0123456789ab"
    assert (first["reserved_bytes"], first["unlisted_bytes"]) == (RESERVE, 9 * MIB)
    (left,) = [one for one in document["findings"] if one["code"] == "surviving_child"]
    assert (left["pids"], left["bytes"]) == ([3020], 1600 * MIB)
    assert left["next"] == "ps -o pid,ppid,pgid,stat,user,etime,args -p 3020"
    assert not any("kill" in (one["next"] or "") for one in document["findings"])


def test_json_of_a_process_on_two_devices_has_the_figure_of_the_one_that_holds_most(tmp_path: Path) -> None:
    document = json.loads(render_json(explain("busy", tmp_path, pid=4712)))
    assert (document["process_bytes"], document["unexplained_bytes"]) == (58 * GiB, 58 * GiB)
    assert [device["processes"][0]["bytes"] for device in document["devices"]] == [518 * MIB, 58 * GiB]


def test_json_says_null_and_why_where_a_figure_is_hidden(tmp_path: Path) -> None:
    first, second, third = json.loads(render_json(explain("hidden", tmp_path)))["devices"]
    assert [one["bytes"] for one in first["processes"]] == [2 * GiB, None]
    assert (first["listed_bytes"], first["unlisted_bytes"]) == (None, None)
    assert (second["processes"], second["listed_bytes"]) == ([], None)
    assert second["unavailable"]["processes"] == "NVML: Insufficient Permissions"
    assert (third["used_bytes"], third["reserved_bytes"]) == (None, None)
    assert third["unavailable"]["used_bytes"].startswith("used and reserved cannot be told apart")


def test_json_of_a_process_that_is_not_recorded_leaves_its_bytes_unexplained(tmp_path: Path) -> None:
    document = json.loads(render_json(explain("busy", tmp_path, pid=4711)))
    assert (document["pid"], document["process_bytes"], document["unexplained_bytes"]) == (4711, 60 * GiB, 60 * GiB)
    assert [one["code"] for one in document["findings"]] == ["not_recorded"]


def test_json_of_a_recorded_process_has_its_ledger(tmp_path: Path) -> None:
    ledger = find_explanation(explained_trace(running=True), End())
    document = json.loads(render_json(explain("busy", tmp_path, pid=4711), ledger))
    assert document["process_bytes"] == 1838 * MIB
    assert {one["code"] for one in document["findings"]} >= {"empty_cache", "not_recorded"}
    assert document["devices"][0]["processes"][0]["pid"] == 4711
