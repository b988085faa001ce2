"""PyTorch's own memory snapshots (torch.cuda.memory._dump_snapshot) of PyTorch 2.0 to 2.14 -> Trace.

    snapshot = read_pytorch_snapshot(path)
    snapshot.trace, snapshot.segments

Owns: the keys of a snapshot's top level and what becomes of each. Must not know: how the heap works.

Accepts pickles of every protocol, the same as JSON, either compressed by gzip, xz, zstd or bzip2, and a bare list of
segments. Unknown keys are passed over; what is inconsistent is said in the trace's notes. Block sizes are not in a
snapshot's events: replay fills them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpumem.errors import TraceForeign
from gpumem.importers.pytorch_snapshot_beginning import (
    BeginningFigures,
    blocks_of,
    complete_kinds,
    count_pending,
    describe_beginning,
    find_beginning,
)
from gpumem.importers.pytorch_snapshot_content import is_pytorch_snapshot, read_content
from gpumem.importers.pytorch_snapshot_document import load_document, paused_garbage_collector
from gpumem.importers.pytorch_snapshot_entries import EntryColumns, EntryReader, Oddities
from gpumem.importers.pytorch_snapshot_marks import (
    Annotation,
    ScopeInterner,
    add_text_scopes,
    find_marks,
    find_range_scopes,
    read_annotations,
)
from gpumem.importers.pytorch_snapshot_merge import DeviceEvents, MergedEvents, StreamInterner, merge_events
from gpumem.importers.pytorch_snapshot_segments import (
    DEVICE_MAX,
    SnapshotBlocks,
    SnapshotSegments,
    read_segments,
)
from gpumem.importers.pytorch_snapshot_skim import SkimmedEntries
from gpumem.importers.pytorch_snapshot_stacks import StackInterner
from gpumem.trace.model import DeviceFacts, InitialBlock, PoolRow, Trace, TraceMeta
from gpumem.units import counted, format_bytes, format_count
from gpumem.vocabulary import TraceSource

__all__ = [
    "PytorchSnapshot",
    "SnapshotBlocks",
    "SnapshotSegments",
    "is_pytorch_snapshot",
    "read_pytorch_snapshot",
]

SETTINGS_TEXT_KEYS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class PytorchSnapshot:
    """A snapshot: its history as a Trace, and the state at its end, which a replay can be held against."""

    trace: Trace
    segments: SnapshotSegments
    pools_recorded: bool
    """Whether pool 0 of an event means the default pools (PyTorch 2.12 and later), not "not known"."""


def read_pytorch_snapshot(path: Path) -> PytorchSnapshot:
    """The snapshot at `path`.

    Raises TraceNotFound (cannot be opened), TraceTruncated (cut off or damaged) or TraceForeign (no snapshot); nothing
    in the file is run, whatever it holds.
    """
    with paused_garbage_collector():
        content = read_content(path)
        document = load_document(path, content)
        content.clear()
        return _Conversion(path, document.values, document.entries).convert()


class _Conversion:
    """One document on its way to a Trace; parts of the document are dropped once converted."""

    def __init__(self, path: Path, document: dict[str, object], entries: SkimmedEntries | None) -> None:
        self.path = path
        self.entries = entries
        self.document = document
        self.notes: list[str] = []
        self.stacks = StackInterner()
        self.reader = EntryReader(self.stacks)
        self.streams = StreamInterner()
        self.scopes = ScopeInterner()
        self.initial_blocks: list[InitialBlock] = []
        self.pools_recorded = False

    def convert(self) -> PytorchSnapshot:
        segments = read_segments(
            _listed(self.document.pop("segments", None)), self.stacks, self.reader.pools, self.notes
        )
        settings = _settings_text(self.document.get("allocator_settings"))
        versions = _versions(self.document)
        _note_host_memory(self.document, self.notes)
        annotations = read_annotations(self.document.pop("external_annotations", None), self.notes)
        devices = self._devices(segments, annotations)
        mark_names = [metadata or "annotate" for _, metadata in self.reader.texts.rows]
        merged = merge_events(devices, find_marks(annotations), self.streams, mark_names)
        self.notes += _describe_oddities(self.reader.oddities)
        if merged.started_us is None and merged.events.event_count:
            self.notes.append("Times were not recorded (PyTorch before 2.2): all are 0, devices follow one another.")
        if settings is None and merged.events.event_count:
            self.notes.append("The allocator's settings were not recorded: PyTorch's default ones are taken for them.")
        if not versions and self.pools_recorded:
            versions = {"torch": "2.12"}
        trace = self._trace(merged, segments, settings, versions)
        return PytorchSnapshot(trace, segments, self.pools_recorded)

    def _devices(self, segments: SnapshotSegments, annotations: list[Annotation]) -> list[DeviceEvents]:
        traces = _listed(self.document.pop("device_traces", None))
        self._check_traces(traces)
        figures = BeginningFigures()
        columns = self._columns(traces, max(len(traces), int(segments.device.max(initial=-1)) + 1))
        made = []
        for device, events in enumerate(columns):
            rows = np.flatnonzero(segments.device == device)
            if not len(events) and not len(rows):
                continue
            self.pools_recorded |= events.pools_recorded
            pending_count = count_pending(blocks_of(segments, rows))
            events = complete_kinds(device, events, pending_count, self.notes)
            events, initial = find_beginning(device, events, segments, self.streams, figures)
            self.initial_blocks += initial
            ranges = find_range_scopes(annotations, device, events.time_us, self.scopes)
            scope = add_text_scopes(ranges, events.text, self.reader.texts, self.scopes)
            made.append(DeviceEvents(device, events, scope))
        if any(len(one.events) for one in made):
            self.notes = describe_beginning(figures) + self.notes
        else:
            self.notes.append("No history was recorded: this is the state at the end alone.")
        return made

    def _columns(self, traces: list[object], device_count: int) -> Iterator[EntryColumns]:
        """The events of each device; none where it has no trace."""
        listed = [_listed(trace) for trace in traces] + [[] for _ in range(device_count - len(traces))]
        if self.entries is None:
            yield from map(self.reader.read, listed)
        else:
            yield from self.entries.columns(listed, self.reader)

    def _check_traces(self, traces: list[object]) -> None:
        filled = [trace for trace in traces if trace]
        if len(traces) > DEVICE_MAX + 1 or len({id(trace) for trace in filled}) < len(filled):
            raise TraceForeign(
                f"{self.path} lists {format_count(len(traces))} device traces, too many or some twice; "
                "it was not written by PyTorch."
            )

    def _trace(
        self, merged: MergedEvents, segments: SnapshotSegments, settings: str | None, versions: dict[str, str]
    ) -> Trace:
        frames, stacks = self.stacks.tables()
        present = set(merged.events.columns["device"].tolist()) | set(segments.device.tolist())
        started = merged.started_us
        meta = TraceMeta(
            source=TraceSource.PYTORCH_SNAPSHOT,
            versions=versions,
            settings=settings,
            devices=[DeviceFacts(device) for device in sorted(present) if device <= DEVICE_MAX],
            started_unix_ns=None if started is None else started * 1000,
            duration_ns=merged.duration_ns,
            history_truncated=bool(self.initial_blocks),
            ended_by="snapshot",
            block_bytes_known=False,
            notes=self.notes,
            produced_by="PyTorch's memory snapshot",
        )
        return Trace(
            path=self.path,
            meta=meta,
            events=merged.events,
            frames=frames,
            stacks=stacks,
            scopes=self.scopes.table(),
            streams=self.streams.table(),
            pools=[PoolRow(row, *names) for names, row in self.reader.pools.rows.items()],
            marks=merged.marks,
            initial_blocks=self.initial_blocks,
        )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _settings_text(given: object) -> str | None:
    """What PYTORCH_CUDA_ALLOC_CONF held last; None where the file does not say.

    Settings changed during the run are not recorded.
    """
    if not isinstance(given, dict):
        return None
    return next((value for key in SETTINGS_TEXT_KEYS if isinstance(value := given.get(key), str)), None)


def _versions(document: dict[str, object]) -> dict[str, str]:
    """The release that its keys show to have written the file, where the allocator's manner depends on it."""
    settings = document.get("allocator_settings")
    if "host_traces" in document:
        return {"torch": "2.14 or newer"}
    return {"torch": "2.13 or newer"} if isinstance(settings, dict) and "max_cached_size" in settings else {}


def _note_host_memory(document: dict[str, object], notes: list[str]) -> None:
    """Says what the file holds of pinned host memory (PyTorch 2.14), which the trace does not."""
    segments, traces = _listed(document.pop("host_segments", None)), _listed(document.pop("host_traces", None))
    if not segments and not traces:
        return
    sizes = [segment.get("size", segment.get("total_size")) for segment in segments if isinstance(segment, dict)]
    segment_bytes = sum(size for size in sizes if isinstance(size, int) and size >= 0)
    event_count = sum(len(trace) if isinstance(trace, list) else 1 for trace in traces)
    notes.append(
        f"Pinned host memory is not part of the trace: {counted(len(segments), 'segment')} with "
        f"{format_bytes(segment_bytes)} at the end, {counted(event_count, 'event')}."
    )


def _describe_oddities(oddities: Oddities) -> list[str]:
    said = []
    if oddities.categories:
        said.append(
            "This file is synthetic: its entries carry the profiler's categories, so it was made from torch.profiler, "
            "not by the allocator."
        )
    if oddities.unknown_actions:
        named = ", ".join(f"{name!r}" for name, _ in oddities.unknown_actions.most_common(5))
        said.append(
            f"{format_count(oddities.unknown_actions.total())} entries with unknown actions ({named}) left out."
        )
    if oddities.unreadable_entries:
        noun = "entry" if oddities.unreadable_entries == 1 else "entries"
        said.append(f"{format_count(oddities.unreadable_entries)} {noun} left out that cannot be read.")
    return said
