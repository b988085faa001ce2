"""What the page's canvases are given: columns by name, and stacks by their place in one list."""

from __future__ import annotations

from typing import Any

from gpumem.analyses.page_canvases import find_canvases
from gpumem.analyses.page_sites import list_sites
from gpumem.heap.scan import scan_trace
from gpumem.render.html.canvas_json import NOT_LISTED, canvas_documents
from gpumem.render.html.payload import Payload
from gpumem.render.json_parts import Json
from trace_builder import MiB, TraceBuilder


class PlainPayload(Payload):
    """Columns as the lists they are."""

    def column(self, values: Any) -> Json:
        return [int(value) for value in values]


def documents(*, stacks_max: int = 100) -> dict[str, Any]:
    builder = TraceBuilder(block_bytes_known=True).segment(20 * MiB)
    for number in (1, 2, 3):
        builder.alloc(f"b{number}", number * MiB, stack=[("train.py", number, f"f{number}")])
    trace = builder.free("b2").reading(process_bytes=900 * MiB, total_bytes=1 << 37).build()
    (scan,) = scan_trace(trace)
    canvases = find_canvases(trace, scan, bands_max=10, cells_max=1000, stacks_max=stacks_max)
    sites = list_sites((one.site, 0) for one in canvases.stacks)
    return canvas_documents(canvases, sites, PlainPayload())


def test_bands_name_their_stacks_by_place() -> None:
    found = documents()
    bands = found["bands"]["bands"]
    assert bands["held_bytes"] == [1 * MiB, 2 * MiB, 3 * MiB]
    assert [found["stacks"][place]["frame_count"] for place in bands["stack"]] == [1, 1, 1]
    assert bands["end_event"] == [5, 4, 5]
    assert found["bands"]["banded_bytes_at_peak"] == found["bands"]["peak_bytes"] == 6 * MiB


def test_a_stack_that_is_not_listed_is_the_last_of_the_list() -> None:
    found = documents(stacks_max=2)
    assert [one["site"] for one in found["stacks"]][-1] == NOT_LISTED
    assert [found["stacks"][place]["site"] == NOT_LISTED for place in found["bands"]["bands"]["stack"]] == [
        True,
        True,
        False,
    ]


def test_a_moment_has_cells_figures_pins_and_its_ledger() -> None:
    end = documents()["heap"]["moments"][-1]
    assert end["names"] == ["end"]
    assert end["cells"]["cell_bytes"] == [1 * MiB, 2 * MiB, 3 * MiB, 14 * MiB]
    assert end["cells"]["allocated_bytes"] is None
    assert end["figures"]["gap_bytes"] == 16 * MiB
    assert end["pinned"][0]["block_count"] == 2
    assert end["ledger"]["process_bytes"] == 900 * MiB
    assert sum(row["bytes"] for row in end["ledger"]["rows"] if row["depth"] == 0) == 900 * MiB
