"""gpumem/abi/policy_layout.py says what gpumem_policy.h says, and settings are read as PyTorch reads them."""

from __future__ import annotations

import ctypes
import re
from enum import IntFlag

import pytest

from c_headers import CHeader
from gpumem.abi import policy as abi_policy
from gpumem.abi import policy_layout as abi_policy_layout
from gpumem.abi.policy import Behaviour, DeviceOptions, Replay, ReplayAssumption, check_settings
from gpumem.errors import UsageError

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "gm_replay_device": abi_policy_layout.CReplayDevice,
    "gm_replay_events": abi_policy_layout.CReplayEvents,
    "gm_heap_segments": abi_policy_layout.CHeapSegments,
    "gm_heap_blocks": abi_policy_layout.CHeapBlocks,
    "gm_replay_result": abi_policy_layout.CReplayResult,
    "gm_what_if_options": abi_policy_layout.CWhatIfOptions,
    "gm_what_if_result": abi_policy_layout.CWhatIfResult,
}


HEADER = CHeader("gpumem_policy.h", STRUCTS, opaque=("gm_replay", "gm_policy", "gm_what_if"))


@pytest.mark.parametrize("struct", STRUCTS)
def test_struct_has_the_fields_of_the_header(struct: str) -> None:
    assert HEADER.fields(struct) == list(STRUCTS[struct]._fields_)


def test_prototypes_are_those_of_the_header() -> None:
    bound = abi_policy_layout.PROTOTYPES
    assert HEADER.prototypes(among=bound) == {
        name: (result, list(arguments)) for name, (result, arguments) in bound.items()
    }


def test_hash_is_that_of_the_header() -> None:
    assert HEADER.hash == abi_policy_layout.POLICY_ABI_HASH


@pytest.mark.parametrize(
    ("enum", "prefix", "flags"),
    [("gm_replay_assumption", "GM_ASSUMED_", ReplayAssumption), ("gm_policy_behaviour", "GM_BEHAVIOUR_", Behaviour)],
)
def test_flags_have_the_bits_of_the_header(enum: str, prefix: str, flags: type[IntFlag]) -> None:
    match = re.search(rf"enum {enum} \{{(.*?)\}}", HEADER.source, re.DOTALL)
    assert match
    declared = {name.removeprefix(prefix): int(bit) for name, bit in re.findall(r"(\w+) = (\d+)", match[1])}
    assert declared == {flag.name: flag.value for flag in flags}


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "expandable_segments:True",
        " max_split_size_mb : 20 , garbage_collection_threshold:0.6",
        "max_split_size_mb:64MB",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:4,backend:native",
        "pinned_num_register_threads:8,release_lock_on_cudamalloc:True",
        "max_split_size_mb:48,",
    ],
)
def test_settings_that_pytorch_takes_are_taken(settings: str) -> None:
    check_settings(settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("max_split_size_mb:10", "max_split_size_mb must be at least 20 (MiB) (at character 19)"),
        ("max_split_size_mb", 'max_split_size_mb needs ":" here (at character 18)'),
        ("max_split_size_mb:,", "max_split_size_mb has no value (at character 19)"),
        ("max_split_size_mb:ten", "max_split_size_mb needs a whole number (at character 19)"),
        ("max_split_size_mb:-5", "max_split_size_mb needs a whole number (at character 19)"),
        ("expandable_segments:true", "expandable_segments needs True or False (at character 21)"),
        ("garbage_collection_threshold:1.0", "must lie between 0 and 1, both excluded (at character 30)"),
        ("roundup_power2_divisions:3", "divisions must be powers of two, or 0 for none (at character 26)"),
        ("roundup_power2_divisions:[300:4]", "interval starts must be powers of two, in MiB (at character 27)"),
        ("roundup_power2_divisions:[256:4", 'needs "," here (at character 32)'),
        ("backend:cudaMallocAsync", '"cudaMallocAsync" is not PyTorch\'s own allocator'),
        ("max_splt_size_mb:64", "max_splt_size_mb is no option of the caching allocator"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_wrong_where(settings: str, reason: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_settings(settings)
    assert reason in str(refusal.value)
    assert f'Allocator settings "{settings}"' in str(refusal.value)
    with Replay() as replay, pytest.raises(UsageError, match="Allocator settings"):
        replay.add_device(DeviceOptions(0, settings))


def test_pool_unknown_and_no_limit_are_the_headers() -> None:
    assert f"#define GM_POOL_UNKNOWN {abi_policy.POOL_UNKNOWN}" in HEADER.source
    assert abi_policy.NO_LIMIT == 2**64 - 1


@pytest.mark.parametrize("settings", ["caf\udce9:1", "\ud800", "\N{LATIN SMALL LETTER E WITH ACUTE}" * 3000])
def test_settings_that_are_no_text_or_longer_than_a_sentence_are_refused_like_others(settings: str) -> None:
    with pytest.raises(UsageError, match='Allocator settings "'):
        check_settings(settings)
    with Replay() as replay, pytest.raises(UsageError, match='Allocator settings "'):
        replay.add_device(DeviceOptions(0, settings))
