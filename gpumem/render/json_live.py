"""Running processes as JSON: gpumem.explain/1 with `devices`, and the ledger of a recorded process above them.

Owns: its key names. Must not know: how anything was found. No arithmetic.
"""

from __future__ import annotations

from gpumem.analyses.explain import Explanation
from gpumem.analyses.live import Holder, LiveDevice, LiveExplanation, LiveFinding
from gpumem.nvml import Unavailable
from gpumem.render.json_explain import explanation_json
from gpumem.render.json_parts import Json, document
from gpumem.render.live_text import live_finding_next, live_finding_text, state_text


def render_live(live: LiveExplanation, recorded: Explanation | None = None) -> str:
    """The devices and who holds them; of a recorded process its ledger too."""
    findings: list[Json] = [_finding(finding) for finding in live.findings]
    content: dict[str, Json] = {
        "process_bytes": live.process_bytes,
        "components": [],
        "unexplained_bytes": live.process_bytes,
        "findings": findings,
    }
    if recorded is not None:
        content = explanation_json(recorded)
        ledger_findings = content["findings"]
        assert isinstance(ledger_findings, list), "findings are a list in every document"
        content["findings"] = [*ledger_findings, *findings]
    return document(
        {
            "schema": "gpumem.explain/1",
            "pid": live.pid,
            **content,
            "driver_version": live.driver_version,
            "devices": [_device(device) for device in live.devices],
        }
    )


def _device(device: LiveDevice) -> Json:
    now = device.now
    figures = {
        "total_bytes": now.memory.total_bytes,
        "used_bytes": now.memory.used_bytes,
        "free_bytes": now.memory.free_bytes,
        "reserved_bytes": now.memory.reserved_bytes,
    }
    missing: dict[str, Json] = {name: one.reason for name, one in figures.items() if isinstance(one, Unavailable)}
    if isinstance(now.listed, Unavailable):
        missing["processes"] = now.listed.reason
    return {
        "nvml_index": now.device.index,
        "mig_instance": now.device.instance,
        "uuid": now.device.uuid,
        "device_name": now.device.name,
        **{name: _known(one) for name, one in figures.items()},
        "listed_bytes": device.listed_bytes,
        "unlisted_bytes": device.unlisted_bytes,
        "unavailable": missing,
        "processes": [_holder(holder) for holder in device.holders],
    }


def _holder(holder: Holder) -> Json:
    process = holder.process
    return {
        "pid": holder.pid,
        "bytes": holder.held_bytes,
        "kinds": sorted(kind.value for kind in holder.kinds),
        "visible": process is not None,
        "user": None if process is None else process.user,
        "command": None if process is None else list(process.command) or [process.name],
        "state": None if process is None else state_text(process.state),
        "parent_pid": None if process is None else process.parent_pid,
        "container": None if process is None else process.container,
        "left_behind": holder.is_left_behind,
        "journal": None if holder.journal is None else str(holder.journal),
    }


def _finding(finding: LiveFinding) -> Json:
    return {
        "code": finding.code.value,
        "text": live_finding_text(finding),
        "bytes": finding.held_bytes,
        "pids": list(finding.pids),
        "nvml_index": finding.device,
        "next": live_finding_next(finding),
    }


def _known(figure: int | Unavailable) -> int | None:
    return None if isinstance(figure, Unavailable) else figure
