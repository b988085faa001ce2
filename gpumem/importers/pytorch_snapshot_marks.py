"""record_function ranges of a snapshot as scopes, marks and steps.

Owns: `external_annotations`, and the scopes that come of compile contexts and user metadata. Must not know: blocks.

An annotation names no thread, so the ranges of a device form one stack in the order of their times. A range that is
not PyTorch's own (Optimizer.…) sets a mark where it starts; the end of ProfilerStep#N, or of the one optimizer's step,
ends a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpumem.importers.pytorch_snapshot_entries import NUMBER_MAX, Texts
from gpumem.importers.pytorch_snapshot_segments import DEVICE_MAX
from gpumem.trace.model import ScopeTable
from gpumem.vocabulary import MarkKind

PROFILER_STEP = re.compile(r"ProfilerStep#\d+\Z")
OWN_RANGE = re.compile(r"Optimizer\.|ProfilerStep#")
NESTING_MAX = 64


@dataclass(frozen=True, slots=True)
class Annotation:
    """One end of a record_function range."""

    name: str
    is_start: bool
    device: int
    time_us: int


@dataclass(frozen=True, slots=True)
class NamedInstant:
    """A mark or step end to be placed among the events by its time."""

    kind: MarkKind
    name: str
    time_us: int


class ScopeInterner:
    """Scopes as parent links; row 0 is none."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], int] = {(0, ""): 0}

    def row(self, parent: int, name: str) -> int:
        """The row of `name` inside `parent`; `parent` itself for an empty name."""
        return self._rows.setdefault((parent, name), len(self._rows)) if name else parent

    def table(self) -> ScopeTable:
        """What was collected."""
        parents = np.array([parent for parent, _ in self._rows], dtype=np.uint32)
        return ScopeTable(parents, [name for _, name in self._rows])


def read_annotations(annotations: object, notes: list[str]) -> list[Annotation]:
    """The annotations in the order of their times; those that cannot be read are counted in `notes`."""
    made: list[Annotation] = []
    listed = annotations if isinstance(annotations, list) else []
    for one in listed:
        annotation = _annotation(one)
        if annotation is not None:
            made.append(annotation)
    if len(made) < len(listed):
        notes.append(f"{len(listed) - len(made)} annotations cannot be read and were left out.")
    return sorted(made, key=lambda annotation: annotation.time_us)


def _annotation(one: object) -> Annotation | None:
    if not isinstance(one, dict):
        return None
    name, stage, device, time_us = (one.get(key) for key in ("name", "stage", "device", "time_us"))
    if not isinstance(name, str) or stage not in ("START", "END"):
        return None
    if not isinstance(device, int) or not isinstance(time_us, int):
        return None
    if not 0 <= device <= DEVICE_MAX or not 0 <= time_us <= NUMBER_MAX // 1000:
        return None
    return Annotation(name, stage == "START", device, time_us)


def find_range_scopes(
    annotations: Sequence[Annotation], device: int, time_us: npt.NDArray[np.int64], scopes: ScopeInterner
) -> npt.NDArray[np.uint32]:
    """The scope of each event of a device: the ranges open at its time, nested."""
    times, rows = [-1], [0]
    opened: list[str] = []
    for annotation in annotations:
        if annotation.device != device:
            continue
        if annotation.is_start and len(opened) < NESTING_MAX:
            opened.append(annotation.name)
        elif not annotation.is_start and annotation.name in opened:
            del opened[len(opened) - 1 - opened[::-1].index(annotation.name)]
        row = 0
        for name in opened:
            row = scopes.row(row, name)
        times.append(annotation.time_us)
        rows.append(row)
    place = np.searchsorted(np.array(times, dtype=np.int64), time_us, side="right") - 1
    scope = np.zeros(len(time_us), dtype=np.uint32)
    np.take(np.array(rows, dtype=np.uint32), np.maximum(place, 0), out=scope)
    return scope


def add_text_scopes(
    range_scopes: npt.NDArray[np.uint32], text: npt.NDArray[np.uint32], texts: Texts, scopes: ScopeInterner
) -> npt.NDArray[np.uint32]:
    """Inside those scopes: the compiled region, then the program's own metadata, where entries have them."""
    if not text.any():
        return range_scopes
    said = list(texts.rows)
    pairs, place = np.unique((range_scopes.astype(np.uint64) << np.uint64(32)) | text, return_inverse=True)
    made = []
    for pair in pairs.tolist():
        compile_context, metadata = said[pair & 0xFFFFFFFF]
        made.append(scopes.row(scopes.row(pair >> 32, compile_context), metadata))
    scope = np.zeros(len(text), dtype=np.uint32)
    np.take(np.array(made, dtype=np.uint32), place.reshape(-1), out=scope)
    return scope


def find_marks(annotations: Sequence[Annotation]) -> list[NamedInstant]:
    """The starts of the program's own ranges, then the ends of steps, each in the order of time."""
    marks = [
        NamedInstant(MarkKind.MARK, one.name, one.time_us)
        for one in annotations
        if one.is_start and not OWN_RANGE.match(one.name)
    ]
    ends = [one for one in annotations if not one.is_start]
    steps = [one for one in ends if PROFILER_STEP.match(one.name)]
    if not steps:
        steps = [one for one in ends if one.name.startswith("Optimizer.step#")]
        if len({one.name for one in steps}) > 1:
            steps = []
    return marks + [NamedInstant(MarkKind.STEP, one.name, one.time_us) for one in steps]
