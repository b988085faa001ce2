"""Pages opened in a headless Chromium, as a person opens them from disk.

Owns: starting the browser, and noting all that a page asks the network for or complains about. Must not know: figures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waits import SECONDS_AT_MOST

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright, Route

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class OpenedPage:
    """A page that is ready, with what it asked for and complained about; `tab` drives it."""

    tab: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def run(self, script: str, argument: object = None) -> Any:
        """What a script in the page gives."""
        return self.tab.evaluate(script, argument)

    def wait_until(self, script: str, argument: object = None) -> None:
        """Waits until what a function in the page gives is true."""
        self.tab.wait_for_function(script, arg=argument)

    def settle_address(self) -> None:
        """Waits until the address says what is shown; the page writes it a while after a change."""
        self.settle()
        self.wait_until("() => GM.state.address === location.hash")

    def figure(self, name: str) -> None:
        """Scrolls to a figure; all are drawn before, so that none moves another when it comes near."""
        self.run("() => GM.drawAll()")
        self.settle()
        self.tab.locator(f'[data-figure="{name}"]').scroll_into_view_if_needed()
        self.settle()

    def settle(self) -> None:
        """Waits for two frames to be painted."""
        self.run("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))")

    def colours(self, name: str) -> int:
        """How many colours a figure's canvas shows, at a grid of places."""
        script = """(name) => {
            const canvas = document.querySelector(`[data-figure="${name}"] canvas`);
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            const seen = new Set();
            for (let at = 0; at < data.length; at += 4 * 97) seen.add(data.slice(at, at + 3).join());
            return seen.size;
        }"""
        return int(self.run(script, name))

    def pixels(self, name: str) -> str:
        """A figure's canvas as text, equal for equal pictures."""
        return str(self.run("(name) => document.querySelector(`[data-figure='${name}'] canvas`).toDataURL()", name))


def start_chromium(playwright: Playwright) -> Browser:
    """The Chromium found on PATH."""
    program = next(found for found in map(shutil.which, NAMES) if found)
    return playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))


@contextmanager
def open_page(
    browser: Browser, path: Path, *, width: int = 1280, dark: bool = False, ready: bool = True, fragment: str = ""
) -> Iterator[OpenedPage]:
    """A page opened from disk, its address ending in `fragment`; requests for more than that file are refused."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(SECONDS_AT_MOST * 1000)
    opened = OpenedPage(context.new_page())
    context.route("**/*", _refusing(opened, path.as_uri()))
    opened.tab.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    opened.tab.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.tab.goto(f"{path.as_uri()}#{fragment}" if fragment else path.as_uri())
    if ready:
        opened.tab.wait_for_selector("html[data-ready]")
    try:
        yield opened
    finally:
        context.close()


def _refusing(opened: OpenedPage, own: str) -> Callable[[Route], None]:
    def decide(route: Route) -> None:
        if route.request.url == own:
            route.continue_()
        else:
            opened.requests.append(route.request.url)
            route.abort()

    return decide
