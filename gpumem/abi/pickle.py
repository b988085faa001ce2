"""The native core's functions on pickles, typed.

Owns: their layouts and prototypes in gpumem.h (a test compares both). Must not know: what the entries mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_uint32, c_uint64, c_void_p
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

    _fields_ = (
        ("offset", c_uint64),
        ("loaded_bytes", c_uint64),
        ("byte_count", c_uint64),
        ("verdict", c_uint32),
        ("opcode", c_uint32),
    )


class CSnapshotParts(ctypes.Structure):
    """gm_snapshot_parts."""

    _fields_ = (
        ("entries", c_void_p),
        ("entry_count", c_uint64),
        ("rest", c_void_p),
        ("rest_bytes", c_uint64),
        ("texts", c_void_p),
        ("text_count", c_uint64),
        ("trace_count", c_uint32),
        ("frames_count", c_uint32),
    )


PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gm_pickle_check": (c_int32, (c_void_p, c_uint64, POINTER(CPickleReport))),
    "gm_snapshot_skim_create": (c_int32, (c_char_p, c_uint64, POINTER(c_void_p))),
    "gm_snapshot_skim_get": (c_int32, (c_void_p, POINTER(CSnapshotParts))),
    "gm_snapshot_skim_free": (None, (c_void_p,)),
}
"""Result and argument types of the functions on pickles."""


@dataclass(frozen=True, slots=True)
class PickleReport:
    """What the check found: where it stopped, the memory that loading will take (estimated), the last opcode."""

    verdict: PickleVerdict
    offset: int
    opcode: int
    loaded_bytes: int


def check_pickle(content: bytearray) -> PickleReport:
    """Walks a pickle without making any value; only a PLAIN one is safe to load. Frame headers go from `content`."""
    report = CPickleReport()
    view = (c_char * len(content)).from_buffer(content)
    status = _function("gm_pickle_check")(ctypes.addressof(view), len(content), byref(report))
    assert status == abi.Status.OK
    del view
    del content[report.byte_count :]
    return PickleReport(PickleVerdict(report.verdict), report.offset, report.opcode, report.loaded_bytes)


ENTRY_BYTES = 64
"""Size of gm_snapshot_entry."""


class SnapshotSkim:
    """A snapshot's pickle taken apart: its entries as 64-byte rows, and a pickle of the rest. Use it with `with`."""

    def __init__(self, content: bytearray, handle: int) -> None:
        self._content = content
        self._handle = handle
        self._parts = CSnapshotParts()
        status = _function("gm_snapshot_skim_get")(handle, byref(self._parts))
        assert status == abi.Status.OK

    def __enter__(self) -> SnapshotSkim:
        return self

    def __exit__(self, *_: object) -> None:
        _function("gm_snapshot_skim_free")(self._handle)

    @property
    def entries(self) -> memoryview:
        """The rows (gm_snapshot_entry), valid until the skim is closed."""
        return _view(self._parts.entries, self._parts.entry_count * ENTRY_BYTES)

    @property
    def rest(self) -> bytearray:
        """A pickle of everything else; in `device_traces` only lists of frames are left."""
        return bytearray(_view(self._parts.rest, self._parts.rest_bytes))

    @property
    def trace_count(self) -> int:
        return int(self._parts.trace_count)

    @property
    def frames_count(self) -> int:
        """Lists of frames in the rest, over all traces."""
        return int(self._parts.frames_count)

    def text(self, row: int) -> str:
        """The text that a row's compile_context or metadata names; empty for 0."""
        assert row < self._parts.text_count
        offset, length = (c_uint64 * 2).from_address(self._parts.texts + 16 * row)
        return self._content[offset : offset + length].decode("utf-8", "replace")


def skim_snapshot(content: bytearray) -> SnapshotSkim | None:
    """The entries of a snapshot's pickle that check_pickle found plain; None where one is not as PyTorch writes it.

    `content` must stay as it is until the skim is closed.
    """
    handle = c_void_p()
    view = (c_char * len(content)).from_buffer(content)
    status = _function("gm_snapshot_skim_create")(view, len(content), byref(handle))
    del view
    return SnapshotSkim(content, handle.value) if status == abi.Status.OK and handle.value else None


def _view(address: int | None, byte_count: int) -> memoryview:
    return (
        memoryview((c_char * byte_count).from_address(address)).cast("B") if address and byte_count else memoryview(b"")
    )


def _function(name: str) -> Callable[..., int]:
    result, arguments = PROTOTYPES[name]
    return ctypes.CFUNCTYPE(result, *arguments)(abi.function_address(name))
