"""What a recorded process is told: the JSON of the GPUMEM_RECORD variable.

Owns: the fields, their JSON, and the names of the trace files they lead to. Must not know: who reads the variable
or how a recording is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gpumem.errors import UsageError
from gpumem.recorder.startup import VARIABLE as VARIABLE
from gpumem.vocabulary import AllocatorChoice

TRACE_SUFFIX = ".gpumem"
NVML_SECONDS_MOST = 3600
_PROGRAM_BYTES_MAX = 160
"""Of a file's name, which has 255 at most."""


@dataclass(frozen=True, slots=True)
class RecordSpec:
    """How the processes of one run record: what `gpumem run` decided once for all of them."""

    run_id: str
    """32 hexadecimal digits, shared by all processes of the run."""
    folder: str
    """Absolute folder of the traces."""
    stem: str
    """File name of the other processes' traces up to `.rank3.gpumem` or `.<pid>.gpumem`."""
    main_pid: int = 0
    """The process that takes `first_name`; 0: the first one to start."""
    first_name: str | None = None
    """File name of the main process's trace; None: `stem` with the suffix."""
    stacks: bool = True
    nvml_interval_ms: int = 100
    """Milliseconds between two NVML readings; 0: no readings."""
    memory_limit_bytes: int | None = None
    """What PyTorch may take of a device; None: no limit of ours."""
    journal_folder: str | None = None
    """Absolute folder of the journals where it is not `folder`: that one cannot be mapped."""
    sealed_by_other: bool = True
    """Someone else runs the sealer; False: the main process starts it."""
    allocator: str = AllocatorChoice.AUTO.value
    """The value of an AllocatorChoice: which allocator serves the program."""

    def to_json(self) -> str:
        """The value of GPUMEM_RECORD."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def allocator_choice(self) -> AllocatorChoice:
        """Which allocator serves the program."""
        return AllocatorChoice(self.allocator)

    @property
    def journals(self) -> Path:
        """The folder in which the journals stand."""
        return Path(self.folder if self.journal_folder is None else self.journal_folder)

    def journal_path(self, trace_path: Path) -> Path:
        """The journal that becomes `trace_path`."""
        return self.journals / journal_path(trace_path).name

    @property
    def main_trace_name(self) -> str:
        """File name of the main process's trace."""
        return self.first_name if self.first_name is not None else self.stem + TRACE_SUFFIX


def parse_spec(text: str) -> RecordSpec:
    """The spec in `text`; fields unknown to this version are left out.

    Raises UsageError when `text` is no spec.
    """
    try:
        values = json.loads(text)
        known = {each.name for each in fields(RecordSpec)}
        spec = RecordSpec(**{name: value for name, value in values.items() if name in known})
        bytes.fromhex(spec.run_id)
        AllocatorChoice(spec.allocator)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{VARIABLE} is set, but not by gpumem run ({error}); unset it, or start the program with gpumem run."
        ) from None
    return spec


def find_rank(environment: Mapping[str, str]) -> int | None:
    """The rank a launcher gave this process (RANK, else LOCAL_RANK); None when there is none."""
    for name in ("RANK", "LOCAL_RANK"):
        text = environment.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def find_trace_path(spec: RecordSpec, *, pid: int, rank: int | None, is_main: bool) -> Path:
    """Where the process `pid` writes its trace: a name that neither a trace nor a journal has taken.

    The main process overwrites a trace of its name, since `gpumem run` looked before; the journal of that name is
    there already where the process has replaced itself by another program.
    """
    folder = Path(spec.folder)
    if is_main and not spec.journal_path(folder / spec.main_trace_name).exists():
        return folder / spec.main_trace_name
    candidates = [f"{spec.stem}.{pid}"]
    if rank is not None:
        candidates = [f"{spec.stem}.rank{rank}", f"{spec.stem}.rank{rank}.{pid}"]
    for name in candidates:
        if not is_taken(folder / (name + TRACE_SUFFIX)):
            return folder / (name + TRACE_SUFFIX)
    return folder / (find_free_stem(folder, candidates[-1]) + TRACE_SUFFIX)


def milliseconds_of(seconds: float) -> int:
    """The time between two NVML readings, at least 1 ms, or 0 for none; raises UsageError for what is no such time."""
    if not 0 <= seconds <= NVML_SECONDS_MOST:
        raise UsageError(
            f"{seconds} is no time between two NVML readings; it is 0, for none, to {NVML_SECONDS_MOST} s."
        )
    return max(1, round(1000 * seconds)) if seconds else 0


def find_default_stem(folder: Path, program: str, pid: int) -> str:
    """`PROGRAM.<pid>` or that with a number, free in `folder`: of a long name so much that a file's name holds it and
    what the journal and the sealer add.
    """
    name = os.fsencode(program)
    if len(name) > _PROGRAM_BYTES_MAX:
        program = name[:_PROGRAM_BYTES_MAX].decode(errors="ignore")
    return find_free_stem(folder, f"{program}.{pid}")


def find_free_stem(folder: Path, stem: str) -> str:
    """`stem`, or `stem` with the first number from 2 that no trace or journal in `folder` has taken."""
    number = 1
    name = stem
    while is_taken(folder / (name + TRACE_SUFFIX)):
        number += 1
        name = f"{stem}.{number}"
    return name


def is_taken(trace_path: Path) -> bool:
    """Whether a trace of this name, or a journal that would become it, exists."""
    return os.path.lexists(trace_path) or journal_path(trace_path).exists()


def journal_path(trace_path: Path) -> Path:
    """The journal that becomes `trace_path` once it is sealed."""
    return trace_path.with_name(trace_path.name + ".journal")


def part_path(trace_path: Path) -> Path:
    """The growing trace that is renamed to `trace_path` once it is complete."""
    return trace_path.with_name(trace_path.name + ".part")
