"""A page in windows of every width: nothing is cut, parted or scrolled sideways."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chromium_pages import OpenedPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.needs("chromium", "playwright")


PageOf = Callable[[str], Path]


def test_a_narrow_window_is_not_scrolled_sideways(training: OpenedPage) -> None:
    training.run("() => GM.drawAll()")
    training.tab.set_viewport_size({"width": 400, "height": 900})
    training.wait_until("() => document.documentElement.scrollWidth <= 400")
    training.tab.set_viewport_size({"width": 1280, "height": 900})


CUT = """(width) => [...document.querySelectorAll("main table, main .scroll, header nav")]
    .filter((one) => one.scrollWidth > one.clientWidth || one.getBoundingClientRect().right > width)
    .map((one) => one.innerText.slice(0, 60))"""


@pytest.mark.parametrize("width", [660, 730, 800, 1280])
def test_no_table_is_cut_in_a_window_of_any_width(browser: Browser, page_of: PageOf, width: int) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train"), width=width) as page:
        page.run("() => GM.drawAll()")
        page.run("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
        page.settle()
        assert page.run(CUT, width) == []


@pytest.mark.parametrize("name", ["gpt2_train+resnet50_train", "out_of_memory"])
def test_no_table_is_cut_in_a_narrow_window(browser: Browser, page_of: PageOf, name: str) -> None:
    with open_page(browser, page_of(name), width=400) as page:
        page.run("() => GM.drawAll()")
        page.run("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
        page.settle()
        assert page.run(CUT, 400) == []
        cells = page.tab.locator("#sites-table tbody tr").first.locator("td[data-label]").all()
        labels = [cell.get_attribute("data-label") for cell in cells]
        assert labels == ["At the peak", "Of the peak", "Blocks", "At most", "Allocs"]
        assert page.tab.locator("#ledger").inner_text().count("measured") >= 2


def test_sites_of_a_legend_keep_their_line_in_a_narrow_window(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("out_of_memory"), width=400) as page:
        page.run("() => GM.drawAll()")
        names = page.tab.locator(".legend .name")
        assert names.count() >= 6
        assert names.evaluate_all("(all) => all.every((one) => one.scrollWidth <= one.clientWidth)")
        assert all(re.search(r":\d+\)$", text) for text in names.all_inner_texts())


FIGURES_PARTED = """() => {
    const [found, parted] = [[], []];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.parentElement.closest("svg, pre, select") || !node.parentElement.checkVisibility()) continue;
        for (const one of node.textContent.matchAll(/\\d[\\d.,]* (?:[KMGT]iB|B|s|ms|us|ns|min|%)(?!\\w)/g)) {
            const range = document.createRange();
            range.setStart(node, one.index);
            range.setEnd(node, one.index + one[0].length);
            const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.bottom)));
            found.push(one[0]);
            if (lines.size > 1) parted.push(node.parentElement.textContent.slice(0, 80));
        }
    }
    return [found, parted];
}"""


@pytest.mark.parametrize("width", [400, 460, 1280])
def test_no_figure_of_a_sentence_is_parted_from_its_unit(browser: Browser, page_of: PageOf, width: int) -> None:
    with open_page(browser, page_of("out_of_memory"), width=width) as page:
        page.figure("curves")
        page.run("() => GM.drawAll()")
        page.run("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
        page.settle()
        found, parted = page.run(FIGURES_PARTED)
        assert len(found) >= 100
        assert "650.00 MiB" in found
        assert parted == []


def test_the_navigation_is_whole_however_many_sections(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train")) as page:
        links = page.tab.locator("header nav a")
        assert links.count() == 10
        boxes = [link.bounding_box() for link in links.all()]
        switches = page.tab.locator("header .switches").bounding_box()
        assert switches is not None
        assert all(box is not None and box["x"] + box["width"] <= switches["x"] for box in boxes)


@pytest.mark.parametrize("width", [730, 900])
def test_changed_sites_have_room_for_their_names(browser: Browser, page_of: PageOf, width: int) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train"), width=width) as page:
        names = page.tab.locator("#diff tr[data-mark] td:first-child")
        assert min(name.bounding_box()["width"] for name in names.all()) > 165  # type: ignore[index]
