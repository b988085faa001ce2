"""The first sentences of a view and the figures that matter, each beside its denominator.

Owns: their words. Must not know: HTML, how figures are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumem.analyses.oom_facts import OomVerdict
from gpumem.analyses.summary import DeviceSummary
from gpumem.render.html.markup import short_name
from gpumem.render.oom_advice import finding_command, finding_text, is_advice
from gpumem.render.oom_words import verdict_text
from gpumem.render.summary_words import is_bound_by_limit, most, others_clause, unrecorded_sentence
from gpumem.render.text import device_phrase, place
from gpumem.trace.model import Frame
from gpumem.units import counted, format_bytes, format_count, format_duration, format_share
from gpumem.vocabulary import Basis

SITES_NAMED = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name and what it is a part of; `part` and `whole` draw its bar, None for no bar."""

    name: str
    value: str
    of: str
    part: int | None = None
    whole: int | None = None


def device_label(number: str, device: DeviceSummary) -> str:
    """The device's number with its name behind it, where that is known."""
    return f"{number}: {short_name(device.facts.name)}" if device.facts.name else number


def _card(device: DeviceSummary) -> str:
    """The card in running text."""
    return device_phrase(device.facts.name and short_name(device.facts.name), device.facts.device)


def site_name(site: Frame | None) -> str:
    """A site in running text."""
    if site is None:
        return "code without a Python stack"
    where = place(short_name(site.file.rsplit("/", 1)[-1]), site.line)
    return f"{short_name(site.function)} ({where})" if where else short_name(site.function)


def verdict_sentences(device: DeviceSummary, oom: OomVerdict | None) -> list[str]:
    """The peak, who held it, and what limits: where a request was refused, the verdict on that."""
    if not device.is_recorded:
        return [unrecorded_sentence(device, _card(device))]
    if not device.peak.held_bytes and not most(device.reserved_bytes):
        return [f"Nothing was allocated on {_card(device)} (device {device.facts.device})."]
    return [
        _peak_sentence(device),
        *_holder_sentence(device),
        _limit_sentence(device) if oom is None else _oom_sentence(device, oom),
    ]


def _peak_sentence(device: DeviceSummary) -> str:
    peak, capacity = device.peak, device.facts.capacity_bytes
    word = "allocated" if peak.basis is Basis.ALLOCATED else "requested"
    most_word = "At most" if device.reserved_bytes.peak is not None else "Since recording began, at most"
    where = "at the start"
    if peak.instant.event >= 0:
        step = f", in step {peak.step}" if peak.step is not None else ""
        where = f"{format_duration(peak.instant.time_ns)} in, at event {format_count(peak.instant.event)}{step}"
    share = ""
    if capacity:
        share = f": {format_share(peak.held_bytes, capacity)} of the {format_bytes(capacity)} of {_card(device)}"
    return f"{most_word} {format_bytes(peak.held_bytes)} were {word} ({where}){share}."


def _holder_sentence(device: DeviceSummary) -> Iterator[str]:
    peak = device.peak
    if not peak.by_site or not peak.held_bytes:
        return
    first, *others = peak.by_site[:SITES_NAMED]
    name = "Code without a Python stack" if first.site is None else site_name(first.site)
    text = f"{name} held {format_bytes(first.held_bytes)} of them"
    text += f" ({format_share(first.held_bytes, peak.held_bytes)}, {counted(first.block_count, 'block')})"
    if others:
        together = sum(one.held_bytes for one in peak.by_site[: 1 + len(others)])
        names = " and ".join(site_name(one.site) for one in others)
        text += f"; with {names} it is {format_share(together, peak.held_bytes)}"
    yield f"{text}."


def _limit_sentence(device: DeviceSummary) -> str:
    reserved = format_bytes(most(device.reserved_bytes))
    headroom = device.headroom_bytes
    if device.reserved_bytes.peak is None:
        return f"{reserved} were reserved at most since recording began."
    if headroom is None:
        return f"{reserved} were reserved from the driver at most."
    limit = device.facts.memory_limit_bytes or 0
    bound = f"the program's limit of {format_bytes(limit)}" if is_bound_by_limit(device) else "the card"
    if headroom < 0:
        return f"{reserved} were reserved at most, {format_bytes(-headroom)} above {bound}."
    left = f"{format_bytes(headroom)} of {bound}{others_clause(device)}"
    return f"It did not run out: {reserved} were reserved at most, which leaves {left}."


def _oom_sentence(device: DeviceSummary, oom: OomVerdict) -> str:
    often = "once," if device.oom_count == 1 else f"{format_count(device.oom_count)} times, first"
    return f"It ran out of memory {often} {format_duration(device.ooms[0].time_ns)} in. {verdict_text(oom)}"


def oom_advice(oom: OomVerdict, path: str) -> Iterator[tuple[str, str | None]]:
    """What to do, most useful first, each with the commands to paste."""
    for finding in oom.findings:
        if is_advice(finding.code):
            yield finding_text(finding, oom), finding_command(finding, path, origin=oom.facts.origin)


def oom_remarks(oom: OomVerdict, path: str) -> Iterator[tuple[str, str | None]]:
    """What is peculiar about the figures: findings that say nothing to do."""
    for finding in oom.findings:
        if not is_advice(finding.code):
            yield finding_text(finding, oom), finding_command(finding, path, origin=oom.facts.origin)


def key_figures(device: DeviceSummary) -> Iterator[Figure]:
    """The figures that matter most, first."""
    capacity = device.facts.capacity_bytes
    if device.is_recorded:
        word = "Allocated" if device.peak.basis is Basis.ALLOCATED else "Requested"
        yield _of_card(f"{word} at the peak", device.peak.held_bytes, capacity)
        yield _of_card("Reserved at most", most(device.reserved_bytes), capacity)
    if device.nvml_process_bytes_peak is not None:
        yield _of_card("Process at most, by NVML", device.nvml_process_bytes_peak, capacity)
    if device.nvml_free_bytes_min is not None:
        yield _of_card("Free on the card at least", device.nvml_free_bytes_min, capacity)
    heap = device.heap_peak
    if heap is not None:
        of = f"of {format_bytes(heap.reserved_bytes)} reserved then; {format_bytes(heap.gap_bytes)} in gaps"
        yield Figure("Idle at the peak", format_bytes(heap.idle_bytes), of, heap.idle_bytes, heap.reserved_bytes)
        of = f"{format_share(heap.slack_bytes, heap.allocated_bytes)} of {format_bytes(heap.allocated_bytes)} allocated"
        yield Figure("Slack at the peak", format_bytes(heap.slack_bytes), of, heap.slack_bytes, heap.allocated_bytes)
    if device.cache is not None and device.alloc_count:
        hits = device.cache.hit_count
        of = f"{format_count(hits)} of {counted(device.alloc_count, 'alloc')}"
        yield Figure("Served by the cache", format_share(hits, device.alloc_count), of, hits, device.alloc_count)
    if device.is_recorded:
        yield _oom_figure(device)


def _of_card(name: str, value: int, capacity: int | None) -> Figure:
    if not capacity:
        return Figure(name, format_bytes(value), "the card's capacity is not known")
    return Figure(
        name, format_bytes(value), f"{format_share(value, capacity)} of {format_bytes(capacity)}", value, capacity
    )


def _oom_figure(device: DeviceSummary) -> Figure:
    of = f"in {counted(device.alloc_count + device.oom_count, 'request')}"
    return Figure("Out of memory", counted(device.oom_count, "time") if device.oom_count else "never", of)
