"""The facts that a recorder writes into its journal, as the fields of TraceMeta and the blocks it found there.

Owns: the keys of facts. Must not know: the journal's bytes, what the facts are shown as.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumem.errors import TraceTruncated
from gpumem.trace.allocators import AllocatorCode, code_of_own
from gpumem.trace.meta import facts_of
from gpumem.trace.model import BYTES_LIMIT, AllocatorFacts, DeviceFacts, TraceMeta
from gpumem.trace.record_columns import Superseded
from gpumem.vocabulary import NO_DEVICE, BlockState, TraceSource

TORCH_NOTE = "note:torch"
"""Why PyTorch's allocator was not recorded, in the words of the process itself; written at its end."""

FrameKey = tuple[str, int, str]
_TORCH_END = ("allocated_bytes_end", "allocated_bytes_peak", "reserved_bytes_end", "reserved_bytes_peak")
_ADDRESS_LIMIT = 1 << 64
_LINE_LIMIT = 1 << 32
_BLOCK_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_awaiting_free": BlockState.PENDING,
    "active_pending_free": BlockState.PENDING,
    "inactive": BlockState.FREE,
}


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block of the state that recording found; stream and pool are the raw handle and id, stack the frames."""

    device: int
    segment_address: int
    segment_bytes: int
    stream: int
    pool: tuple[int, int]
    expandable: bool
    address: int
    block_bytes: int
    requested_bytes: int
    state: BlockState
    frames: tuple[FrameKey, ...]
    code: AllocatorCode


class JournalFacts:
    """The facts of one journal, by key; `where` names it in errors."""

    def __init__(self, facts: Mapping[str, str], where: str) -> None:
        self._texts = facts
        self._where = where

    @property
    def target(self) -> Path | None:
        """Where the trace shall stand, when not beside its journal."""
        value = self._value("target")
        return Path(value) if isinstance(value, str) and value else None

    def meta(self, **known: object) -> TraceMeta:
        """The facts of meta.json; `known` are those that the journal's header or its records give."""
        try:
            program = self._object("program")
            settings = self._value("settings")
            own = self._object("own_allocator")  # where PyTorch's is recorded too, that one is the source
            fields: dict[str, object] = {
                "program": program.get("program") or "",
                "command_line": program.get("command_line") or [],
                "rank": program.get("rank"),
                "versions": self._versions(),
                "settings": own.get("settings") if settings is None else settings,
                "stacks_off": self._value("stacks_off"),
                "notes": list(self._notes()),
                "source": TraceSource(self._value("source") or ("gpumem" if own else "none")),
            }
            meta = facts_of(TraceMeta, fields | known)
            devices = tuple(self._device(device) for device in sorted(self._devices()))
            allocators = tuple(sorted(self._allocators(), key=lambda one: (one.device, one.number)))
        except (ValueError, TypeError, AttributeError) as error:
            raise TraceTruncated(f"{self._where} is damaged: its facts: {error}.") from error
        return dataclasses.replace(meta, devices=devices, allocators=allocators)

    def unavailable_reasons(self, device: int) -> Mapping[str, str]:
        """Why figures of a device's readings are not available, by field."""
        reasons = self._object(f"reading_unavailable:{device}")
        return {str(field): str(reason) for field, reason in reasons.items()}

    @property
    def superseded(self) -> Superseded:
        """The events that the state found replaces."""
        try:
            ends: dict[tuple[int, AllocatorCode], int] = {}
            for code, state in self._states():
                end = _number(state.get("snapshot_event") or 0, BYTES_LIMIT)
                for device in (*(state.get("devices") or ()), *(one["device"] for one in state.get("segments") or ())):
                    place = _number(device, NO_DEVICE), code
                    ends[place] = max(end, ends.get(place, 0))
            return Superseded(ends)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged("initial_state", error) from error

    def found_blocks(self) -> list[FoundBlock]:
        """The blocks, free ones too, of the state that recording found."""
        try:
            return [
                block
                for code, state in self._states()
                for segment in state.get("segments") or ()
                for block in _blocks_of(segment, code)
            ]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged("initial_state", error) from error

    def state_texts(self) -> list[str]:
        """The facts of the state that recording found, as they were written."""
        return [text for key, text in self._texts.items() if key.partition(":")[0] == "initial_state"]

    def _states(self) -> Iterator[tuple[AllocatorCode, Mapping[str, Any]]]:
        """The facts `initial_state` and `initial_state:<n>` of PyTorch's allocator: a large state comes in several.

        Those of gpumem's own are `initial_state:own<device>:<number>`, at first without the number.
        """
        for key in self._texts:
            name, _, whose = key.partition(":")
            if name == "initial_state":
                state = self._object(key)
                is_own = whose.startswith("own")
                yield code_of_own(_number(state.get("allocator", 0), 256)) if is_own else AllocatorCode(0), state

    def _versions(self) -> Mapping[str, object]:
        """What the program said of its libraries, and the driver as NVML names it."""
        driver = self._value("driver_version")
        return self._object("versions") | ({} if driver is None else {"nvidia_driver": driver})

    def _device(self, device: int) -> DeviceFacts:
        known = self._object(f"device:{device}")
        if known.get("nvml_index") is None:
            known = {**known, "nvml_index": self._value(f"nvml_index:{device}")}
        end = self._object(f"torch_end:{device}")
        names = ("uuid", "nvml_index", "name", "capacity_bytes", "memory_limit_bytes")
        fields = {name: known.get(name) for name in names} | {f"torch_{name}": end.get(name) for name in _TORCH_END}
        return facts_of(DeviceFacts, fields | {"device": device})

    def _devices(self) -> set[int]:
        return {device for device, _ in (*self._numbered("device"), *self._numbered("torch_end"))}

    def _allocators(self) -> Iterator[AllocatorFacts]:
        """Those of the facts `allocator:<device>:<number>`."""
        for key in self._texts:
            name, _, numbers = key.partition(":")
            device, _, number = numbers.partition(":")
            if name == "allocator" and _is_number(device) and _is_number(number):
                given = self._object(key)
                yield facts_of(AllocatorFacts, {**given, "device": int(device), "number": int(number)})

    def _notes(self) -> Iterator[object]:
        """The sentences of `note:<n>` by number, then those of other note keys."""
        keys = [key for key in self._texts if key.startswith("note:")]
        numbers = {key: key.partition(":")[2] for key in keys}
        for key in sorted(keys, key=lambda key: (not numbers[key].isdecimal(), len(numbers[key]), key)):
            yield self._value(key)

    def _numbered(self, key: str) -> Iterator[tuple[int, object]]:
        for text in self._texts:
            name, _, number = text.partition(":")
            if name == key and _is_number(number):
                yield int(number[:9]), self._value(text)

    def _object(self, key: str) -> dict[str, object]:
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._damaged(key, TypeError("it is no object"))
        return value

    def _value(self, key: str) -> object:
        text = self._texts.get(key)
        try:
            return json.loads(text) if text is not None else None
        except (ValueError, RecursionError) as error:
            raise self._damaged(key, error) from error

    def _damaged(self, key: str, error: BaseException) -> TraceTruncated:
        return TraceTruncated(f"{self._where} is damaged: its fact {key} cannot be read: {error}.")


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()


def _blocks_of(segment: Mapping[str, Any], code: AllocatorCode) -> Iterator[FoundBlock]:
    first, second = segment.get("segment_pool_id") or (0, 0)
    segment_address = _number(segment["address"], _ADDRESS_LIMIT)
    address = segment_address
    for block in segment["blocks"]:
        address = _number(block.get("address") or address, _ADDRESS_LIMIT)
        state = _BLOCK_STATES[block["state"]]
        block_bytes = _number(block["size"], BYTES_LIMIT)
        asked = 0 if state is BlockState.FREE else block.get("requested_size", block_bytes)
        yield FoundBlock(
            device=_number(segment["device"], NO_DEVICE),
            segment_address=segment_address,
            segment_bytes=_number(segment["total_size"], BYTES_LIMIT),
            stream=_number(segment.get("stream") or 0, _ADDRESS_LIMIT),
            pool=(_number(first, _ADDRESS_LIMIT), _number(second, _ADDRESS_LIMIT)),
            expandable=bool(segment.get("is_expandable")),
            address=address,
            block_bytes=block_bytes,
            requested_bytes=_number(asked, BYTES_LIMIT),
            state=state,
            frames=tuple(_frame_key(frame) for frame in block.get("frames") or ()),
            code=code,
        )
        address += block_bytes


def _frame_key(frame: Mapping[str, Any]) -> FrameKey:
    line = _number(frame["line"], _ADDRESS_LIMIT)
    return str(frame["filename"]), line if line < _LINE_LIMIT else 0, str(frame["name"])


def _number(value: object, limit: int) -> int:
    """The whole number that `value` is; raises ValueError unless it is one, of at least 0 and below `limit`."""
    if not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"{value!r} is no such number")
    return value
