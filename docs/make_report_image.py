"""Makes docs/images/report.png: the top of the page of a sample trace, as a light window of 1280 pixels shows it.

python docs/make_report_image.py        (needs playwright, a Chromium on PATH and Pillow)
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from gpumem_cli.main import run_command_line

HERE = Path(__file__).parent
TRACE = HERE.parent / "sample_traces" / "gpt2_train.gpumem"
HEIGHT = 1186


def main() -> None:
    """Writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        assert run_command_line(["report", "--quiet", "-o", str(page), str(TRACE)]) == 0
        taken = Image.open(io.BytesIO(_screenshot(page))).convert("RGB")
    target = HERE / "images" / "report.png"
    taken.save(target, optimize=True)
    print(f"{target}: {target.stat().st_size} bytes")


def _screenshot(page: Path) -> bytes:
    with sync_playwright() as playwright:
        program = next(found for found in map(shutil.which, ("chromium", "google-chrome")) if found)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.wait_for_selector("#curves-plot .main-svg")
        tab.wait_for_timeout(500)
        content = tab.screenshot()
        browser.close()
        return content


if __name__ == "__main__":
    main()
