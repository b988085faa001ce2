"""Holds what-if replay against the truth: the same program recorded again under other settings."""

from __future__ import annotations

import pytest

from gpumem.abi.policy import NO_LIMIT
from gpumem.abi.what_if import AddressOrder, WhatIf, WhatIfOptions, WhatIfResult
from pytorch_recordings import events_of, read_recording, replay_recording
from recorded_snapshots import FACTS

CARD_BYTES = 150_109_880_320
PAIRS = [
    ("gpt", "gpt_expandable"),
    ("gpt", "gpt_pow2"),
    ("gpt", "gpt_split64"),
    ("streams23_0", "streams23_1"),
    ("streams23_0", "streams23_2"),
    ("streams23_0", "streams23_3"),
    ("streams23_1", "streams23_0"),
    ("gpt_expandable", "gpt"),
]
PLAIN = ["decode", "fuzz1", "fuzz2", "fuzz_streams", "fuzz_split", "gpt", "leak", "plain_default", "resnet", "streams"]


def serve(name: str, settings: str, order: AddressOrder = AddressOrder.DESCENDING) -> WhatIfResult:
    recording = read_recording(name)
    events, streams = events_of(recording.trace)
    with replay_recording(recording) as replay:
        empty_caches = replay.empty_caches(0)
    with WhatIf(WhatIfOptions(settings, CARD_BYTES, address_order=order)) as what_if:
        what_if.add_streams(streams)
        what_if.add_empty_caches(empty_caches)
        what_if.feed(events)
        return what_if.result()


@pytest.mark.parametrize("name", PLAIN)
def test_under_its_own_settings_the_peak_is_the_recorded_one(name: str) -> None:
    result = serve(name, read_recording(name).settings)
    assert result.allocated_bytes_peak == FACTS[name]["max_alloc"]
    assert result.reserved_bytes_peak == FACTS[name]["max_reserved"]
    assert (result.ooms, result.first_oom_position) == (0, NO_LIMIT)


@pytest.mark.parametrize(("recorded", "asked"), PAIRS)
def test_under_other_settings_the_peak_is_that_of_the_program_recorded_so(recorded: str, asked: str) -> None:
    truth = FACTS[asked]["max_reserved"]
    peaks = [serve(recorded, read_recording(asked).settings, order).reserved_bytes_peak for order in AddressOrder]
    print(recorded, asked, truth, peaks)
    assert abs(peaks[0] - truth) <= truth // 200


def test_a_card_too_small_says_which_request_did_not_fit() -> None:
    recording = read_recording("resnet")
    events, streams = events_of(recording.trace)
    with WhatIf(WhatIfOptions("", FACTS["resnet"]["max_alloc"] // 2)) as what_if:
        what_if.add_streams(streams)
        what_if.feed(events)
        result = what_if.result()
    assert result.ooms > 0
    assert events.kind[result.first_oom_position] == 1
    assert result.reserved_bytes_peak <= FACTS["resnet"]["max_alloc"] // 2


def test_a_request_that_ran_out_of_memory_is_served_on_a_larger_card() -> None:
    assert serve("oom", "").served_oom_count == 1
