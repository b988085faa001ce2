"""The built torch tracker as Python calls it.

Owns: loading the library and the prototypes of its three functions. Must not know: when it is attached, where events
go beyond the address of a function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpumem.errors import TrackerUnavailable

GM_OK = 0
REASON_BYTES = 512


class TorchTracker:
    """The tracker's library in this process; torch's own libraries must be loaded already."""

    def __init__(self, library: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise TrackerUnavailable(
                f"PyTorch's allocator is not recorded: the tracker does not load ({error}); delete {library} and run "
                "again."
            ) from None
        self._library.gm_torch_tracker_attach.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        self._library.gm_torch_tracker_attach.restype = ctypes.c_int32
        self._library.gm_torch_tracker_mute_until_snapshot.argtypes = [ctypes.c_uint32]
        self._library.gm_torch_tracker_mute_until_snapshot.restype = ctypes.c_int32
        self._library.gm_torch_tracker_unmute.argtypes = [ctypes.POINTER(ctypes.c_uint32)]
        self._library.gm_torch_tracker_unmute.restype = ctypes.c_int32

    def attach(self, sink_address: int) -> None:
        """Has PyTorch call the function at `sink_address` with every event from now on.

        Raises TrackerUnavailable with PyTorch's own words when its allocator refuses.
        """
        reason = ctypes.create_string_buffer(REASON_BYTES)
        if self._library.gm_torch_tracker_attach(sink_address, reason, REASON_BYTES) != GM_OK:
            said = reason.value.decode("utf-8", "replace")
            raise TrackerUnavailable(
                f"PyTorch's allocator is not recorded: it takes no tracker ({said}); gpumem records PyTorch's native "
                "allocator, not cudaMallocAsync or one plugged in."
            )

    @contextmanager
    def silent_until_snapshot(self, device_count: int) -> Iterator[None]:
        """Drops the events of devices below `device_count` until this thread takes a snapshot of each, or the end."""
        status = self._library.gm_torch_tracker_mute_until_snapshot(device_count)
        assert status == GM_OK
        try:
            yield
        finally:
            self._library.gm_torch_tracker_unmute(None)
