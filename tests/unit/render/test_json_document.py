"""docs/json.md names every key that a document of --json has, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumem.analyses.diff_findings import Change, Held
from gpumem.analyses.ledger_parts import Evidence
from gpumem.analyses.oom_facts import Verdict
from gpumem.analyses.replay import SettingsBasis
from gpumem.analyses.replay_limit import LimitSource
from gpumem.vocabulary import BlockState, TraceSource

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", TEXT))
MADE = {
    *(f"{name}_count" for name in ("alloc", "free", "segment_map", "segment_unmap")),
    *(f"{name}_bytes" for name in ("slack", "idle", "pending", "releasable", "largest_free_block")),
}
"""Keys put together from a name and its unit."""
VALUES = {
    *(
        one.value
        for kind in (Change, Held, Evidence, Verdict, LimitSource, SettingsBasis, BlockState, TraceSource)
        for one in kind
    ),
    *("ok", "missing", "broken", "allocated", "requested", "exit", "killed", "event", "null"),
}


def keys_of_the_code() -> Iterator[str]:
    for path in (ROOT / "gpumem" / "render").glob("json*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                yield from (
                    key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"\Agpumem\.[a-z]+/1\Z", node.value)


KEYS = set(keys_of_the_code())


@pytest.mark.parametrize("key", sorted(key for key in KEYS if "/" not in key))
def test_every_key_is_in_the_document(key: str) -> None:
    assert key in NAMED


def test_the_document_names_no_other_key() -> None:
    assert NAMED - KEYS - VALUES == MADE


def test_every_schema_has_its_place() -> None:
    assert set(re.findall(r"gpumem\.[a-z]+/1", TEXT)) == {key for key in KEYS if "/" in key}
