"""What a reader looks for: one block's whole stack, frames by name, and an address that shows others the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chromium_pages import OpenedPage, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.needs("chromium", "playwright")

PageOf = Callable[[str], Path]
BEGINS_BELOW_THE_HEADER = "(off) => Math.abs(document.getElementById('heap').getBoundingClientRect().top - 64) < off"
PLACES = [["", 0], ["??", 0], ["Blas.cpp", 0], ["/w/a.py", 3]]


def click_canvas(page: OpenedPage, figure: str, x: float, y: float) -> None:
    """Clicks a figure's canvas at a place in shares of it."""
    page.figure(figure)
    box = page.tab.locator(f'[data-figure="{figure}"] canvas').bounding_box()
    assert box is not None
    page.tab.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.settle()


def stack_of(page: OpenedPage, figure: str) -> list[str]:
    return page.tab.locator(f'[data-figure="{figure}"] .block li').all_inner_texts()


def test_a_band_that_is_clicked_tells_its_life_and_whole_stack_till_it_is_clicked_again(training: OpenedPage) -> None:
    click_canvas(training, "bands", 0.5, 0.8)
    told = training.tab.locator('[data-figure="bands"] .block')
    assert re.match(r"[\d.]+ [KMG]iB", told.inner_text())
    assert re.search(r"from [\d.]+ m?s \(event [\d,]+\)", told.inner_text())
    frames = stack_of(training, "bands")
    assert frames[-1].startswith("<module> (")
    assert any("gpt2_train.py" in frame for frame in frames)
    assert training.run("() => GM.state.site") is not None
    training.figure("bands")
    click_canvas(training, "bands", 0.5, 0.8)
    assert not told.is_visible()
    assert training.run("() => GM.state.site") is None


def test_another_block_of_the_marked_site_is_told_and_the_site_stays_marked(training: OpenedPage) -> None:
    training.figure("bands")
    training.run("() => { document.querySelector('[data-figure=bands] details').open = true; }")
    rows = training.tab.locator('[data-figure="bands"] tbody tr')
    sites = [row.get_attribute("data-mark") for row in rows.all()]
    first = sites.index(next(site for site in sites if sites.count(site) > 1))
    second = sites.index(sites[first], first + 1)
    rows.nth(first).click()
    told = training.tab.locator('[data-figure="bands"] .block')
    one = told.inner_text()
    rows.nth(second).click()
    assert told.is_visible()
    assert told.inner_text() != one
    assert str(training.run("() => GM.state.site")) == sites[first]
    training.tab.keyboard.press("Escape")
    assert not told.is_visible()


def test_a_block_of_the_heap_tells_its_address_and_whole_stack(training: OpenedPage) -> None:
    click_canvas(training, "heap", 0.1, 0.26)
    told = training.tab.locator('[data-figure="heap"] .block').inner_text()
    assert re.search(r"at 0x[0-9a-f]+, in a segment of [\d.]+ MiB at 0x[0-9a-f]+", told)
    assert re.search(r"made by event [\d,]+", told)
    frames = stack_of(training, "heap")
    assert len(frames) > 8
    assert frames[-1].startswith("<module> (")
    training.tab.keyboard.press("Escape")


def test_blocks_of_the_heap_are_told_by_keyboard_from_their_table(training: OpenedPage) -> None:
    training.figure("heap")
    training.run("() => { document.querySelector('[data-figure=heap] details').open = true; }")
    rows = training.tab.locator('[data-figure="heap"] details').first.locator("tbody tr")
    sizes = [row.locator("td").first.inner_text() for row in rows.all()]
    assert sizes == sorted(sizes, key=lambda size: (-"BKMG".index(size.split()[1][0]), -float(size.split()[0])))
    rows.nth(7).focus()
    training.tab.keyboard.press("Enter")
    told = training.tab.locator('[data-figure="heap"] .block')
    assert told.inner_text().startswith(f"{sizes[7]}, allocated")
    assert re.search(r"at 0x[0-9a-f]+, in a segment of", told.inner_text())
    box = told.bounding_box()
    assert box is not None
    assert -1 <= box["y"] < 900
    training.tab.keyboard.press("Escape")
    assert not told.is_visible()


def test_frames_are_searched_and_what_they_hold_is_summed_once(training: OpenedPage) -> None:
    training.figure("flame")
    training.tab.locator('#flame-kind [data-value="full"]').click()
    training.tab.fill("#flame-search", "attend gpt2")
    script = """() => {
        const tree = GM.view().flame.full;
        const [parent, frame, bytes] = ["parent", "frame", "bytes"].map((name) => GM.column(tree[name]));
        const is = (at) => frame[at] >= 0 && /attend.*gpt2/.test(GM.frameText(GM.page.frames[frame[at]]).toLowerCase());
        const above = (at) => parent[at] >= 0 && (is(parent[at]) || above(parent[at]));
        const found = [...parent.keys()].filter(is);
        const held = found.filter((at) => !above(at)).reduce((sum, at) => sum + bytes[at], 0);
        return [found.length, GM.bytes(held), GM.share(held, bytes[0])];
    }"""
    count, held, share = training.run(script)
    assert count > 1
    words = training.tab.locator("#flame-found").inner_text()
    assert words == f"{count} frames found: {held}, {share} of the peak"
    bold = training.tab.locator("#flame-plot .slicetext", has_text="attend")
    assert "font-weight:bold" in bold.first.inner_html()
    training.tab.fill("#flame-search", "no such frame")
    assert training.tab.locator("#flame-found").inner_text() == "no frame found"
    training.tab.fill("#flame-search", "")
    assert training.tab.locator("#flame-found").inner_text() == ""
    training.tab.locator('#flame-kind [data-value="own"]').click()


def test_wide_frames_are_named_and_no_name_is_wider_than_its_frame(training: OpenedPage) -> None:
    training.figure("flame")
    script = """() => [...document.querySelectorAll("#flame-plot .slice")].map((slice) => [
        slice.querySelector(".surface").getBoundingClientRect().width,
        slice.querySelector(".slicetext")?.getBoundingClientRect().width ?? 0,
    ])"""
    sizes = [size for size in training.run(script) if size[0] >= 1]
    assert len(sizes) > 10
    assert [size for size in sizes if size[1] > size[0]] == []
    assert [size for size in sizes if size[0] >= 60 and not size[1]] == []


def explored(page: OpenedPage) -> dict[str, Any]:
    """What is shown, once all of it is drawn."""
    page.run("() => GM.drawAll()")
    page.settle()
    state: dict[str, Any] = page.run("() => GM.state")
    state["curves"].pop("point")
    state["bands"].pop("peak_x")
    for figure in ("bands", "heap"):
        state[figure]["view"] = {name: round(value, 6) for name, value in state[figure]["view"].items()}
    return {name: state[name] for name in ("view", "site", "curves", "flame", "sites", "bands", "heap")}


def test_the_address_shows_who_opens_it_the_same(browser: Browser, page_of: PageOf) -> None:
    path = page_of("gpt2_train+resnet50_train")
    with open_page(browser, path) as page:
        page.run("() => GM.drawAll()")
        page.tab.select_option("#view-switch", "1")
        page.tab.locator('#curves-mode [data-value="sites"]').click()
        page.tab.locator('#flame-kind [data-value="inverted"]').click()
        page.tab.fill("#flame-search", "forward")
        page.tab.fill("#sites-search", "train")
        page.tab.locator('#bands-axis [data-value="time"]').click()
        page.tab.get_by_label("Show what is around the peak").click()
        page.tab.locator('[data-figure="heap"] [data-moment]').last.click()
        page.tab.locator('#heap-colours [data-value="state"]').click()
        page.run("() => GM.select(4)")
        page.settle_address()
        address, shown = page.tab.url, explored(page)
    assert "#heap?" in address
    with open_page(browser, path, fragment=address.split("#")[1]) as page:
        page.settle_address()
        page.wait_until(BEGINS_BELOW_THE_HEADER, 5)
        assert explored(page) == shown
        assert page.tab.url == address
        assert page.complaints == []


def test_an_address_that_is_pasted_into_an_open_page_is_followed(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train")) as page:
        page.run("() => GM.select(1)")
        page.settle_address()
        page.run("() => { location.hash = '#sites?view=1&site=5&search=train&along=events'; }")
        page.wait_until("() => GM.state.view === 1 && GM.state.site === 5")
        page.settle_address()
        state = explored(page)
        assert (state["view"], state["site"], state["sites"]["search"]) == (1, 5, "train")
        assert state["curves"]["axis"] == "events"
        page.tab.go_back()
        page.wait_until("() => GM.state.site === 1")
        assert page.complaints == []


def test_another_view_begins_as_it_is_made(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train+resnet50_train")) as page:
        page.run("() => GM.drawAll()")
        page.tab.locator('[data-figure="heap"] [data-moment]').last.click()
        page.wait_until("() => location.hash.includes('moment=')")
        page.tab.select_option("#view-switch", "1")
        page.settle_address()
        assert "moment=" not in page.tab.url
        assert "view=1" in page.tab.url


@pytest.mark.parametrize(
    "fragment",
    [
        "heap?view=99&site=-7&moment=1e9&heap=1,0,2,&level=99999&from=5&to=3&calls=<b>&bands=NaN,NaN,NaN,NaN",
        "heap?site=%3Cimg%20src=x%20onerror=window.pwned=true%3E&search=%3Cscript%3Ewindow.pwned=true%3C/script%3E",
        "%3Cimg%20src=x%3E?view=0.5&site=1.5&moment=0.5",
        "%E0%A4%A",
    ],
)
def test_an_address_that_makes_no_sense_harms_nothing(browser: Browser, page_of: PageOf, fragment: str) -> None:
    with open_page(browser, page_of("out_of_memory"), fragment=fragment) as page:
        state = explored(page)
        assert page.complaints == []
        assert page.run("() => window.pwned") is None
        assert state["view"] == 0
        assert state["site"] is None
        assert state["bands"]["view"] == {"x0": 0, "x1": 1, "y0": 0, "y1": 1}


def test_a_link_to_a_section_keeps_what_is_shown(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train")) as page:
        page.run("() => GM.select(2)")
        page.tab.locator("header nav a", has_text="Heap").click()
        page.wait_until(BEGINS_BELOW_THE_HEADER, 3)
        page.wait_until("() => location.hash === '#heap?site=2'")
        assert page.run("() => GM.state.site") == 2


def shown_range(page: OpenedPage) -> tuple[float, float]:
    begin, end = page.run("() => document.getElementById('curves-plot').layout.xaxis.range")
    return begin, end


def test_curves_are_zoomed_by_keyboard_around_the_moment_that_is_told(training: OpenedPage) -> None:
    training.figure("curves")
    before = shown_range(training)
    training.tab.locator('[data-figure="curves"] [aria-label="Zoom in around the moment"]').focus()
    training.tab.keyboard.press("Enter")
    training.tab.keyboard.press("Enter")
    begin, end = shown_range(training)
    peak = training.run("() => GM.view().peak.time_ns") / 1e9
    assert end - begin == pytest.approx((before[1] - before[0]) / 4, rel=0.01)
    assert begin < peak < end
    training.tab.locator('[data-figure="curves"] [aria-label="Show all of the time"]').click()
    assert shown_range(training) == (0, training.run("() => GM.trace().duration_ns") / 1e9)


def test_a_line_stands_in_the_curves_at_the_moment_that_is_told(training: OpenedPage) -> None:
    training.figure("curves")

    def line() -> float:
        box = training.tab.locator('[data-figure="curves"] .told').bounding_box()
        assert box is not None
        return box["x"]

    def place(fraction: str) -> float:
        script = f"""() => {{
            const plot = document.getElementById("curves-plot");
            const [from, to] = plot.layout.xaxis.range;
            const area = plot.querySelector(".nsewdrag").getBoundingClientRect();
            return area.left + area.width * ({fraction} - from) / (to - from);
        }}"""
        return float(training.run(script))

    training.tab.locator("#curves-moment").fill("900")
    told = "GM.column(GM.view().curves.time_ns)[900] / 1e9"
    assert line() == pytest.approx(place(told), abs=1.5)
    texts = training.tab.locator("#curves-plot .annotation").all_text_contents()
    assert any(text.startswith("peak ") for text in texts)


def test_the_moment_that_is_told_says_how_far_from_it_nvml_was_read(training: OpenedPage) -> None:
    training.figure("curves")
    training.tab.locator("#curves-moment").fill("1000")
    text = training.tab.locator("#curves-readout").inner_text()
    assert re.search(
        r"NVML: this process 1\.\d\d GiB, whole card 1\.\d\d GiB \(read [\d.]+ [mu]s (before|after)\)", text
    ), text


def test_squares_of_sites_have_the_colours_of_the_theme_that_is_chosen(browser: Browser, page_of: PageOf) -> None:
    script = """() => {
        const found = [...document.querySelectorAll(".dot")].map((one) => getComputedStyle(one).backgroundColor);
        const colours = ["none", "idle", ...Array(20).keys()].map((one) => GM.colour(one >= 0 ? `site-${one}` : one));
        const known = new Set(colours.map((one) => `rgb(${GM.hex(one).join(", ")})`));
        return [found.length, found.filter((one) => !known.has(one))];
    }"""
    with open_page(browser, page_of("gpt2_train"), dark=True) as page:
        page.run("() => GM.drawAll()")
        for theme in ("dark", "light"):
            page.tab.select_option("#theme-switch", theme)
            page.settle()
            count, others = page.run(script)
            assert count > 30
            assert others == []


def test_places_that_are_not_known_are_left_out_of_names(training: OpenedPage) -> None:
    script = """(file, line) => GM.frameText({ file, line, function: "f" })"""
    names = [training.run(f"([file, line]) => ({script})(file, line)", one) for one in PLACES]
    assert names == ["f", "f", "f (Blas.cpp)", "f (/w/a.py:3)"]


def test_the_calls_are_walked_by_keyboard(training: OpenedPage) -> None:
    def state() -> tuple[int, int]:
        training.settle()
        found = training.run("() => GM.state.flame")
        return found["level"], found["cursor"]

    def press(*keys: str) -> tuple[int, int]:
        for key in keys:
            training.tab.keyboard.press(key)
        return state()

    training.figure("flame")
    parents = training.run("() => [...GM.column(GM.view().flame.own.parent)]")
    training.tab.locator("#flame-search").focus()
    assert press("Tab") == (0, 0)
    assert training.run("() => document.activeElement.id") == "flame-plot"
    first = press("ArrowDown")[1]
    assert parents[first] == 0
    second = press("ArrowRight")[1]
    assert parents[second] == 0
    assert second != first
    assert press("ArrowLeft") == (0, first)
    assert press("Enter") == (first, first)
    inner = press("ArrowDown")[1]
    assert parents[inner] == first
    text = training.tab.locator("#flame-readout").inner_text()
    frame = training.run("(at) => GM.page.frames[GM.column(GM.view().flame.own.frame)[at]]", inner)
    assert f"{frame['function']} ({frame['file']}:{frame['line']})" in text
    assert press("ArrowUp", "ArrowUp") == (first, first)
    assert press("Escape") == (0, first)
    assert training.run("() => GM.state.site") is None
    training.run("() => document.activeElement.blur()")


def test_a_frame_that_was_clicked_is_looked_into_and_stays_so(training: OpenedPage) -> None:
    training.figure("flame")
    parents = training.run("() => [...GM.column(GM.view().flame.own.parent)]")
    training.tab.locator("#flame-plot g.slice").nth(1).click()
    training.settle()
    level = training.run("() => GM.state.flame.level")
    assert parents[level] == 0
    training.run("() => GM.select(0)")
    training.settle()
    assert training.run("() => GM.state.flame.level") == level
    training.tab.locator("#flame-plot").focus()
    training.tab.keyboard.press("Escape")
    assert training.run("() => [GM.state.flame.level, GM.state.site]") == [0, 0]
    training.tab.keyboard.press("Escape")
    assert training.run("() => GM.state.site") is None
