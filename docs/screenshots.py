"""Pictures of a report: `python docs/screenshots.py REPORT.html FOLDER` writes desktop.png, dark.png and phone.png.

Needs playwright and a chromium. `--full` takes the whole page in place of its first screen.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True},
}


def take(report: Path, folder: Path, full: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, options in VIEWS.items():
            page = browser.new_page(**options)
            page.goto(report.resolve().as_uri())
            draw_all(page)
            page.screenshot(path=folder / f"{name}.png", full_page=full)
            page.close()
        browser.close()


def draw_all(page: Page) -> None:
    """Plots are drawn when they come near the screen; this draws the others."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    take(arguments.report, arguments.folder, arguments.full)
