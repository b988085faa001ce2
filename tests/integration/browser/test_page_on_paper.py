"""A printed page: its sheets have figures as wide as themselves, and the first one what matters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chromium_pages import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.needs("chromium", "playwright")


PageOf = Callable[[str], Path]
LETTER_HEIGHT = 11 * 96 - 2 * 12 / 25.4 * 96
"""Of the lower of the common sheets, in pixels within its margins."""


def test_a_printed_page_has_its_figures_on_white(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("training"), dark=True) as page:
        page.run("""() => window.addEventListener("beforeprint", () => {
            window.printed = [GM.state.drawn.length, getComputedStyle(document.body).backgroundColor];
        })""")
        content = page.tab.pdf()
        assert page.run("() => window.printed") == [5, "rgb(255, 255, 255)"]
        assert content.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 3
        assert page.run("() => getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_paper_has_figures_as_wide_as_itself_and_no_controls(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train")) as page:
        page.run("""() => window.addEventListener("beforeprint", () => {
            const all = document.querySelectorAll("main, #curves-plot .main-svg, #flame-plot .main-svg, main canvas");
            window.printed = [...all].map((one) => one.getBoundingClientRect().width);
            const canvas = document.querySelector('[data-figure="bands"] canvas');
            window.drawn = [canvas.width, canvas.clientWidth * window.devicePixelRatio];
        })""")
        page.tab.pdf()
        assert max(page.run("() => window.printed")) == 700
        drawn, shown = page.run("() => window.drawn")
        assert drawn == pytest.approx(shown, abs=1)
        page.tab.emulate_media(media="print")
        for hidden in ("header nav", "#curves-moment", "#heap-moment", "#curves-readout", "#flame-kind"):
            assert not page.tab.locator(hidden).first.is_visible(), hidden
        assert page.tab.locator("output.moment").is_visible()
        assert not page.tab.locator("td .narrow-only").first.is_visible()
        assert page.complaints == []


def test_changed_sites_have_room_for_their_names_on_paper(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train")) as page:
        page.tab.emulate_media(media="print")
        page.run("() => window.dispatchEvent(new Event('beforeprint'))")
        page.settle()
        names = page.tab.locator("#diff tr[data-mark] td:first-child")
        assert min(name.bounding_box()["width"] for name in names.all()) > 165  # type: ignore[index]
        assert max(name.bounding_box()["height"] for name in names.all()) < 95  # type: ignore[index]


@pytest.mark.parametrize("name", ["out_of_memory", "gpt2_train", "nine_steps_cupy", "training"])
def test_the_first_sheet_has_verdict_advice_figures_and_curves(browser: Browser, page_of: PageOf, name: str) -> None:
    with open_page(browser, page_of(name)) as page:
        page.tab.emulate_media(media="print")
        page.run("() => window.dispatchEvent(new Event('beforeprint'))")
        page.settle()
        curves = page.tab.locator('[data-figure="curves"]').bounding_box()
        assert curves is not None
        assert curves["y"] + curves["height"] <= LETTER_HEIGHT
        assert "slider" not in page.tab.locator('[data-figure="curves"]').inner_text()
        assert not page.tab.locator("header").is_visible()
