"""What `gpumem replay` looks like at 80 columns: the files in tests/golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpumem.analyses.replay import Wish, find_replay
from gpumem.importers.open_end import open_with_end
from gpumem.render.terminal.replay import render_replay
from gpumem.render.terminal.theme import UNICODE, Page
from narrow_page import NARROW, NARROWEST, check_narrow
from recorded_snapshots import recording_path
from trace_builder import MiB

SHOWN = {
    "exact": ("oom", Wish({})),
    "settings": ("gpt", Wish({"expandable_segments": "True"})),
    "smaller_card": ("resnet", Wish({}, gpu_memory_bytes=700 * MiB)),
    "unknown_start": ("trunc", Wish({})),
}


@pytest.mark.parametrize("shown", SHOWN)
def test_a_replay_looks_as_it_should_and_fits_60_columns(shown: str, golden: Callable[[str, str], None]) -> None:
    name, wish = SHOWN[shown]
    opened = open_with_end(recording_path(name))
    found = find_replay(opened.trace, wish, end_heaps=opened.end_heaps)
    text = render_replay(replace(found, path=f"{name}.pickle.xz"), Page(80, UNICODE)).plain
    golden(f"replay_{shown}_80.txt", text)
    for page in (NARROW, NARROWEST):
        check_narrow(render_replay(replace(found, path=f"{name}.pickle.xz"), page), page)


def shown_replay(name: str, wish: Wish) -> str:
    opened = open_with_end(recording_path(name))
    found = find_replay(opened.trace, wish, end_heaps=opened.end_heaps)
    return render_replay(found, Page(160, UNICODE)).plain


def test_requests_that_would_run_out_are_told_of_those_that_were_served() -> None:
    assert "would run out of memory in 16 of 47 requests that were served when recorded." in shown_replay(
        "oom", Wish({}, memory_limit_bytes=1000 * MiB)
    )


def test_a_range_never_shows_the_same_figure_twice() -> None:
    text = shown_replay("gpt", Wish({"garbage_collection_threshold": "0.6"}))
    assert "range           1216.00 MiB to 1218.00 MiB reserved at most" in text
