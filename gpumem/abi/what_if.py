"""What-if replay in the native core, by ctypes: recorded requests served under other settings on a pretended card.

Owns: typed calls on the gm_what_if part of gpumem_policy.h. Must not know: traces, files, which settings are worth
trying.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType

import numpy as np

from gpumem.abi.library import decode_text, encode_text
from gpumem.abi.policy import (
    NO_BEHAVIOUR,
    NO_LIMIT,
    TEXT_CAPACITY,
    Behaviour,
    EventColumns,
    U64Column,
    events_of,
    load_core,
    pointer_of,
    require_ok,
)
from gpumem.abi.policy_layout import WHAT_IF_COUNTS, CWhatIfOptions, CWhatIfResult
from gpumem.errors import UsageError


class AddressOrder(IntEnum):
    """gm_address_order: where the pretended driver puts new segments; drivers mostly go down."""

    DESCENDING = 0
    ASCENDING = 1
    SCATTERED = 2


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """The card and the settings to try."""

    settings: str
    memory_bytes: int
    limit_bytes: int = NO_LIMIT
    device: int = 0
    address_order: AddressOrder = AddressOrder.DESCENDING
    seed: int = 1
    behaviour: Behaviour = NO_BEHAVIOUR


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """How the requests went; first_oom_position is NO_LIMIT's value when nothing was refused."""

    requests: int
    allocated_bytes_peak: int
    active_bytes_peak: int
    requested_bytes_peak: int
    reserved_bytes_peak: int
    reserved_bytes_end: int
    cache_hits: int
    splits: int
    alloc_retries: int
    device_allocs: int
    device_frees: int
    ooms: int
    first_oom_position: int
    served_oom_count: int


class WhatIf:
    """One device's requests on a pretended card; a context manager that owns the native handle."""

    def __init__(self, options: WhatIfOptions) -> None:
        self._core = load_core()
        self._handle = c_void_p()
        raw = CWhatIfOptions(
            encode_text(options.settings),
            options.memory_bytes,
            options.limit_bytes,
            options.seed,
            int(options.behaviour),
            int(options.address_order),
            options.device,
            0,
        )
        error = ctypes.create_string_buffer(TEXT_CAPACITY)
        status = self._core.gm_what_if_create(byref(raw), byref(self._handle), error, TEXT_CAPACITY)
        if error.value:
            raise UsageError(decode_text(error.value))
        require_ok(status)

    def __enter__(self) -> WhatIf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the native handle."""
        self._core.gm_what_if_destroy(self._handle)
        self._handle = c_void_p()

    def add_streams(self, handles: U64Column) -> None:
        """Appends rows to what the stream column names: raw handles by row."""
        require_ok(self._core.gm_what_if_add_streams(self._handle, pointer_of(handles), len(handles)))

    def add_pools(self, first: U64Column, second: U64Column) -> None:
        """Appends rows to what the pool column names; row 0 is (0, 0), the default pools."""
        require_ok(self._core.gm_what_if_add_pools(self._handle, pointer_of(first), pointer_of(second), len(first)))

    def add_empty_caches(self, positions: U64Column) -> None:
        """Adds empty_cache calls that a replay inferred, each before the event at its position."""
        require_ok(self._core.gm_what_if_add_empty_caches(self._handle, pointer_of(positions), len(positions)))

    def feed(self, events: EventColumns) -> None:
        """Serves the next events' requests."""
        require_ok(self._core.gm_what_if_feed(self._handle, byref(events_of(events))))

    def result(self) -> WhatIfResult:
        """How the requests have gone so far."""
        raw = CWhatIfResult()
        require_ok(self._core.gm_what_if_get_result(self._handle, byref(raw)))
        return WhatIfResult(**{name: getattr(raw, name) for name in WHAT_IF_COUNTS})

    def oom_positions(self) -> U64Column:
        """Positions of the refused requests, ascending."""
        positions = np.empty(self.result().ooms, np.uint64)
        require_ok(self._core.gm_what_if_get_ooms(self._handle, pointer_of(positions), len(positions)))
        return positions
