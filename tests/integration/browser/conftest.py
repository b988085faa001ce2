"""One Chromium for all tests of pages, and each page made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chromium_pages import OpenedPage, open_page, start_chromium
from gpumem.analyses.page import find_page
from gpumem.render.html.page import render_page
from gpumem.trace.model import Trace
from gpumem_cli.main import run_command_line
from hostile_page import hostile_trace
from trace_builder import MiB, TraceBuilder
from training_trace import training_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SAMPLES = Path(__file__).parents[3] / "sample_traces"
MADE: dict[str, Callable[[], Trace]] = {
    "training": lambda: training_trace(block_bytes_known=True, oom=True),
    "requests": lambda: training_trace(block_bytes_known=False),
    "hostile": hostile_trace,
    "unknown_card": lambda: many_sites(2),
    "empty": lambda: TraceBuilder().build(),
}


def many_sites(blocks: int) -> Trace:
    """Forty sites that hold so many MiB each, of a card that is not known."""
    builder = TraceBuilder(block_bytes_known=True).segment(200 * MiB)
    builder.device_facts(0, name=None, capacity_bytes=None)
    for number in range(40):
        builder.alloc(f"b{number}", blocks * MiB, stack=[("/w/train.py", number + 1, f"layer_{number}")])
    return builder.build()


COMPARED: dict[str, Callable[[], list[Trace]]] = {"many_changes": lambda: [many_sites(1), many_sites(3)]}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = start_chromium(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a sample trace (made by `gpumem report`) or of a trace made by hand, by name; + joins two samples."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def make(name: str) -> Path:
        page = folder / f"{name}.html"
        if name in COMPARED:
            page.write_text(render_page(find_page(COMPARED[name]())), encoding="utf-8")
        elif name in MADE:
            page.write_text(render_page(find_page([MADE[name]()])), encoding="utf-8")
        else:
            traces = [str(SAMPLES / f"{one}.gpumem") for one in name.split("+")]
            assert run_command_line(["report", "--quiet", "-o", str(page), *traces]) == 0
        return page

    return make


@pytest.fixture(scope="module")
def training(browser: Browser, page_of: Callable[[str], Path]) -> Iterator[OpenedPage]:
    """The page of eight training steps, recorded on a card; tests leave it as they found it."""
    with open_page(browser, page_of("gpt2_train")) as opened:
        yield opened
