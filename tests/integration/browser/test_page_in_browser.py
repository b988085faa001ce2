"""The page in a headless Chromium, made by `gpumem report` and opened from disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chromium_pages import OpenedPage, open_page
from gpumem.units import format_bytes, format_duration, format_share
from hostile_page import NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.needs("chromium", "playwright")

PageOf = Callable[[str], Path]
PAGE_BYTES_MAX = 8 << 20


def canvas(page: OpenedPage, figure: str) -> Locator:
    page.figure(figure)
    return page.tab.locator(f'[data-figure="{figure}"] canvas')


def point(page: OpenedPage, figure: str, x: float, y: float) -> tuple[float, float]:
    """The place in the window of a point of a figure's canvas, in shares of it."""
    box = canvas(page, figure).bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def tip(page: OpenedPage, figure: str) -> str:
    found = page.tab.locator(f'[data-figure="{figure}"] .tip')
    return found.inner_text() if found.is_visible() else ""


@pytest.mark.parametrize("name", ["nine_steps_cupy", "requests", "empty"])
def test_page_opens_from_disk_and_asks_for_nothing(browser: Browser, page_of: PageOf, name: str) -> None:
    path = page_of(name)
    assert path.stat().st_size < PAGE_BYTES_MAX
    with open_page(browser, path) as page:
        page.run("() => GM.drawAll()")
        page.settle()
        assert page.requests == []
        assert page.complaints == []


def test_two_traces_are_shown_one_at_a_time(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train")) as page:
        for figure in ("bands", "heap"):
            page.figure(figure)
        first = page.pixels("bands"), page.pixels("heap")
        page.run("() => GM.showView(1)")
        page.settle()
        assert "resnet50_train.py" in page.tab.locator('[data-figure="bands"] .legend').inner_text()
        assert page.pixels("bands") != first[0]
        assert page.pixels("heap") != first[1]
        page.run("() => GM.showView(0)")
        page.settle()
        assert (page.pixels("bands"), page.pixels("heap")) == first
        assert page.requests == []
        assert page.complaints == []


def test_every_figure_is_drawn(training: OpenedPage) -> None:
    for figure in ("curves", "flame", "sites", "bands", "heap"):
        training.figure(figure)
    assert {"curves", "flame", "sites", "bands", "heap"} <= set(training.run("() => GM.state.drawn"))
    assert training.colours("bands") > 20
    assert training.colours("heap") > 20
    assert training.tab.locator("#curves-plot svg path").count() > 5
    assert training.tab.locator("#flame-plot svg path").count() > 5
    assert training.complaints == []


def test_figures_further_down_are_drawn_when_they_are_scrolled_to(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train")) as page:
        assert "heap" not in page.run("() => GM.state.drawn")
        page.tab.locator('[data-figure="heap"]').scroll_into_view_if_needed()
        page.tab.wait_for_selector('[data-figure="heap"][data-drawn] canvas')
        assert page.colours("heap") > 20


def test_hovering_a_band_says_how_large_whose_and_how_long(training: OpenedPage) -> None:
    x, y = point(training, "bands", 0.5, 0.8)
    training.tab.mouse.move(x, y)
    text = tip(training, "bands")
    assert re.search(r"^[\d.]+ [KMG]iB", text)
    assert "gpt2_train.py" in text
    assert "never freed" in text or " to " in text
    training.tab.mouse.move(1, 1)
    assert tip(training, "bands") == ""


def test_hovering_the_heap_names_state_and_segment(training: OpenedPage) -> None:
    x, y = point(training, "heap", 0.02, 0.3)
    training.tab.mouse.move(x, y)
    text = tip(training, "heap")
    assert re.search(r"allocated|gap|releasable", text)
    assert "in a segment of" in text
    training.tab.mouse.move(1, 1)


def test_a_site_picked_in_one_figure_is_marked_in_the_others(training: OpenedPage) -> None:
    canvas(training, "heap")
    before = training.pixels("heap")
    x, y = point(training, "bands", 0.5, 0.8)
    training.tab.mouse.click(x, y)
    training.settle()
    site = training.run("() => GM.state.site")
    assert site is not None
    row = training.tab.locator(f'#sites-table tr[data-site="{site}"]')
    assert row.get_attribute("aria-selected") == "true"
    assert training.run("() => [GM.state.bands.marked, GM.state.heap.marked]") == [site, site]
    assert training.pixels("heap") != before
    assert training.tab.locator("#selected").is_visible()
    training.tab.keyboard.press("Escape")
    training.settle()
    assert training.run("() => [GM.state.site, GM.state.bands.marked]") == [None, None]
    assert training.pixels("heap") == before


def test_picking_a_site_leaves_the_picture_where_it_is(training: OpenedPage) -> None:
    before = point(training, "bands", 0.5, 0.8)
    training.tab.mouse.click(*before)
    training.settle()
    box = training.tab.locator('[data-figure="bands"] canvas').bounding_box()
    assert box is not None
    assert abs(box["y"] + 0.8 * box["height"] - before[1]) < 2
    training.tab.keyboard.press("Escape")


def test_a_site_picked_in_the_table_is_marked_in_the_canvases(training: OpenedPage) -> None:
    canvas(training, "bands")
    before = training.pixels("bands")
    training.tab.locator("#sites-table tbody tr").nth(1).click()
    training.settle()
    assert training.run("() => GM.state.bands.marked") == training.run("() => GM.state.site")
    assert training.pixels("bands") != before
    training.tab.locator("#selected-clear").click()


def test_sites_are_searched_and_sorted(training: OpenedPage) -> None:
    tab = training.tab
    count = tab.locator("#sites-table tbody tr").count()
    tab.locator("#sites-search").fill("attend")
    found = tab.locator("#sites-table tbody tr").all_inner_texts()
    assert 0 < len(found) < count
    assert all("attend" in text for text in found)
    tab.locator("#sites-search").fill("")
    tab.locator('#sites-table th[data-column="alloc_count"] button').click()
    allocs = tab.locator("#sites-table tbody tr td:last-child").all_inner_texts()
    numbers = [int(text.replace(",", "")) for text in allocs]
    assert numbers == sorted(numbers, reverse=True)
    tab.locator('#sites-table th[data-column="peak_bytes"] button').click()


def test_the_slider_moves_through_the_moments_of_the_heap(training: OpenedPage) -> None:
    canvas(training, "heap")
    slider = training.tab.locator("#heap-moment")
    slider.focus()
    first, label = training.pixels("heap"), training.tab.locator("output.moment").inner_text()
    assert label.startswith("peak")
    training.tab.keyboard.press("End")
    training.settle()
    assert training.run("() => GM.state.heap.moment") == ["end"]
    assert training.tab.locator("output.moment").inner_text().startswith("end")
    assert training.pixels("heap") != first
    training.tab.keyboard.press("ArrowLeft")
    assert training.run("() => GM.state.heap.moment") == ["step:7"]
    training.tab.locator('button[data-moment]:text-is("peak")').click()
    training.settle()
    assert training.pixels("heap") == first


def test_canvases_are_zoomed_and_moved_by_keys_wheel_and_mouse(training: OpenedPage) -> None:
    def view() -> dict[str, float]:
        training.settle()
        return dict(training.run("() => GM.state.bands.view"))

    whole = view()
    canvas(training, "bands").focus()
    training.tab.keyboard.press("+")
    near = view()
    assert near["x1"] - near["x0"] < 0.9
    training.tab.keyboard.press("ArrowRight")
    assert view()["x0"] > near["x0"]
    training.tab.keyboard.press("0")
    assert view() == whole
    x, y = point(training, "bands", 0.5, 0.5)
    training.tab.mouse.move(x, y)
    training.tab.mouse.wheel(0, -300)
    zoomed = view()
    assert zoomed["x1"] - zoomed["x0"] < 0.9
    training.tab.mouse.down()
    training.tab.mouse.move(x + 80, y, steps=4)
    training.tab.mouse.up()
    assert view()["x0"] < zoomed["x0"]
    assert training.run("() => GM.state.site") is None
    training.tab.keyboard.press("0")


def test_bands_are_as_high_as_the_peak_and_a_button_shows_it(training: OpenedPage) -> None:
    training.figure("bands")
    peak = training.run("() => ({ bytes: GM.view().bands.peak_bytes, event: GM.view().bands.peak.event })")
    events = training.run("() => GM.view().bands.event_count")
    assert training.run("() => GM.state.bands.highest_bytes") == peak["bytes"]
    training.tab.get_by_label("Show what is around the peak").click()
    view = training.run("() => GM.state.bands.view")
    assert view["x0"] * events <= peak["event"] <= view["x1"] * events
    assert view["x1"] - view["x0"] < 0.5
    training.tab.locator('[data-figure="bands"] button[aria-label="Show all"]').click()
    assert training.run("() => GM.state.bands.view.x1") == 1


def test_the_wheel_scrolls_the_page_over_a_canvas_without_the_focus(training: OpenedPage) -> None:
    x, y = point(training, "bands", 0.5, 0.5)
    training.run("() => document.activeElement.blur()")
    whole, top = training.run("() => GM.state.bands.view"), training.run("() => window.scrollY")
    training.tab.mouse.move(x, y)
    training.tab.mouse.wheel(0, 200)
    training.wait_until("(top) => window.scrollY > top", top)
    assert training.run("() => GM.state.bands.view") == whole


def test_pictures_are_told_in_tables_too(training: OpenedPage) -> None:
    training.figure("bands")
    table = training.tab.locator('[data-figure="bands"] details')
    table.locator("summary").click()
    assert table.locator("tbody tr").count() == 50
    assert "gpt2_train.py" in table.locator("tbody tr").first.inner_text()
    training.figure("heap")
    blocks, segments = training.tab.locator('[data-figure="heap"] details').all()
    blocks.locator("summary").click()
    assert blocks.locator("tbody tr").count() == 50
    assert blocks.locator("summary").inner_text() == "The 50 largest blocks of this moment as a table"
    segments.locator("summary").click()
    assert re.match(r"0x[0-9a-f]+", segments.locator("tbody td").first.inner_text())


def test_dark_pages_are_dark_and_the_switch_turns_them(browser: Browser, page_of: PageOf) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor"
    with open_page(browser, page_of("training"), dark=True) as page:
        assert page.run(background) == "rgb(20, 23, 27)"
        canvas(page, "bands")
        dark = page.pixels("bands")
        page.run("() => GM.setTheme('light')")
        page.settle()
        assert page.run(background) == "rgb(255, 255, 255)"
        assert page.pixels("bands") != dark
        assert page.complaints == []


def test_each_line_of_the_legend_is_drawn_in_its_own_way(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("out_of_memory")) as page:
        swatches = page.tab.locator("#curves-legend .swatch")
        drawn = swatches.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundImage)")
        assert len(drawn) == 6
        assert len(set(drawn)) == 6
        assert all(one.startswith("repeating-linear-gradient") for one in drawn)


def test_changes_beyond_the_first_are_folded_and_say_how_much_they_hold(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("many_changes"), width=400) as page:
        rows = page.tab.locator("#diff tr[data-mark]")
        assert rows.count() == 40
        assert sum(row.is_visible() for row in rows.all()) == 20
        summary = page.tab.locator("#diff details.more summary")
        assert summary.inner_text() == "20 more sites: together 20.00 MiB before and 60.00 MiB after (+40.00 MiB)"
        folded = page.run("() => document.getElementById('diff').offsetHeight")
        assert all(row.bounding_box()["height"] < 90 for row in rows.all() if row.is_visible())  # type: ignore[index]
        summary.click()
        assert all(row.is_visible() for row in rows.all())
        assert page.run("() => document.getElementById('diff').offsetHeight") > 1.5 * folded


def test_few_changes_are_not_folded(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train"), width=400) as page:
        assert page.tab.locator("#diff tr[data-mark]").count() == 23
        assert page.tab.locator("#diff details").count() == 0


def test_a_card_that_is_not_known_is_not_offered_nor_named_twice(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("unknown_card")) as page:
        page.run("() => GM.drawAll()")
        assert page.tab.locator("#curves-mode").count() == 1
        assert page.tab.locator("#curves-whole").count() == 0
        assert page.tab.locator("#verdict p.quiet").first.inner_text().startswith("device 0 · ")


def test_the_curves_begin_where_memory_moves_and_the_slider_shows_all(training: OpenedPage) -> None:
    training.figure("curves")
    shown = training.run("() => document.getElementById('curves-plot').layout.xaxis.range")
    begin = training.run("() => GM.view().beginning_ns") / 1e9
    assert shown[0] == pytest.approx(begin)
    assert begin > 9
    note = training.tab.locator("#curves-note")
    assert f"The quiet first {format_duration(int(begin * 1e9))} are left out" in note.inner_text()
    training.run("() => Plotly.relayout('curves-plot', { 'xaxis.range': [0, 9.8] })")
    training.settle()
    assert "left out" not in note.inner_text()


def test_nothing_was_asked_for_or_complained_about_meanwhile(training: OpenedPage) -> None:
    assert training.requests == []
    assert training.complaints == []


def test_hostile_names_are_text_and_run_nothing(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("hostile")) as page:
        for figure in ("curves", "flame", "sites", "bands", "heap"):
            page.figure(figure)
        for share in (0.3, 0.5, 0.7, 0.9):
            for figure in ("bands", "heap"):
                page.tab.mouse.move(*point(page, figure, share, share))
        page.tab.locator("#sites-table tbody tr").first.click()
        page.tab.set_viewport_size({"width": 400, "height": 900})
        page.wait_until("() => document.documentElement.scrollWidth <= 400")
        page.tab.locator('[data-figure="bands"] summary').click()
        page.settle()
        assert page.run("() => window.pwned") is None
        assert (
            page.tab.locator("main img, main svg[onload], main b b, a[href^='http'], a[href^='javascript']").count()
            == 0
        )
        rows = "\n".join(page.tab.locator("#sites-table tbody tr").all_inner_texts())
        for name in NAMES[:5]:
            assert name in rows
        assert "line\\nbreak\\x1b[31m\\u202eevil\\xff\\x00end" in rows
        assert page.requests == []
        assert page.complaints == []


def test_numbers_are_written_as_the_terminal_writes_them(training: OpenedPage) -> None:
    sizes = [0, 1, 1023, 1024, 1152, 1179648, 1207959552, 5 << 40, -(9 << 27), 1048570, *(3**n for n in range(33))]
    assert training.run("(values) => values.map(GM.bytes)", sizes) == [format_bytes(size) for size in sizes]
    times = [0, 999, 1000, 1125, 62_500, 999_600, 10**9, 59_400_000_000, 3_599_700_000_000, *(7**n for n in range(18))]
    assert training.run("(values) => values.map(GM.duration)", times) == [format_duration(time) for time in times]
    parts = [0, 1, 98, 122, 125, 500, 1000]
    assert training.run("(values) => values.map((part) => GM.share(part, 1000))", parts) == [
        format_share(part, 1000) for part in parts
    ]
    assert training.run("() => [GM.count(1234567), GM.counted(1, 'block'), GM.share(1, 0)]") == [
        "1,234,567",
        "1 block",
        "-",
    ]
