"""`gpumem explain`: nvidia-smi against the allocator, every component named.

Owns: its flags. Must not know: how findings are made or drawn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpumem.errors import DeviceUnavailable, UsageError
from gpumem_cli import options

if TYPE_CHECKING:
    from gpumem.analyses.explain import Explanation
    from gpumem.machine.holders import MachineNow
    from gpumem.trace.model import Trace


@click.command()
@click.argument("trace", metavar="[TRACE]", required=False, callback=options.check_path)
@options.at_option("; without it, the peak, or now while the program runs")
@click.option("--pid", type=options.whole_number(1), metavar="PID", help="A running process, recorded or not.")
@click.option(
    "--message",
    metavar="TEXT|FILE|-",
    help="An out-of-memory error, or a log with one; - reads standard input. The same as gpumem oom.",
)
@options.json_option
@options.device_option
@options.rank_option
def explain(
    trace: str | None,
    moment: str | None,
    pid: int | None,
    message: str | None,
    as_json: bool,
    device: int | None,
    rank: int | None,
) -> None:
    """Say where the bytes go that nvidia-smi shows: a ledger from NVML's figure down to the live requests.

    TRACE is a .gpumem file, the journal of a running or killed program, a memory snapshot of PyTorch, or a folder of
    them: of several, a line each and the ledger of the one that holds the most (another with --rank). Without TRACE,
    the devices of this machine and the processes on them now: who holds what, children that outlived their program, and
    what cannot be seen from here. No process is touched. --device is the program's number of it in a recording, and
    NVML's where there is none.
    """
    if message is not None:
        if any(one is not None for one in (trace, pid, moment, device, rank)):
            raise UsageError("--message stands alone: it needs no trace, and no process.")
        if not message.strip():
            raise UsageError("--message is empty; give the error's text, the name of a log, or - for standard input.")
        _explain_message(message, as_json)
        return
    if trace is not None and pid is not None:
        raise UsageError("Give a trace or --pid, not both.")
    if trace is not None:
        _explain_trace(trace, moment, as_json, device, rank)
        return
    if rank is not None:
        raise UsageError("--rank names one of several recordings: give the folder that they are in.")
    if moment is not None and pid is None:
        raise UsageError("--at names a moment of a recording: give its trace, or --pid of a process being recorded.")
    _explain_running(pid, moment, as_json, device)


def _explain_message(message: str, as_json: bool) -> None:
    """What is no file's name is the error itself."""
    from gpumem.importers.oom_log import read_oom_log, read_oom_text
    from gpumem.importers.oom_text import find_starts
    from gpumem_cli.oom import print_oom

    is_text = not os.path.exists(message) and (" " in message or "\n" in message or bool(find_starts(message)))
    print_oom(read_oom_text(message) if is_text else read_oom_log(message), as_json=as_json)


def _explain_trace(trace: str, moment: str | None, as_json: bool, device: int | None, rank: int | None) -> None:
    from gpumem_cli.output import print_json, print_page

    found = [_find_explanation(one, moment, device) for one in options.open_ranks(trace, rank)]
    if as_json:
        from gpumem.render.json_explain import render_explanations as render_json

        print_json(render_json(found))
    else:
        from gpumem.render.terminal.explain_ranks import render_explanations

        print_page(lambda page: render_explanations(found, page))


def _find_explanation(trace: Trace, moment: str | None, device: int | None) -> Explanation:
    from gpumem.analyses.explain import find_explanation
    from gpumem.trace.moments import parse_moment

    devices = options.chosen_devices(trace, device)
    return find_explanation(trace, None if moment is None else parse_moment(moment), devices=devices)


def _explain_running(pid: int | None, moment: str | None, as_json: bool, device: int | None) -> None:
    from gpumem.analyses.live import explain_machine
    from gpumem.simulate.opening import open_trace
    from gpumem_cli.output import print_json, print_page

    machine = _read_machine(pid)
    journal = None if pid is None else machine.journals.get(pid)
    device_now = None if journal is not None else device
    if device_now is not None:
        _check_device(machine, pid, device_now)
    live = explain_machine(machine, pid=pid, device=device_now)
    if moment is not None and journal is None:
        raise UsageError(f"Process {pid} is not being recorded and has no moments; leave --at out.")
    recorded = None if journal is None else _find_explanation(open_trace(journal), moment, device)
    if as_json:
        from gpumem.render.json_live import render_live as render_json

        print_json(render_json(live, recorded))
        return
    from rich.text import Text

    from gpumem.render.terminal.explain import render_explanation
    from gpumem.render.terminal.live import render_live

    print_page(lambda page: render_live(live, page))
    if recorded is not None:
        print_page(lambda page: Text("\n").append(render_explanation(recorded, page)))


def _read_machine(pid: int | None) -> MachineNow:
    """The machine now; raises DeviceUnavailable without NVML, UsageError for a process that is not there."""
    from gpumem.machine.holders import read_machine
    from gpumem.nvml import Nvml, Unavailable, open_nvml

    nvml = open_nvml()
    machine = read_machine(nvml) if isinstance(nvml, Nvml) else nvml
    if isinstance(machine, Unavailable):
        raise DeviceUnavailable(
            f"There is no GPU here to explain: {machine.reason}. A recording can be explained anywhere: gpumem explain "
            "TRACE."
        )
    listed = {one.pid for now in machine.devices if not isinstance(now.listed, Unavailable) for one in now.listed}
    if pid is not None and not machine.is_proc_foreign and pid not in machine.processes and pid not in listed:
        raise UsageError(f"There is no process {pid}; gpumem explain lists those on the GPUs.")
    return machine


def _check_device(machine: MachineNow, pid: int | None, device: int) -> None:
    """Raises UsageError where NVML has no such device, or lists the devices of process `pid` and it is none of them."""
    from gpumem.nvml import Unavailable

    known = sorted({now.device.index for now in machine.devices})
    if device not in known:
        raise UsageError(f"NVML has no device {device}; it has {', '.join(map(str, known)) or 'none'}.")
    lists = [(now.device.index, now.listed) for now in machine.devices]
    if pid is None or any(index == device and isinstance(listed, Unavailable) for index, listed in lists):
        return
    held = sorted(
        {
            index
            for index, listed in lists
            if not isinstance(listed, Unavailable) and any(one.pid == pid for one in listed)
        }
    )
    if device not in held:
        others = f"on {' and '.join(f'device {index}' for index in held)}" if held else "on no device"
        raise UsageError(f"Process {pid} is not on NVML's device {device}; it is {others}.")
