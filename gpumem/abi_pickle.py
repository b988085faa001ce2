"""The native check of pickles, typed.

Owns: gm_pickle_report's layout and the call. Must not know: what a pickle is expected to hold.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum

from gpumem import abi


class PickleVerdict(IntEnum):
    """gm_pickle_verdict: what a pickle holds."""

    PLAIN = 0
    CUT_OFF = 1
    NOT_PLAIN = 2
    DAMAGED = 3


class CPickleReport(ctypes.Structure):
    """gm_pickle_report."""

    _fields_ = (("offset", c_uint64), ("loaded_bytes", c_uint64), ("verdict", c_uint32), ("opcode", c_uint32))


@dataclass(frozen=True, slots=True)
class PickleReport:
    """What the check found: where it stopped, the memory that loading will take (estimated), the last opcode."""

    verdict: PickleVerdict
    offset: int
    opcode: int
    loaded_bytes: int


def check_pickle(content: bytearray) -> PickleReport:
    """Walks a pickle without making any value; only a PLAIN one is safe to load."""
    call = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p)(abi.function_address("gm_pickle_check"))
    report = CPickleReport()
    view = (c_char * len(content)).from_buffer(content)
    status = call(ctypes.addressof(view), len(content), ctypes.addressof(report))
    assert status == abi.Status.OK
    return PickleReport(PickleVerdict(report.verdict), report.offset, report.opcode, report.loaded_bytes)
