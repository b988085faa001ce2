"""What everyone needs of the page: keys for all that a mouse does, contrast, names for all controls, the peak told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chromium_pages import OpenedPage, open_page
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.needs("chromium", "playwright")

PageOf = Callable[[str], Path]
PAGES = ["gpt2_train+resnet50_train", "out_of_memory", "hostile"]
CONTRAST_LEAST = 4.5
"""Of text to what lies behind it: WCAG 2, level AA."""

SHOW_ALL = """async () => {
    GM.drawAll();
    for (const one of document.querySelectorAll("details")) one.open = true;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
BRIGHTNESS = """
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const weights = [0.2126, 0.7152, 0.0722];
    const brightness = (colour) => weights.reduce((sum, one, at) => sum + one * linear(numbers(colour)[at] / 255), 0);
    const contrast = (one, other) => {
        const [dark, bright] = [brightness(one), brightness(other)].sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
"""
FAINT = f"""(least) => {{
    {BRIGHTNESS}
    const behind = (element) => {{
        for (let at = element; at; at = at.parentElement) {{
            const colour = getComputedStyle(at).backgroundColor;
            if (!(numbers(colour)[3] < 1)) return colour;
        }}
        return getComputedStyle(document.body).backgroundColor;
    }};
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {{
        const element = walker.currentNode.parentElement;
        const text = walker.currentNode.textContent.trim();
        if (!text || element.closest("script, #flame-plot") || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const colour = element.closest("svg") ? style.fill : style.color;
        const ground = behind(element);
        if (contrast(colour, ground) < least) found.push(`${{colour}} on ${{ground}}: ${{text.slice(0, 40)}}`);
    }}
    return found;
}}"""
INKS = f"""() => {{
    {BRIGHTNESS}
    const rgb = (hex) => `rgb(${{GM.hex(hex).join()}})`;
    const grounds = ["allocated", "pending", "idle", "none", "raised", "text"].map(GM.colour).map(rgb);
    for (let number = 0; number < 20; number++) grounds.push(rgb(GM.colour(`site-${{number}}`)));
    for (let grey = 0; grey < 256; grey++) grounds.push(`rgb(${{grey}},${{grey}},${{grey}})`);
    return Math.min(...grounds.map((one) => contrast(one, rgb(GM.ink(numbers(one))))));
}}"""
FOR_THE_MOUSE_ALONE = """() => [...document.querySelectorAll("main *, header *, #selected *, footer *")]
    .filter((one) => one.checkVisibility() && !one.closest("svg, button, a, summary, select, input, label"))
    .filter((one) => getComputedStyle(one).cursor === "pointer")
    .filter((one) => getComputedStyle(one.parentElement).cursor !== "pointer")
    .filter((one) => one.tabIndex < 0)
    .map((one) => one.outerHTML.slice(0, 80))"""
CONTROLS = "button, select, input, a, summary, canvas, [role]:not([role=status]), [tabindex]"
WITHOUT_A_NAME = """(controls) => [...document.querySelectorAll(controls)]
    .filter((one) => one.checkVisibility() && !one.getAttribute("aria-label"))
    .filter((one) => !(one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
    .map((one) => one.outerHTML.slice(0, 80))"""
FOCUSED = """() => {
    const one = document.activeElement;
    const { outlineStyle, outlineWidth } = getComputedStyle(one);
    return [one === document.body ? "" : one.outerHTML.slice(0, 80), outlineStyle !== "none" && outlineWidth !== "0px"];
}"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, page_of: PageOf, name: str, *, dark: bool
) -> None:
    with open_page(browser, page_of(name), dark=dark) as page:
        page.run(SHOW_ALL)
        assert page.run(FAINT, CONTRAST_LEAST) == []
        page.run("() => GM.select(0)")
        page.settle()
        assert page.run(FAINT, CONTRAST_LEAST) == []
        assert page.run(INKS) >= CONTRAST_LEAST


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_for_the_mouse_alone_and_every_control_has_a_name(
    browser: Browser, page_of: PageOf, name: str
) -> None:
    with open_page(browser, page_of(name)) as page:
        page.run(SHOW_ALL)
        assert page.run(FOR_THE_MOUSE_ALONE) == []
        assert page.run(WITHOUT_A_NAME, CONTROLS) == []


def test_the_focus_is_seen_wherever_the_tab_key_leads(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("out_of_memory")) as page:
        page.run(SHOW_ALL)
        reached = []
        for _ in range(90):
            page.tab.keyboard.press("Tab")
            where, is_seen = page.run(FOCUSED)
            if where:
                reached.append(where)
                assert is_seen, where
        assert len(set(reached)) > 50


def test_rows_of_every_table_are_picked_by_keyboard_and_say_so(training: OpenedPage) -> None:
    training.figure("bands")
    training.run("() => { document.querySelector('[data-figure=bands] details').open = true; }")
    row = training.tab.locator('[data-figure="bands"] tbody tr').nth(2)
    row.focus()
    training.tab.keyboard.press("ArrowUp")
    training.tab.keyboard.press(" ")
    picked = training.tab.locator('[data-figure="bands"] tbody tr').nth(1)
    assert training.run("() => GM.state.site") == int(picked.get_attribute("data-mark") or -1)
    assert picked.get_attribute("aria-selected") == "true"
    training.tab.keyboard.press("Enter")
    assert training.run("() => GM.state.site") is None
    assert picked.get_attribute("aria-selected") == "false"


def test_text_of_a_row_can_be_marked_without_picking_it(training: OpenedPage) -> None:
    name = training.tab.locator("#sites-table tbody tr .where").first
    box = name.bounding_box()
    assert box is not None
    training.tab.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2)
    training.tab.mouse.down()
    training.tab.mouse.move(box["x"] + 90, box["y"] + box["height"] / 2, steps=4)
    training.tab.mouse.up()
    assert training.run("() => String(getSelection())") != ""
    assert training.run("() => GM.state.site") is None
    training.run("() => getSelection().removeAllRanges()")


def test_the_button_of_the_moment_that_is_shown_is_pressed(training: OpenedPage) -> None:
    training.figure("heap")
    pressed = training.tab.locator('[data-figure="heap"] [data-moment][aria-pressed="true"]')
    shown = training.run("() => GM.state.heap.number")
    assert [button.get_attribute("data-moment") for button in pressed.all()] == [str(shown)]
    training.tab.locator('[data-figure="heap"] [data-moment]').last.click()
    assert [button.get_attribute("data-moment") for button in pressed.all()] == [
        str(training.run("() => GM.state.heap.number"))
    ]
    training.tab.locator(f'[data-figure="heap"] [data-moment="{shown}"]').click()


@pytest.mark.parametrize("axis", ["event", "time"])
def test_the_peak_is_told_above_the_column_that_holds_it(training: OpenedPage, axis: str) -> None:
    training.figure("bands")
    training.tab.locator(f'#bands-axis [data-value="{axis}"]').click()
    training.settle()
    x = training.run("() => GM.state.bands.peak_x")
    box = training.tab.locator('[data-figure="bands"] canvas').bounding_box()
    assert box is not None
    assert 74 <= x <= box["width"] - 14
    training.tab.mouse.move(box["x"] + x, box["y"] + box["height"] - 40)
    told = training.tab.locator('[data-figure="bands"] .tip').inner_text()
    peak = format_bytes(training.run("() => GM.view().bands.peak_bytes"))
    assert re.search(rf"{re.escape(peak)} allocated in all", told)
    training.tab.mouse.move(1, 1)
    training.tab.locator('#bands-axis [data-value="event"]').click()


def test_a_peak_out_of_sight_is_not_told(training: OpenedPage) -> None:
    training.figure("bands")
    training.tab.locator('[data-figure="bands"] canvas').focus()
    for key in ["+"] * 12 + ["ArrowRight"] * 30:
        training.tab.keyboard.press(key)
    training.settle()
    view, peak, events = training.run(
        "() => [GM.state.bands.view, GM.view().bands.peak.event, GM.view().bands.event_count]"
    )
    assert not view["x0"] * events <= peak <= view["x1"] * events
    assert training.run("() => GM.state.bands.peak_x") is None
    training.tab.keyboard.press("0")
    training.settle()
    assert training.run("() => GM.state.bands.peak_x") is not None


def test_a_site_of_the_peak_is_marked_from_the_first_screen(browser: Browser, page_of: PageOf) -> None:
    with open_page(browser, page_of("gpt2_train")) as page:
        bar = page.tab.locator(".peak-bar").bounding_box()
        assert bar is not None
        assert bar["y"] + bar["height"] < 500
        button = page.tab.locator(".peak button").nth(1)
        button.focus()
        page.tab.keyboard.press("Enter")
        site = int(button.get_attribute("data-mark") or -1)
        assert page.run("() => GM.state.site") == site
        assert button.get_attribute("aria-pressed") == "true"
        colour = "(at) => getComputedStyle(document.querySelectorAll('.peak-bar > span')[at]).backgroundColor"
        swatch = page.tab.locator(f'#sites-table tr[data-site="{site}"] .dot')
        assert page.run(colour, 1) == swatch.evaluate("(one) => getComputedStyle(one).backgroundColor")
        page.tab.keyboard.press("Space")
        assert page.run("() => GM.state.site") is None
