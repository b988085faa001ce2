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
from gpumem.trace.meta import facts_of
from gpumem.trace.model import BYTES_LIMIT, DeviceFacts, TraceMeta
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
        except (ValueError, TypeError, AttributeError) as error:
            raise TraceTruncated(f"{self._where} is damaged: its facts: {error}.") from error
        return dataclasses.replace(meta, devices=devices)

    def unavailable_reasons(self, device: int) -> Mapping[str, str]:
        """Why figures of a device's readings are not available, by field."""
        reasons = self._object(f"reading_unavailable:{device}")
        return {str(field): str(reason) for field, reason in reasons.items()}

    @property
    def superseded(self) -> Superseded:
        """The events that the state found replaces."""
        try:
            states = list(self._states())
            devices = {device for state in states for device in state.get("devices") or ()}  # type: ignore[attr-defined]
            devices |= {segment["device"] for segment in self._segments()}
            end = max((_number(state.get("snapshot_event") or 0, BYTES_LIMIT) for state in states), default=0)
            return Superseded(end, frozenset(_number(device, NO_DEVICE) for device in devices))
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged("initial_state", error) from error

    def found_blocks(self) -> list[FoundBlock]:
        """The blocks, free ones too, of the state that recording found."""
        try:
            return [block for segment in self._segments() for block in _blocks_of(segment)]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged("initial_state", error) from error

    def state_texts(self) -> list[str]:
        """The facts of the state that recording found, as they were written."""
        return [text for key, text in self._texts.items() if key.partition(":")[0] == "initial_state"]

    def _states(self) -> Iterator[Mapping[str, object]]:
        """The facts `initial_state` and `initial_state:<n>`: a large state comes in several."""
        for key in self._texts:
            if key.partition(":")[0] == "initial_state":
                yield self._object(key)

    def _segments(self) -> Iterator[Mapping[str, Any]]:
        for state in self._states():
            yield from state.get("segments") or ()  # type: ignore[misc]

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

    def _notes(self) -> Iterator[object]:
        """The sentences of `note:<n>` by number, then those of other note keys."""
        keys = [key for key in self._texts if key.startswith("note:")]
        numbers = {key: key.partition(":")[2] for key in keys}
        for key in sorted(keys, key=lambda key: (not numbers[key].isdecimal(), len(numbers[key]), key)):
            yield self._value(key)

    def _numbered(self, key: str) -> Iterator[tuple[int, object]]:
        for text in self._texts:
            name, _, number = text.partition(":")
            if name == key and number.isdecimal() and number.isascii():
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


def _blocks_of(segment: Mapping[str, Any]) -> Iterator[FoundBlock]:
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
